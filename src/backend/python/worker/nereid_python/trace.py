"""The trace of a request: its context, and the token that makes a request to another model part of it."""


class InferenceTrace:
    """Made by the server; `context` is OpenTelemetry's, as JSON."""

    __slots__ = ("_token", "_context", "__weakref__")

    def __init__(self):
        raise TypeError("c_python_backend_utils.InferenceTrace: No constructor defined!")

    def get_context(self):
        """The context, or None where the request is not traced."""
        return self._context


InferenceTrace.__module__ = "c_python_backend_utils"


def trace_of(token, context):
    """The trace of the request `token`; a token of None is for none."""
    trace = InferenceTrace.__new__(InferenceTrace)
    trace._token = token
    trace._context = context
    return trace


NO_TRACE = trace_of(None, None)
