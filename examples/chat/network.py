"""The network: a transformer of a few layers in numpy, with a cache of keys and values.

It is written out here because it is small: that needs no package but numpy, and one core computes a token in well under
a millisecond. `Network.step` is what a server needs: the next logits of several sequences, each with a cache of its
own. training.py has the same computation with its gradients, and a test compares the two.

Positions are known by a bias that falls with the distance (ALiBi), by another slope for each head, so that the length
of a text is not bounded by that of the training.
"""

import numpy as np

EPSILON = 1e-5
# Rows that a cache grows by.
GROWTH = 64


def slopes(heads):
    """How fast the heads forget; the last one does not."""
    return np.array([2.0 ** -(2 * head + 1) for head in range(heads - 1)] + [0.0], dtype=np.float32)


def normalized(x):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


class Cache:
    """Keys and values of one sequence in all layers."""

    def __init__(self, layers, heads, width):
        self.length = 0
        self.rows = np.zeros((2, layers, heads, GROWTH, width), dtype=np.float32)

    def make_room(self, count):
        missing = self.length + count - self.rows.shape[3]
        if missing > 0:
            # By half at least, so that a long text is copied a few times only.
            more = max(missing, self.rows.shape[3] // 2, GROWTH)
            self.rows = np.concatenate([self.rows, np.zeros_like(self.rows[:, :, :, :1]).repeat(more, 3)], axis=3)

    def put(self, layer, keys, values):
        """Adds the rows of new tokens, `[heads, n, width]`, and returns all."""
        end = self.length + keys.shape[1]
        self.rows[0, layer, :, self.length : end] = keys
        self.rows[1, layer, :, self.length : end] = values
        return self.rows[0, layer, :, :end], self.rows[1, layer, :, :end]


class Network:
    def __init__(self, weights, heads):
        self.weights = weights
        self.heads = heads
        self.layers = len([name for name in weights if name.endswith(".attention")])
        self.size = weights["embedding"].shape[1]
        self.width = self.size // heads
        self.slopes = slopes(heads)[:, None, None]

    def new_cache(self):
        return Cache(self.layers, self.heads, self.width)

    def step(self, tokens, caches):
        """The logits behind the last of `tokens[i]`, for each sequence i; its cache takes the new tokens."""
        counts = [len(one) for one in tokens]
        for cache, count in zip(caches, counts):
            cache.make_room(count)
        # What acts on single tokens is computed for those of all sequences at once.
        x = self.weights["embedding"][np.concatenate(tokens)]
        ends = np.cumsum(counts)
        for layer in range(self.layers):
            name = "%d." % layer
            projected = normalized(x) @ self.weights[name + "attention"]
            mixed = np.empty_like(x)
            for cache, count, end in zip(caches, counts, ends):
                mixed[end - count : end] = self.attend(cache, layer, projected[end - count : end])
            x = x + mixed @ self.weights[name + "output"]
            hidden = np.maximum(normalized(x) @ self.weights[name + "up"], 0)
            x = x + (hidden * hidden) @ self.weights[name + "down"]
        for cache, count in zip(caches, counts):
            cache.length += count
        return normalized(x[ends - 1]) @ self.weights["embedding"].T

    def attend(self, cache, layer, projected):
        count = len(projected)
        queries, keys, values = projected.reshape(count, 3, self.heads, self.width).transpose(1, 2, 0, 3)
        keys, values = cache.put(layer, keys, values)
        distance = np.arange(cache.length, cache.length + count)[:, None] - np.arange(keys.shape[1])[None, :]
        scores = queries @ keys.transpose(0, 2, 1) / np.float32(np.sqrt(self.width))
        scores -= self.slopes * distance.astype(np.float32)
        scores = np.where(distance < 0, np.float32(-1e9), scores)
        return (softmax(scores) @ values).transpose(1, 0, 2).reshape(count, self.size)
