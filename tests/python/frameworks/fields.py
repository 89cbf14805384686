"""Encodes protobuf messages by their field numbers, so that models are written without the packages of frameworks."""


def varint(number):
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number, value):
    """A number as varint; a text, bytes or a message with its length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, str):
        value = value.encode()
    return varint(number << 3 | 2) + varint(len(value)) + value


def each(number, values):
    """A repeated field."""
    return b"".join(field(number, value) for value in values)


def entry(number, key, value):
    """An entry of a map from texts to messages."""
    return field(number, field(1, key) + field(2, value))
