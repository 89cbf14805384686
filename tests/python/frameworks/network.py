"""The network that every format contains: 16 numbers, 8 hidden ones, 4 results. The weights are formulas, which
tests/models/frameworks/reference.rs repeats, so that no file has to be trusted."""

INPUTS, HIDDEN, OUTPUTS = 16, 8, 4


def first_weights():
    """The rows of the first matrix, [16, 8]."""
    return [[((7 * i + 3 * j) % 11 - 5) / 10 for j in range(HIDDEN)] for i in range(INPUTS)]


def biases():
    return [(j - 3) / 4 for j in range(HIDDEN)]


def second_weights():
    """The rows of the second matrix, [8, 4]."""
    return [[((5 * j + 2 * k) % 7 - 3) / 10 for k in range(OUTPUTS)] for j in range(HIDDEN)]


def flat(rows):
    return [number for row in rows for number in row]


def tensors():
    """The constants by name: dimensions and numbers."""
    return {
        "first_weights": ([INPUTS, HIDDEN], flat(first_weights())),
        "biases": ([HIDDEN], biases()),
        "second_weights": ([HIDDEN, OUTPUTS], flat(second_weights())),
    }
