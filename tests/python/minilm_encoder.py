"""Holds the ONNX network that the example makes against the network's own arithmetic, in ONNX Runtime alone.

python minilm_encoder.py <model.onnx> <wheel>
"""

import sys

import numpy as np
import onnxruntime

from connect import expect
from minilm_network import TOKENS_MAX, Reference

DIFFERENCE_MAX = 1e-4
TEXTS = ["", "A happy person.", "The weather is lovely today; it's sunny and warm outside.", "word " * 400, "日本語 ok"]


def main():
    reference = Reference(sys.argv[2])
    session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
    expect("inputs", [(i.name, i.type, i.shape) for i in session.get_inputs()],
           [(name, "tensor(int64)", ["batch", "tokens"]) for name in ("input_ids", "attention_mask")])
    expect("outputs", [(o.name, o.type, o.shape) for o in session.get_outputs()],
           [("token_vectors", "tensor(float)", ["batch", "tokens", 384])])

    tokens = [reference.tokens(text) for text in TEXTS]
    # As long as the network has positions for.
    tokens.append((reference.tokens("a rose is a rose is ")[1:-1] * 100)[:512])
    vectors = [reference.token_vectors(row) for row in tokens]

    def check(rows, what):
        width = max(len(tokens[row]) for row in rows)
        # What stands in padding is of no importance.
        ids, mask = np.full((len(rows), width), 7, np.int64), np.zeros((len(rows), width), np.int64)
        for at, row in enumerate(rows):
            ids[at, : len(tokens[row])], mask[at, : len(tokens[row])] = tokens[row], 1
        (got,) = session.run(None, {"input_ids": ids, "attention_mask": mask})
        expect(f"{what}: shape", got.shape, (len(rows), width, 384))
        for at, row in enumerate(rows):
            difference = np.abs(got[at, : len(tokens[row])] - vectors[row]).max()
            if not difference < DIFFERENCE_MAX:
                raise SystemExit(f"{what}: text {row} is off by {difference}")
            print(f"{what}: text {row} of {len(tokens[row])} tokens, largest difference {difference:.1e}")

    for row in range(len(tokens)):
        check([row], "alone")
    check(list(range(len(TEXTS))), "padded")
    check([5, 1], "padded to the longest")
    expect("the limit of the texts", len(tokens[3]), TOKENS_MAX)


if __name__ == "__main__":
    main()
