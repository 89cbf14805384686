"""Sends texts to the text pipeline: the answers must be those of the network's own arithmetic.

python minilm.py --http host:port --grpc host:port --wheel <wheel> minilm minilm_bls
"""

import argparse
import concurrent.futures
import pathlib

import numpy as np
from tritonclient.utils import InferenceServerException

from connect import connect, expect
from minilm_network import Reference

DIFFERENCE_MAX = 1e-4
# Sentences of like meaning that share few words, pair by pair.
PAIRS = [
    ("A man is eating a sandwich.", "Someone is having lunch."),
    ("The cat sleeps on the sofa.", "A kitten is taking a nap on the couch."),
    ("Stock prices fell sharply on Monday.", "Shares dropped a lot at the start of the week."),
    ("How do I reset my password?", "I forgot my login and need a new one."),
]
ODD = ["", " \t\n", "Ünïcödé ÀÉÎ ñ, 北京 and 👍!", "[SEP] [MASK] a]b[c", "x" * 5000, "long text, " * 3000, "ZERO\0BYTE"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--http", required=True)
    parser.add_argument("--grpc", required=True)
    parser.add_argument("--wheel", type=pathlib.Path, required=True)
    parser.add_argument("models", nargs="+")
    args = parser.parse_args()
    reference = Reference(args.wheel)
    sentences = [sentence for pair in PAIRS for sentence in pair]
    texts = sentences + ODD
    truth = np.array([reference.embedding(text) for text in texts])
    for model in args.models:
        for protocol, url in (("http", args.http), ("grpc", args.grpc)):
            with connect(protocol, url) as connection:
                check(connection, model, sentences, texts, truth)
            print(f"{model} over {protocol} is right")


def near(what, got, expected):
    difference = np.abs(got - expected).max()
    if not difference < DIFFERENCE_MAX:
        raise SystemExit(f"{what} is off by {difference}")
    return difference


def check(connection, model, sentences, texts, truth):
    def ask(texts, binary=True):
        array = np.array([text if isinstance(text, bytes) else text.encode() for text in texts], dtype=np.object_)
        text = connection.input("text", array.reshape(-1, 1), "BYTES", binary)
        got = connection.infer(model, [text]).as_numpy("embedding")
        expect("shape", (got.shape, got.dtype), ((len(texts), 384), np.dtype(np.float32)))
        return got

    single = np.concatenate([ask([text]) for text in texts])
    print(f"single texts: largest difference {near('a single text', single, truth):.1e}")
    together = ask(texts)
    print(f"a batch: largest difference {near('the batch', together, truth):.1e}")
    near("the batch against single texts", together, single)
    near("the batch in JSON", ask(texts[:6], binary=not connection.is_http), truth[:6])
    near("a batch in another order", ask(texts[::-1]), truth[::-1])
    near("the lengths", np.linalg.norm(together, axis=1), np.ones(len(texts)))

    likeness = together[: len(sentences)] @ together[: len(sentences)].T
    for row, sentence in enumerate(sentences):
        partner = row ^ 1
        others = [column for column in range(len(sentences)) if column not in (row, partner)]
        nearest = max(others, key=lambda column: likeness[row, column])
        print(f"{likeness[row, partner]:.2f} {sentences[partner]!r}; {likeness[row, nearest]:.2f} "
              f"{sentences[nearest]!r}: {sentence!r}")
        if not likeness[row, partner] > likeness[row, nearest] + 0.1:
            raise SystemExit(f"{sentence!r} is not closest to {sentences[partner]!r}")

    # Bytes that are no text fail their request, which says so, and nothing else.
    for refused, said in [
        ([b"\xff\xfe"], "text 1 of 1 is not UTF-8: byte 0xff at position 0"),
        (["good", b"bad \xe4", "good"], "text 2 of 3 is not UTF-8: byte 0xe4 at position 4"),
    ]:
        try:
            ask(refused)
        except InferenceServerException as error:
            if said not in str(error) or "400" not in str(error) and "INVALID_ARGUMENT" not in str(error):
                raise SystemExit(f"expected {said!r}, got {error}")
        else:
            raise SystemExit(f"{refused} was answered")
    near("what follows a refusal", ask(sentences[:1]), truth[:1])

    if not connection.is_http:
        # At the same time, so that requests of several lengths meet in one batch, bad ones among them.
        def is_right(at):
            row = at % len(texts)
            if at % 7 != 3:
                return bool(np.abs(ask([texts[row]]) - truth[row]).max() < DIFFERENCE_MAX)
            try:
                ask([b"\xff"])
            except InferenceServerException as error:
                return "text 1 of 1 is not UTF-8" in str(error)
            return False

        with concurrent.futures.ThreadPoolExecutor(16) as threads:
            wrong = [at for at, right in enumerate(threads.map(is_right, range(150))) if not right]
        expect("wrong answers to many at once", wrong, [])

    # More rows than the model takes.
    try:
        ask(sentences * 5)
    except InferenceServerException as error:
        if "[request id: <id_unknown>] inference request batch-size must be <= 32" not in str(error):
            raise SystemExit(f"the refusal of 40 rows is {error}")
    else:
        raise SystemExit("40 rows were taken")


if __name__ == "__main__":
    main()
