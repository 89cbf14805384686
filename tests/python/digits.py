#!/usr/bin/env python3
"""Sends the held-out pictures of digits: the answers must be those that ONNX Runtime gave when the model was made."""

import argparse
import pathlib

import numpy as np

from connect import PROTOCOLS, connect, expect

NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def check(connection, samples, batch, binary):
    """Classifies all samples, `batch` a request; returns how many were right."""
    images = samples["images"].astype(np.float32)
    right = 0
    for start in range(0, len(images), batch):
        rows = slice(start, start + batch)
        wanted = [connection.output("probabilities", binary), connection.output("label", binary)]
        inputs = [connection.input("image", images[rows], "FP32", binary)]
        result = connection.infer("digits", inputs, outputs=wanted, request_id=f"from {start}")
        label = result.as_numpy("label")
        expect("shape of label", label.shape, (len(images[rows]), 1))
        expect("datatype of label", label.dtype, np.dtype(np.int64))
        expect(f"labels from {start}", label[:, 0].tolist(), samples["predicted"][rows].tolist())
        probabilities = result.as_numpy("probabilities")
        difference = np.abs(probabilities - samples["probabilities"][rows]).max()
        if not difference < 1e-5:
            raise SystemExit(f"probabilities from {start} are off by {difference}")
        right += int((label[:, 0] == samples["labels"][rows]).sum())
    return right


def check_classes(connection, samples):
    """The same answers through the classification extension, with the labels of the repository."""
    images = samples["images"][:8].astype(np.float32)
    wanted = [connection.output("probabilities", class_count=3)]
    result = connection.infer("digits", [connection.input("image", images, "FP32")], outputs=wanted)
    classes = result.as_numpy("probabilities")
    expect("shape of the classes", classes.shape, (8, 3))
    for row, predicted in zip(classes, samples["predicted"]):
        value, index, name = row[0].decode().split(":")
        expect("likeliest class", (int(index), name), (int(predicted), NAMES[predicted]))
        values = [float(one.decode().split(":")[0]) for one in row]
        expect("order of the classes", values, sorted(values, reverse=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", choices=PROTOCOLS, required=True)
    parser.add_argument("--url", required=True)
    here = pathlib.Path(__file__).resolve().parent
    parser.add_argument("--samples", type=pathlib.Path, default=here / "data" / "digits_held_out.npz")
    args = parser.parse_args()

    samples = np.load(args.samples)
    known = int((samples["predicted"] == samples["labels"]).sum())
    with connect(args.protocol, args.url) as connection:
        for batch, binary in [(1, True), (32, True), (7, False)]:
            right = check(connection, samples, batch, binary)
            expect(f"right answers in batches of {batch}", right, known)
        check_classes(connection, samples)
    print(f"{args.protocol}: {known} of {len(samples['labels'])} right, as known")


if __name__ == "__main__":
    main()
