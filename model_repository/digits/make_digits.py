#!/usr/bin/env python3
"""Trains the `digits` example and writes it as ONNX, together with the samples that the tests send.

Needs scikit-learn and onnx (made with scikit-learn 1.9.1, onnx 1.23.2); serving the result needs neither:

    pip install scikit-learn onnx onnxruntime
    python make_digits.py

The data are the 1,797 pictures bundled with scikit-learn. 360 of them are kept away from the training; they go to
tests/python/data with the labels that ONNX Runtime gives them, so that a test can tell "the server changed the
answer" from "the model is wrong about this picture".
"""

import argparse
import pathlib

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

SEED = 2026
HELD_OUT = 360
HIDDEN = 48
INK = 16.0  # the largest pixel value


def train():
    """Returns the trained network and the held-out pictures and labels."""
    digits = load_digits()
    train_x, test_x, train_y, test_y = train_test_split(
        digits.data, digits.target, test_size=HELD_OUT, random_state=SEED, stratify=digits.target
    )
    network = MLPClassifier(hidden_layer_sizes=(HIDDEN,), alpha=1e-3, max_iter=400, random_state=SEED)
    network.fit(train_x / INK, train_y)
    return network, test_x, test_y


def export(network):
    """Writes the layers out by hand: scale, two dense layers, softmax, and the likeliest class."""
    weights = [w.astype(np.float32) for w in network.coefs_]
    biases = [b.astype(np.float32) for b in network.intercepts_]
    ink = np.array(INK, dtype=np.float32)
    constants = {"ink": ink, "w0": weights[0], "b0": biases[0], "w1": weights[1], "b1": biases[1]}
    graph = helper.make_graph(
        [
            helper.make_node("Div", ["image", "ink"], ["scaled"]),
            helper.make_node("Gemm", ["scaled", "w0", "b0"], ["dense0"]),
            helper.make_node("Relu", ["dense0"], ["hidden"]),
            helper.make_node("Gemm", ["hidden", "w1", "b1"], ["scores"]),
            helper.make_node("Softmax", ["scores"], ["probabilities"], axis=1),
            helper.make_node("ArgMax", ["probabilities"], ["label"], axis=1, keepdims=1),
        ],
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 64])],
        [
            helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 10]),
            helper.make_tensor_value_info("label", TensorProto.INT64, ["batch", 1]),
        ],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    # Operator set 13 and file format 8 are read by every ONNX Runtime from 1.20 on.
    model = helper.make_model(graph, producer_name="nereid", ir_version=8, opset_imports=[helper.make_opsetid("", 13)])
    onnx.checker.check_model(model, full_check=True)
    return model


def main():
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, default=here / "1" / "model.onnx")
    samples = here.parents[1] / "tests/python/data/digits_held_out.npz"
    parser.add_argument("--samples", type=pathlib.Path, default=samples)
    args = parser.parse_args()

    network, images, labels = train()
    model = export(network)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    probabilities, predicted = session.run(["probabilities", "label"], {"image": images.astype(np.float32)})
    predicted = predicted[:, 0]
    assert np.array_equal(predicted, probabilities.argmax(axis=1))
    assert np.array_equal(predicted, network.predict(images / INK)), "the exported graph disagrees with scikit-learn"

    args.model.parent.mkdir(parents=True, exist_ok=True)
    args.samples.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, args.model)
    np.savez_compressed(
        args.samples,
        images=images.astype(np.uint8),
        labels=labels.astype(np.uint8),
        predicted=predicted.astype(np.uint8),
        probabilities=probabilities.astype(np.float32),
    )
    right = int((predicted == labels).sum())
    print(f"{args.model}: {args.model.stat().st_size} bytes")
    print(f"{args.samples}: {args.samples.stat().st_size} bytes")
    print(f"held-out accuracy: {right} of {len(labels)} = {right / len(labels):.4f}")


if __name__ == "__main__":
    main()
