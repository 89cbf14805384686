"""Requests: those that models receive, and those that they make for other models."""

from . import calls
from .errors import Choice, TritonModelException, flag, text, whole, wrong
from .parameters import pairs_of, text_of
from .response import tensors_of
from .sender import FINAL, sender_of
from .tensor import Tensor
from .tensor import incoming as incoming_tensors
from .trace import NO_TRACE, InferenceTrace, trace_of
from .wire import link

RELEASE_ALL = 1
RELEASE_RESCHEDULE = 2

_U32 = (1 << 32) - 1
_U64 = (1 << 64) - 1
_I64 = (1 << 63) - 1


class MemoryType(Choice):
    """The preferred memory for outputs of another model; numbers of the binding, not those of
    TRITONSERVER_MemoryType."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


class PreferredMemory:
    """The preferred memory for the outputs of a request to another model."""

    __slots__ = ("_wire", "__weakref__")

    def __init__(self, preferred_memory_type, preferred_device_id=0):
        if type(preferred_memory_type) is not MemoryType:
            raise wrong("preferred_memory_type", "a MemoryType", preferred_memory_type)
        device = whole(preferred_device_id, "preferred_device_id", -_I64 - 1, _I64)
        # TRITONSERVER_MemoryType: 0 is CPU, 2 is GPU.
        self._wire = (0 if preferred_memory_type is MemoryType.TRITONSERVER_MEMORY_CPU else 2, device)


PreferredMemory.__module__ = "c_python_backend_utils"


class _Default:
    """No preference."""

    __slots__ = ()
    _wire = None

    def __repr__(self):
        return "no preference"


_DEFAULT_MEMORY = _Default()


class InferenceRequest:
    """A request (contract/python_backend.md section 3, "InferenceRequest").

    `_facts` is the tuple from a message: (token, id, correlation, flags, timeout, parameters, outputs, trace, inputs);
    `_callee` is set for a request that the model made: (model, version, pairs of parameters, preferred memory).
    """

    __slots__ = (
        "_facts",
        "_inputs",
        "_flags",
        "_is_decoupled",
        "_sender",
        "_release_flags",
        "_callee",
        "_trace",
        "__weakref__",
    )

    def __init__(
        self,
        request_id="",
        correlation_id=0,
        inputs=None,
        requested_output_names=None,
        model_name=None,
        model_version=-1,
        flags=0,
        timeout=0,
        preferred_memory=_DEFAULT_MEMORY,
        trace=NO_TRACE,
        parameters=None,
    ):
        request_id = text(request_id, "request_id")
        if correlation_id is None:
            raise wrong("correlation_id", "an int or a str", correlation_id)
        if isinstance(correlation_id, str):
            correlation_id = str(correlation_id)
        elif isinstance(correlation_id, int):
            correlation_id = whole(correlation_id, "correlation_id", 0, _U64)
        else:
            raise TritonModelException("Correlation ID must be integer or string")
        inputs = tensors_of(inputs, "inputs")
        names = [text(name, "a name") for name in tensors_of(requested_output_names, "requested_output_names")]
        model_name = text(model_name, "model_name")
        model_version = whole(model_version, "model_version", -_I64 - 1, _I64)
        self._flags = whole(flags, "flags", 0, _U32)
        timeout = whole(timeout, "timeout", 0, _U64)
        if not isinstance(preferred_memory, (PreferredMemory, _Default)):
            raise wrong("preferred_memory", "a PreferredMemory", preferred_memory)
        if not isinstance(trace, InferenceTrace):
            raise wrong("trace", "an InferenceTrace", trace)
        for tensor in inputs:
            if tensor is None:
                raise TritonModelException(
                    "Input tensor for request with id '%s' and model name '%s' should not be empty."
                    % (request_id, model_name)
                )
            if not isinstance(tensor, Tensor):
                raise wrong("an element of inputs", "a Tensor", tensor)
        if "" in names:
            raise TritonModelException(
                "Requested output name for request with id '%s' and model name '%s' should not be empty."
                % (request_id, model_name)
            )
        pairs = pairs_of(parameters)
        # Names in the order of their first occurrence.
        outputs = tuple(dict.fromkeys(names))
        self._facts = (None, request_id, correlation_id, self._flags, timeout, None, outputs, None, None)
        self._callee = (model_name, model_version, pairs, preferred_memory._wire)
        self._inputs = inputs
        self._trace = trace
        self._is_decoupled = None
        self._sender = None
        self._release_flags = RELEASE_ALL

    def inputs(self):
        return list(self._inputs)

    def request_id(self):
        return self._facts[1]

    def correlation_id(self):
        return self._facts[2]

    def flags(self):
        return self._flags

    def set_flags(self, flags):
        self._flags = whole(flags, "flags", 0, _U32)

    def timeout(self):
        """Microseconds."""
        return self._facts[4]

    def parameters(self):
        """JSON text."""
        return self._facts[5] if self._callee is None else text_of(self._callee[2])

    def requested_output_names(self):
        return set(self._facts[6])

    def trace(self):
        trace = self._trace
        if trace is None:
            facts = self._facts
            trace = self._trace = NO_TRACE if facts[7] is None else trace_of(facts[0], facts[7] or None)
        return trace

    def is_cancelled(self):
        """Whether the request is cancelled: reads a shared byte."""
        sender = self._sender
        if sender is not None:
            return sender.is_cancelled()
        token = self._facts[0]
        return token is not None and link.cancelled[token & 0xFFFFFFFF] != 0

    def get_response_sender(self):
        """The request's sender, always the same."""
        sender = self._sender
        if sender is None:
            facts = self._facts
            sender = self._sender = sender_of(facts[0], facts[6], self._is_decoupled)
        return sender

    def set_release_flags(self, flags):
        """Sets how the request is released when execute returns: RELEASE_ALL, or RELEASE_RESCHEDULE to execute it
        again."""
        self._release_flags = whole(flags, "flags", 0, _U32)

    def exec(self, decoupled=False):
        """Executes the request at another model, and waits: for its response, or with `decoupled` for the iterator of
        its responses."""
        return calls.execute(self, flag(decoupled, "decoupled"))

    def async_exec(self, decoupled=False):
        """Like exec, as an awaitable of the running event loop."""
        return calls.execute_async(self, flag(decoupled, "decoupled"))


    # For the loop.

    @staticmethod
    def received(facts, is_decoupled):
        """A request of a message."""
        request = _new(InferenceRequest)
        request._facts = facts
        request._inputs = incoming_tensors(facts[8])
        request._flags = facts[3]
        request._is_decoupled = is_decoupled
        request._sender = None
        request._release_flags = RELEASE_ALL
        request._callee = None
        request._trace = None
        return request

    def answer(self, response):
        """Counts a response that execute has returned; raises the sender's error if the sender was used."""
        sender = self._sender
        if sender is not None:
            sender._account(True, FINAL)
            sender._is_returned = True

    def is_plain(self):
        """Whether the model has not used its sender or release flags, so that its response needs no further steps."""
        return self._sender is None and self._release_flags != RELEASE_RESCHEDULE

    def is_rescheduled(self):
        return self._release_flags == RELEASE_RESCHEDULE

    def close(self):
        """Closes its sender, because the request is answered in another way. Returns whether its last response was not
        sent yet; one that execute has returned was not."""
        return self.get_response_sender()._close()

    def leave_to_sender(self, if_dropped):
        """Execute has returned without a response. If the request and its sender are dropped before the last response,
        the request fails with the text `if_dropped`."""
        self.get_response_sender()._if_dropped = if_dropped

    def follow(self):
        """Orders the next message about the request after all messages of its sender."""
        sender = self._sender
        if sender is not None and sender._mark is not None:
            link.follow(sender._mark)


InferenceRequest.__module__ = "c_python_backend_utils"
_new = InferenceRequest.__new__
