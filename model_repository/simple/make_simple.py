#!/usr/bin/env python3
"""Writes the `simple` example: the sum and the difference of two INT32 tensors of 16 elements.

    pip install onnx
    python make_simple.py
"""

import argparse
import pathlib

import onnx
from onnx import TensorProto, helper


def main():
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, default=here / "1" / "model.onnx")
    args = parser.parse_args()

    def tensor(name):
        return helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", 16])

    graph = helper.make_graph(
        [
            helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
            helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
        ],
        "simple",
        [tensor("INPUT0"), tensor("INPUT1")],
        [tensor("OUTPUT0"), tensor("OUTPUT1")],
    )
    # Operator set 13 and file format 8 are read by every ONNX Runtime from 1.20 on.
    model = helper.make_model(graph, producer_name="nereid", ir_version=8, opset_imports=[helper.make_opsetid("", 13)])
    onnx.checker.check_model(model, full_check=True)
    args.model.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, args.model)
    print(f"{args.model}: {args.model.stat().st_size} bytes")


if __name__ == "__main__":
    main()
