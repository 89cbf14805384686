"""BYTES tensors: arrays of objects from and to marshalled lists, one C call for all elements.

The usual form, a length before each element, costs Python code per element. The interpreter's own marshal writes and
reads a list of byte strings in C; the server turns one form into the other. Its version 2 has neither references nor
short forms, so that it is the same in every Python 3; an interpreter with a different marshal is detected at import and
gets the same bytes from Python code.
"""

import marshal
import struct
from operator import countOf

import numpy as np

_VERSION = 2
_LENGTH = struct.Struct("<I")
_PLAIN = {bytes, str}
_ONLY_BYTES = {bytes}


def encode(array):
    """The marshalled list of an array's elements, in C order."""
    elements = array.ravel().tolist()
    # The fastest check that marshal can write them unchanged.
    if countOf(map(type, elements), bytes) == len(elements):
        return _dumps(elements)
    kinds = set(map(type, elements))
    if not kinds <= _PLAIN:
        elements = [_element(element) for element in elements]
        kinds = _ONLY_BYTES
    data = _dumps(elements)
    # Lone surrogates pass marshal, and all start with this byte; in UTF-8 they are an error.
    if str in kinds and b"\xed" in data:
        for element in elements:
            if type(element) is str:
                element.encode("utf-8")
    return data


def decode(data, shape):
    """The array of objects of a marshalled list of byte strings."""
    elements = _loads(data)
    return _objects(elements, object, len(elements)).reshape(shape)


def serialize_byte_tensor(input_tensor):
    """The elements of an array in C order, each with its length before it as a little-endian u32."""
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype != np.object_ and input_tensor.dtype.type is not np.bytes_:
        return None
    parts = []
    for element in input_tensor.ravel().tolist():
        element = _element(element)
        parts.append(_LENGTH.pack(len(element)))
        parts.append(element)
    return b"".join(parts)


def deserialize_bytes_tensor(encoded_tensor):
    """The one-dimensional array of bytes that serialize_byte_tensor made."""
    elements = []
    at, end = 0, len(encoded_tensor)
    while at < end:
        (length,) = _LENGTH.unpack_from(encoded_tensor, at)
        at += _LENGTH.size
        (element,) = struct.unpack_from("<%ds" % length, encoded_tensor, at)
        at += length
        elements.append(element)
    return _objects(elements, object, len(elements))


def _element(element):
    """An element as a byte string; other objects are sent as their texts."""
    return bytes(element) if isinstance(element, bytes) else str(element).encode("utf-8")


def _plain_objects(elements, dtype, count):
    return np.array(elements, dtype=dtype)


try:
    # Twice as fast; available since numpy 1.23.
    np.fromiter([b""], object, 1)
    _objects = np.fromiter
except ValueError:
    _objects = _plain_objects


def _marshal_dumps(elements):
    return marshal.dumps(elements, _VERSION)


def _plain_dumps(elements):
    parts = [b"[", _LENGTH.pack(len(elements))]
    for element in elements:
        if type(element) is str:
            element = element.encode("utf-8", "surrogatepass")
            parts.append(b"u")
        else:
            parts.append(b"s")
        parts.append(_LENGTH.pack(len(element)))
        parts.append(element)
    return b"".join(parts)


def _plain_loads(data):
    data = bytes(data)
    if data[:1] != b"[":
        raise ValueError("not a marshalled list")
    (count,) = _LENGTH.unpack_from(data, 1)
    at, elements = 1 + _LENGTH.size, []
    for _ in range(count):
        letter = data[at : at + 1]
        (length,) = _LENGTH.unpack_from(data, at + 1)
        at += 1 + _LENGTH.size
        element = data[at : at + length]
        at += length
        if len(element) != length or letter not in (b"s", b"u"):
            raise ValueError("not a marshalled list of byte strings")
        elements.append(element if letter == b"s" else element.decode("utf-8", "surrogatepass"))
    return elements


def _marshal_serves():
    """Whether this interpreter's marshal writes and reads the expected bytes."""
    sample = [b"", b"a\0\xff", "text", "t\u00e9\U0001f600", "\udc80", b"x" * 300, b"a\0\xff", "text"]
    try:
        return _marshal_dumps(sample) == _plain_dumps(sample) and marshal.loads(_plain_dumps(sample)) == sample
    except (ValueError, EOFError, TypeError):
        return False


if _marshal_serves():
    _dumps, _loads = _marshal_dumps, marshal.loads
else:
    _dumps, _loads = _plain_dumps, _plain_loads
