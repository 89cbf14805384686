"""Parameters of requests and responses: dictionaries of models, pairs of messages, and their JSON text."""

import json

from .errors import TritonModelException

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_KNOWN = (bool, int, str)


def pairs_of(parameters):
    """The pairs of a model's dictionary, or of None."""
    if parameters is None:
        return ()
    if not isinstance(parameters, dict):
        raise TritonModelException("Expect parameters to have type dict, found type %s" % (type(parameters),))
    pairs = []
    for name, value in parameters.items():
        if not isinstance(name, str):
            raise TritonModelException("Expect parameters keys to have type str, found type %s" % (type(name),))
        if not isinstance(value, _KNOWN):
            raise TritonModelException(
                "Expect parameters values to have type bool/int/str, found type %s" % (type(value),)
            )
        if type(value) not in _KNOWN:
            # A subclass; bool has none.
            value = str.__str__(value) if isinstance(value, str) else int(value)
        if type(value) is int and not _LEAST <= value <= _MOST:
            raise TritonModelException("Unsupported value type on parameters: '%s' does not fit into 64 bits" % name)
        pairs.append((str(name), value))
    return tuple(pairs)


def text_of(pairs):
    """The JSON text of a message's pairs."""
    return json.dumps(dict(pairs)) if pairs else "{}"
