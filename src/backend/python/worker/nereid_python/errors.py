"""What goes wrong, as models see it: errors that are answers, exceptions, and the checks of arguments.

Arguments of the wrong type are TypeErrors, everything else that is wrong with a call is a TritonModelException
(spec: python_backend.md section 3, "Argument errors").
"""

import enum
from operator import index


class TritonModelException(Exception):
    """What a call of this module raises when it is not a matter of types."""


TritonModelException.__module__ = "c_python_backend_utils"


class Choice(enum.Enum):
    """Members of an enumeration of the server's C interface: equal to their numbers, yet no numbers."""

    def __int__(self):
        return self.value

    __index__ = __int__

    def __eq__(self, other):
        if isinstance(other, Choice):
            return self is other
        return isinstance(other, int) and self.value == other

    def __hash__(self):
        return hash(self.value)

    def __str__(self):
        return "%s.%s" % (type(self).__name__, self.name)

    def __repr__(self):
        return "<%s.%s: %d>" % (type(self).__name__, self.name, self.value)


class ErrorCode(Choice):
    """TRITONSERVER_Error_Code."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


ErrorCode.__name__ = ErrorCode.__qualname__ = "__ErrorCode"


class TritonError:
    """An error that a request is answered with. Its code decides the status that the client sees."""

    __slots__ = ("_message", "_code", "__weakref__")

    def __init__(self, message, code=ErrorCode.INTERNAL):
        self._message = message if type(message) is str else text(message, "message")
        if type(code) is not ErrorCode:
            raise wrong("code", "a code of TritonError", code)
        self._code = code

    def message(self):
        return self._message

    def code(self):
        return self._code


for _code in ErrorCode:
    setattr(TritonError, _code.name, _code)


def error_of(number, message):
    """The error that the server tells."""
    try:
        return TritonError(message, ErrorCode(number))
    except ValueError:
        return TritonError(message, ErrorCode.UNKNOWN)


def wrong(argument, expected, value):
    """The TypeError for an argument."""
    return TypeError("%s must be %s, not %s" % (argument, expected, type(value).__name__))


def text(value, argument):
    """A text: byte strings of UTF-8 pass for one."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8")
    raise wrong(argument, "a str", value)


def whole(value, argument, least, most):
    """An integer within its bounds; what stands for one, such as numpy's integers, passes."""
    try:
        number = index(value)
    except TypeError:
        raise wrong(argument, "an int", value) from None
    if least <= number <= most:
        return number
    raise TypeError("%s must be between %d and %d, not %d" % (argument, least, most, number))


def flag(value, argument):
    """A bool."""
    if value is True or value is False:
        return value
    try:
        return bool(index(value))
    except TypeError:
        raise wrong(argument, "a bool", value) from None
