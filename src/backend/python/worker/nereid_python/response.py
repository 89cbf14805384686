"""Responses, which models return, send, and get from other models."""

from .errors import TritonError, TritonModelException, error_of, wrong
from .parameters import pairs_of, text_of
from .tensor import Tensor
from .tensor import incoming as incoming_tensors
from .tensor import outgoing as outgoing_tensor
from .wire import link


class InferenceResponse:
    """Output tensors, or an error (contract/python_backend.md section 3, "InferenceResponse")."""

    __slots__ = ("_tensors", "_error", "_parameters", "__weakref__")

    def __init__(self, output_tensors=(), error=None, parameters=None):
        if type(output_tensors) is not list:
            output_tensors = tensors_of(output_tensors, "output_tensors")
        for tensor in output_tensors:
            if type(tensor) is not Tensor and not isinstance(tensor, Tensor):
                if tensor is None:
                    raise TritonModelException("Output tensor for inference response should not be empty.")
                raise wrong("an element of output_tensors", "a Tensor", tensor)
        if error is not None and not isinstance(error, TritonError):
            raise wrong("error", "a TritonError", error)
        # The model may use its list again.
        self._tensors = output_tensors[:]
        self._error = error
        self._parameters = () if parameters is None else pairs_of(parameters)

    def output_tensors(self):
        return list(self._tensors)

    def has_error(self):
        return self._error is not None

    def error(self):
        return self._error

    def parameters(self):
        """JSON text."""
        return text_of(self._parameters)

    def pack(self, wanted):
        """The response for a message: the outputs with names in `wanted`, and none with an error."""
        error = self._error
        if error is not None:
            return ((), self._parameters, (error._code.value, error._message))
        outputs = []
        try:
            for tensor in self._tensors:
                if tensor._wire[0] in wanted:
                    outputs.append(outgoing_tensor(tensor))
        except BaseException:
            link.discard(outputs)
            raise
        return (tuple(outputs), self._parameters, None)


InferenceResponse.__module__ = "c_python_backend_utils"
_new = InferenceResponse.__new__


def tensors_of(sequence, argument):
    """A sequence's elements, without checks of them."""
    if isinstance(sequence, (str, bytes, dict)) or not hasattr(sequence, "__getitem__"):
        raise wrong(argument, "a list", sequence)
    try:
        return list(sequence)
    except TypeError:
        raise wrong(argument, "a list", sequence) from None


def incoming(wire):
    """A response of a message."""
    outputs, parameters, error = wire
    response = _new(InferenceResponse)
    response._tensors = incoming_tensors(outputs)
    response._parameters = parameters
    response._error = None if error is None else error_of(*error)
    return response


def empty(message=None):
    """A response without outputs, or with an error."""
    response = _new(InferenceResponse)
    response._tensors = []
    response._parameters = ()
    response._error = None if message is None else TritonError(message)
    return response
