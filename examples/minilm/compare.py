#!/usr/bin/env python3
"""Which of these sentences mean the same? Asks the text pipeline, with nothing but the standard library.

    nereid quickstart --with minilm
    python3 compare.py "A man is eating a sandwich." "Someone is having lunch." "Stock prices fell."
"""

import argparse
import json
import urllib.error
import urllib.request

EXAMPLES = [
    "A man is eating a sandwich.",
    "Someone is having lunch.",
    "The cat sleeps on the sofa.",
    "A kitten is taking a nap on the couch.",
    "Stock prices fell sharply on Monday.",
]


def embed(url, model, sentences):
    """A list of 384 numbers for each sentence, of length 1."""
    text = {"name": "text", "datatype": "BYTES", "shape": [len(sentences), 1], "data": sentences}
    body = json.dumps({"inputs": [text]}).encode("utf-8")
    request = urllib.request.Request(url + "/v2/models/" + model + "/infer", body)
    try:
        with urllib.request.urlopen(request) as answer:
            output = json.load(answer)["outputs"][0]
    except urllib.error.HTTPError as error:
        raise SystemExit("the server refused: %s" % error.read().decode("utf-8", "replace")) from None
    except urllib.error.URLError as error:
        raise SystemExit("no server at %s: %s" % (url, error.reason)) from None
    size = output["shape"][1]
    return [output["data"][row * size : (row + 1) * size] for row in range(len(sentences))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sentences", nargs="*", help="default: a few of its own")
    parser.add_argument("--url", default="http://localhost:8000")
    parser.add_argument("--model", default="minilm", choices=["minilm", "minilm_bls"])
    args = parser.parse_args()
    sentences = args.sentences or EXAMPLES
    embeddings = embed(args.url, args.model, sentences)
    for row, sentence in enumerate(sentences):
        # The product of two vectors of length 1 is the cosine of their angle: 1 is the same, 0 has nothing in common.
        likeness = [sum(a * b for a, b in zip(embeddings[row], other)) for other in embeddings]
        # Zero has no sign here.
        print("  ".join("%5.2f" % (round(value, 2) + 0.0) for value in likeness) + "  " + sentence)


if __name__ == "__main__":
    main()
