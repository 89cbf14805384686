"""Holds the network of the example chat against itself: the gradients of its training against differences, and the
steps of its server, with caches and several sequences at once, against the computation of the training.

python chat_network.py <examples/chat>
"""

import json
import pathlib
import sys

sys.path.insert(0, sys.argv[1])
sys.path.insert(0, str(pathlib.Path(sys.argv[1]) / "models" / "chat" / "1"))

import numpy as np

from connect import expect
from engine import Text
from guide import Guide
from network import Network
from sampling import Parameters, Sampler, WrongParameter, logprobs_of
from training import Layer, bias_of, initial, loss_and_gradients, normalize

HEADS, VOCABULARY = 4, 50


def check_gradients(random):
    weights = {name: value.astype(np.float64) for name, value in initial(random, VOCABULARY, 16, 2, 32).items()}
    tokens, costs = random.integers(VOCABULARY, size=(2, 9)), random.random((2, 9))
    _, gradients = loss_and_gradients(weights, HEADS, tokens, costs)
    expect("weights with gradients", sorted(gradients), sorted(weights))
    for name, value in weights.items():
        for _ in range(5):
            at = tuple(random.integers(size) for size in value.shape)
            losses = []
            for shift in (1e-5, -1e-5):
                value[at] += shift
                losses.append(loss_and_gradients(weights, HEADS, tokens, costs)[0])
                value[at] -= shift
            difference = abs((losses[0] - losses[1]) / 2e-5 - gradients[name][at])
            # The importance of tokens is kept in single precision.
            expect("the gradient of %s at %s" % (name, at), difference < 1e-6, True)


def check_steps(random):
    weights = initial(random, VOCABULARY, 16, 2, 32)
    network = Network(weights, HEADS)

    def whole(tokens):
        x = weights["embedding"][np.array([tokens])]
        for index in range(2):
            x = Layer(weights, "%d." % index, HEADS).forward(x, bias_of(len(tokens), HEADS))
        return (normalize(x)[0] @ weights["embedding"].T)[0]

    texts = [random.integers(VOCABULARY, size=size).tolist() for size in (150, 3, 70)]
    caches = [network.new_cache() for _ in texts]
    at = [0, 0, 0]
    for sizes in [(100, 1, 1), (1, 1, 64), (49, 1, 5)]:
        pieces = [text[begin : begin + size] for text, begin, size in zip(texts, at, sizes)]
        logits = network.step(pieces, caches)
        at = [begin + size for begin, size in zip(at, sizes)]
        for text, end, row in zip(texts, at, logits):
            expect("logits behind token %d" % end, bool(np.abs(row - whole(text[:end])[-1]).max() < 1e-4), True)


def check_sampling():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], dtype=np.float32))
    everything = np.ones(4, dtype=bool)

    def drawn(text, count=200, allowed=everything):
        sampler = Sampler(Parameters(text), 4)
        return [sampler.choose(logits, allowed) for _ in range(count)]

    expect("temperature 0", set(drawn('{"temperature": 0}')), {0})
    expect("a seed", drawn('{"seed": -7}'), drawn('{"seed": -7}'))
    expect("another seed", drawn('{"seed": 7}') == drawn('{"seed": -7}'), False)
    expect("all tokens", set(drawn('{"seed": 1}')), {0, 1, 2, 3})
    expect("top_p", set(drawn('{"seed": 1, "top_p": 0.7}')), {0, 1})
    expect("top_k", set(drawn('{"seed": 1, "top_k": 1}')), {0})
    expect("min_p", set(drawn('{"seed": 1, "min_p": 0.25}')), {0, 1, 2})
    expect("a mask", set(drawn('{"seed": 1}', allowed=np.arange(4) == 3)), {3})
    expect("a penalty", drawn('{"temperature": 0, "presence_penalty": 2}', 4), [0, 1, 2, 0])
    found = logprobs_of(logits, 2, 2, str)
    expect("log probabilities", [(name, one["rank"]) for name, one in found.items()], [("2", 3), ("0", 1), ("1", 2)])
    expect("their sum", round(float(np.exp(found["0"]["logprob"])), 4), 0.5)
    for wrong in ("x", "[]", '{"top_p": 2}', '{"temperature": NaN}', '{"stop": 1}', '{"n": 2}', '{"seed": "a"}',
                  '{"logprobs": 21}', '{"logprobs": "1"}', '{"lora_name": "a"}', '{"structured_outputs": "{}"}'):
        try:
            Parameters(wrong)
        except WrongParameter:
            continue
        raise SystemExit("%s is accepted" % wrong)


def check_texts():
    def said(stops, *pieces):
        text = Text(stops)
        return [text.push(piece, at + 1 == len(pieces)) for at, piece in enumerate(pieces)]

    texts = [text for text, _ in said([], b"a\xc3", b"\xa9", b"\xe4")]
    expect("split characters", texts, ["a", "\u00e9", "\ufffd"])
    expect("a stop word", said(["END"], b"aE", b"xEN", b"D", b"!")[:3], [("a", False), ("Ex", False), ("", True)])
    expect("a stop word that is none", said(["END"], b"EN", b""), [("", False), ("EN", False)])


def check_guide():
    letters = {index: bytes([index]) for index in range(0x20, 0x7F)}
    guide = Guide(lambda text: list(text.encode()), letters)

    def said(schema, choose):
        generator, text = guide.of(schema), []
        allowed = next(generator)
        try:
            while True:
                text.append(choose(allowed))
                allowed = generator.send(text[-1])
        except StopIteration:
            return bytes(text).decode()

    schema = {
        "type": "object",
        "properties": {
            "unit": {"enum": ["cat", "car", "c"]},
            "days": {"type": "integer"},
            "is": {"type": "boolean"},
            "list": {"type": "array", "items": {"type": "string"}},
            "none": {"type": "null"},
            "empty": {"type": "object"},
        },
    }
    for choose, unit, days, truth, letter in ((max, "cat", 9, True, "~"), (min, "c", 1, False, " ")):
        document = {"unit": unit, "days": days, "is": truth, "list": [letter * 8], "none": None, "empty": {}}
        expect("a guided document", said(schema, choose), json.dumps(document))
    deep = {}
    deep["properties"] = {"a": deep}
    expect("a schema without an end", said(deep, max).count("{"), 9)


def main():
    random = np.random.default_rng(5)
    check_gradients(random)
    check_steps(random)
    check_sampling()
    check_texts()
    check_guide()
    print("gradients, steps, sampling, texts and guides are right")


if __name__ == "__main__":
    main()
