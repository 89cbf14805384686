"""Errors for models: errors as responses, exceptions, and the checks of arguments.

Arguments of the wrong type raise TypeErrors, every other error of a call raises a TritonModelException
(contract/python_backend.md section 3, "Argument errors").
"""

import enum
import sys
from operator import index


class TritonModelException(Exception):
    """The exception of this module for errors other than wrong types."""


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
    """An error that a request is answered with. Its code determines the status that the client gets."""

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
    """The error for a code and text from the server."""
    try:
        return TritonError(message, ErrorCode(number))
    except ValueError:
        return TritonError(message, ErrorCode.UNKNOWN)


# The signatures of Triton's native module, by class and function. They are read only to describe an error.
_MODULE = "c_python_backend_utils."
_REQUEST = (
    "(request_id: str = '', correlation_id: object = 0, inputs: List[triton::backend::python::PbTensor], "
    "requested_output_names: List[str], model_name: str, model_version: int = -1, flags: int = 0, timeout: int = 0, "
    "preferred_memory: c_python_backend_utils.PreferredMemory = <c_python_backend_utils.PreferredMemory object>, "
    "trace: c_python_backend_utils.InferenceTrace = <c_python_backend_utils.InferenceTrace object>, "
    "parameters: object = None)"
)
_RESPONSE = (
    "(output_tensors: List[c_python_backend_utils.Tensor] = [], error: c_python_backend_utils.TritonError = None, "
    "parameters: object = None)"
)
_SEND = "(self: %sInferenceResponseSender, response: %sInferenceResponse = None, flags: int = 0) -> None"
_SIGNATURES = {
    ("Tensor", "__init__"): "(arg0: str, arg1: numpy.ndarray)",
    ("InferenceRequest", "__init__"): _REQUEST,
    ("InferenceResponse", "__init__"): _RESPONSE,
    ("TritonError", "__init__"): (
        "(message: str, code: %sTritonError.__ErrorCode = <__ErrorCode.INTERNAL: 1>)" % _MODULE
    ),
    ("PreferredMemory", "__init__"): (
        "(preferred_memory_type: triton::backend::python::PreferredMemory::MemoryType, preferred_device_id: int = 0)"
    ),
    ("MetricFamily", "__init__"): "(name: str, description: str, kind: %sMetricKind)" % _MODULE,
    ("Metric", "increment"): "(self: %sMetric, arg0: float) -> None" % _MODULE,
    ("Metric", "set"): "(self: %sMetric, arg0: float) -> None" % _MODULE,
    ("Metric", "observe"): "(self: %sMetric, arg0: float) -> None" % _MODULE,
    ("InferenceRequest", "set_flags"): "(self: %sInferenceRequest, arg0: int) -> None" % _MODULE,
    ("InferenceRequest", "set_release_flags"): "(self: %sInferenceRequest, arg0: int) -> None" % _MODULE,
    ("InferenceRequest", "exec"): "(self: %sInferenceRequest, decoupled: bool = False) -> object" % _MODULE,
    ("InferenceRequest", "async_exec"): "(self: %sInferenceRequest, decoupled: bool = False) -> object" % _MODULE,
    ("InferenceResponseSender", "send"): _SEND % (_MODULE, _MODULE),
    (None, "from_dlpack"): "(self: str, arg0: object) -> %sTensor" % _MODULE,
    (None, "log"): "(message: str, level: %sLogger.LogLevel = <LogLevel.INFO: 0>) -> None" % _MODULE,
    (None, "log_info"): "(message: str) -> None",
    (None, "log_warn"): "(message: str) -> None",
    (None, "log_error"): "(message: str) -> None",
    (None, "log_verbose"): "(message: str) -> None",
    (None, "load_model"): "(model_name: str, config: str = '', files: object = None) -> None",
    (None, "unload_model"): "(model_name: str, unload_dependents: bool = False) -> None",
    (None, "is_model_ready"): "(model_name: str, model_version: str = '') -> bool",
}
# Stack frames that are searched for a function of the table.
_CALLERS = 5


def wrong(argument, expected, value):
    """The TypeError for an argument: with Triton's text if the function is one of its module."""
    frame = sys._getframe(1)
    for _ in range(_CALLERS):
        if frame is None or not frame.f_globals.get("__name__", "").startswith("nereid_python."):
            break
        text = _mismatch(frame)
        if text is not None:
            return TypeError(text)
        frame = frame.f_back
    return TypeError("%s must be %s, not %s" % (argument, expected, type(value).__name__))


def _mismatch(frame):
    """The text for a call under way in `frame`, if the table has its function."""
    code, values = frame.f_code, frame.f_locals
    names = code.co_varnames[: code.co_argcount]
    owner = type(values["self"]) if names[:1] == ("self",) else None
    classes = [None] if owner is None else [one.__name__ for one in owner.__mro__]
    known = [one for one in classes if (one, code.co_name) in _SIGNATURES]
    if not known:
        return None
    signature, name = _SIGNATURES[known[0], code.co_name], code.co_name
    kind = "constructor" if name == "__init__" else "function"
    if name == "__init__":
        signature = _MODULE + known[0] + signature
        names = names[1:]
    defaults = _defaults_of(frame, owner)
    given = [values.get(one) for one in names]
    # A value other than the default was passed.
    optional = dict(zip(names[len(names) - len(defaults) :], defaults))
    if known[0] == "InferenceRequest" and name == "__init__":
        # Eleven arguments are passed by name; three of them are required, although they have defaults here.
        [optional.pop(one) for one in ("inputs", "requested_output_names", "model_name")]
        pairs = [(one, value) for one, value in zip(names, given) if value is not optional.get(one, optional)]
        shown = "kwargs: " + ", ".join("%s=%r" % pair for pair in pairs)
    else:
        while given and names[len(given) - 1] in optional and given[-1] is optional[names[len(given) - 1]]:
            given.pop()
        shown = ", ".join(map(repr, given))
    text = "%s(): incompatible %s arguments. The following argument types are supported:\n    1. %s\n\nInvoked with: %s"
    return text % (name, kind, signature, shown)


def _defaults_of(frame, owner):
    """The default values of the function in `frame`, of its last arguments."""
    name = frame.f_code.co_name
    holders = [owner] if owner is not None else list(frame.f_globals.values())
    functions = [getattr(one, name, None) for one in holders if isinstance(one, type)] + [frame.f_globals.get(name)]
    for function in functions:
        if getattr(function, "__code__", None) is frame.f_code:
            return function.__defaults__ or ()
    return ()


def text(value, argument):
    """Reads a text: byte strings of UTF-8 are accepted too."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8")
    raise wrong(argument, "a str", value)


def whole(value, argument, least, most):
    """Reads an integer within its bounds; objects that convert to one, such as numpy's integers, are accepted."""
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
