"""Makes one vector of length one of the vectors that the network gives for a sentence's tokens."""

import numpy as np


def pool(token_vectors, attention_mask):
    """The mean over the tokens that are no padding, normalised: [batch, tokens, size] to [batch, size].

    A row without any token is a vector of zeros.
    """
    weights = attention_mask.astype(token_vectors.dtype)
    sums = np.matmul(weights[:, np.newaxis, :], token_vectors)[:, 0, :]
    means = sums / np.maximum(weights.sum(axis=1, keepdims=True), 1e-9)
    lengths = np.sqrt(np.sum(means * means, axis=1, keepdims=True))
    return means / np.maximum(lengths, 1e-12)
