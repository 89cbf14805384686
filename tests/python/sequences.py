#!/usr/bin/env python3
"""Sequences through the official client: sums that a model keeps from request to request, several sequences at once."""

import argparse

import numpy as np

from connect import PROTOCOLS, connect, expect


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", choices=PROTOCOLS, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    args = parser.parse_args()
    with connect(args.protocol, args.url) as connection:
        ids = [1, 2, "1", "a text of more than a few letters"]
        sums = {}
        for step in range(5):
            for place, sequence in enumerate(ids):
                value = np.array([[10 * step + place]], dtype=np.int32)
                result = connection.infer(
                    args.model,
                    [connection.input("INPUT0", value, "INT32")],
                    sequence_id=sequence,
                    sequence_start=step == 0,
                    sequence_end=step == 4,
                )
                key = (type(sequence), sequence)
                sums[key] = sums.get(key, 0) + 10 * step + place
                expect(f"step {step} of {sequence!r}", result.as_numpy("OUTPUT0").tolist(), [[sums[key]]])
        print("passed")


if __name__ == "__main__":
    main()
