"""Found beside the model."""

NAME = __name__
