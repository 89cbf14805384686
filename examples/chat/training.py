"""Trains the network: the computation of network.py for whole rows of tokens, its gradients, and Adam.

All of it is seeded, so that the same numpy on the same processor makes the same weights.
"""

import numpy as np

from network import EPSILON, slopes, softmax

WARM_UP = 20
DECAY = (0.9, 0.98)


def initial(random, vocabulary, size, layers, inner):
    """Weights before training."""

    def normal(*shape, scale):
        return (random.standard_normal(shape) * scale).astype(np.float32)

    weights = {"embedding": normal(vocabulary, size, scale=0.05)}
    for layer in range(layers):
        weights["%d.attention" % layer] = normal(size, 3 * size, scale=size**-0.5)
        weights["%d.output" % layer] = normal(size, size, scale=0.3 * size**-0.5)
        weights["%d.up" % layer] = normal(size, inner, scale=size**-0.5)
        weights["%d.down" % layer] = normal(inner, size, scale=0.3 * inner**-0.5)
    return weights


def normalize(x):
    scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON)
    return x * scale, scale


def normalize_backward(gradient, y, scale):
    return scale * (gradient - y * (gradient * y).mean(-1, keepdims=True))


def flat(x):
    return x.reshape(-1, x.shape[-1])


class Layer:
    """One layer, with what its gradients need of the way there."""

    def __init__(self, weights, name, heads):
        self.weights = {part: weights[name + part] for part in ("attention", "output", "up", "down")}
        self.name = name
        self.heads = heads

    def forward(self, x, bias):
        rows, length, size = x.shape
        width = size // self.heads
        self.bias_shape = (rows, length, 3, self.heads, width)
        self.first, self.first_scale = normalize(x)
        projected = (self.first @ self.weights["attention"]).reshape(self.bias_shape)
        self.queries, self.keys, self.values = projected.transpose(2, 0, 3, 1, 4)
        self.shrink = np.float32(width**-0.5)
        self.shares = softmax(self.queries @ self.keys.transpose(0, 1, 3, 2) * self.shrink + bias)
        self.mixed = (self.shares @ self.values).transpose(0, 2, 1, 3).reshape(rows, length, size)
        x = x + self.mixed @ self.weights["output"]
        self.second, self.second_scale = normalize(x)
        self.hidden = np.maximum(self.second @ self.weights["up"], 0)
        self.squared = self.hidden * self.hidden
        return x + self.squared @ self.weights["down"]

    def backward(self, gradient, gradients):
        name = self.name
        gradients[name + "down"] = flat(self.squared).T @ flat(gradient)
        inner = (gradient @ self.weights["down"].T) * (2 * self.hidden)
        gradients[name + "up"] = flat(self.second).T @ flat(inner)
        inner = inner @ self.weights["up"].T
        gradient = gradient + normalize_backward(inner, self.second, self.second_scale)
        gradients[name + "output"] = flat(self.mixed).T @ flat(gradient)
        rows, length, _, heads, width = self.bias_shape
        mixed = (gradient @ self.weights["output"].T).reshape(rows, length, heads, width).transpose(0, 2, 1, 3)
        values = self.shares.transpose(0, 1, 3, 2) @ mixed
        shares = mixed @ self.values.transpose(0, 1, 3, 2)
        scores = self.shares * (shares - (shares * self.shares).sum(-1, keepdims=True)) * self.shrink
        queries = scores @ self.keys
        keys = scores.transpose(0, 1, 3, 2) @ self.queries
        projected = np.stack([queries, keys, values]).transpose(1, 3, 0, 2, 4).reshape(rows, length, -1)
        gradients[name + "attention"] = flat(self.first).T @ flat(projected)
        inner = projected @ self.weights["attention"].T
        return gradient + normalize_backward(inner, self.first, self.first_scale)


def bias_of(length, heads):
    distance = np.arange(length)[:, None] - np.arange(length)[None, :]
    bias = -slopes(heads)[:, None, None] * distance.astype(np.float32)
    return np.where(distance < 0, np.float32(-1e9), bias)


def loss_and_gradients(weights, heads, tokens, importance):
    """Of rows of tokens, each predicted from those before it; `importance` is the weight of each prediction."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    importance = (importance[:, 1:] / importance[:, 1:].sum()).astype(np.float32)
    layers = [Layer(weights, "%d." % index, heads) for index in range(len(weights) // 4)]
    bias = bias_of(inputs.shape[1], heads)
    x = weights["embedding"][inputs]
    for layer in layers:
        x = layer.forward(x, bias)
    last, scale = normalize(x)
    shares = softmax(last @ weights["embedding"].T)
    chosen = np.take_along_axis(shares, targets[..., None], -1)
    loss = float(-(np.log(chosen[..., 0] + 1e-9) * importance).sum())
    np.put_along_axis(shares, targets[..., None], chosen - 1, -1)
    shares *= importance[..., None]
    gradients = {"embedding": flat(shares).T @ flat(last)}
    gradient = normalize_backward(shares @ weights["embedding"], last, scale)
    for layer in reversed(layers):
        gradient = layer.backward(gradient, gradients)
    # The embedding is used twice: at the end, and here for the rows of the inputs.
    rows = np.zeros((inputs.size, len(weights["embedding"])), dtype=np.float32)
    rows[np.arange(inputs.size), inputs.reshape(-1)] = 1
    gradients["embedding"] += rows.T @ flat(gradient)
    return loss, gradients


class Adam:
    def __init__(self, weights, rate, steps):
        self.weights = weights
        self.rate = rate
        self.steps = steps
        self.step = 0
        self.means = {name: np.zeros_like(value) for name, value in weights.items()}
        self.squares = {name: np.zeros_like(value) for name, value in weights.items()}

    def update(self, gradients):
        """A step; the rate rises at first, and falls to nothing at the end."""
        self.step += 1
        rate = self.rate * min(self.step / WARM_UP, 1) * (1 - (self.step - 1) / self.steps)
        rate *= np.sqrt(1 - DECAY[1] ** self.step) / (1 - DECAY[0] ** self.step)
        length = np.sqrt(sum(float((gradient * gradient).sum()) for gradient in gradients.values()))
        shrink = np.float32(min(1, 1 / (length + 1e-6)))
        for name, gradient in gradients.items():
            gradient = gradient * shrink
            mean, square = self.means[name], self.squares[name]
            mean += (1 - DECAY[0]) * (gradient - mean)
            square += (1 - DECAY[1]) * (gradient * gradient - square)
            self.weights[name] -= np.float32(rate) * mean / (np.sqrt(square) + 1e-8)
