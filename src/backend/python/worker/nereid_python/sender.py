"""Senders of responses: any number for a decoupled model, one for others, from any thread."""

import threading
import time
from threading import get_ident

from . import kinds
from .errors import TritonModelException, whole, wrong
from .response import InferenceResponse
from .wire import Refused, fail, link

FINAL = 1

# TRITONSERVER_ERROR_INTERNAL
INTERNAL = 1

# How long a send waits for memory that responses to clients occupy.
PATIENCE_S = 60

# It is held only to count.
_counting = threading.Lock()


class InferenceResponseSender:
    """Sends responses of one request (contract/python_backend.md section 3, "InferenceResponseSender")."""

    __slots__ = (
        "_token",
        "_wanted",
        "_is_decoupled",
        "_sent",
        "_is_closed",
        "_is_returned",
        "_mark",
        "_if_dropped",
        "__weakref__",
    )

    def __init__(self):
        raise TypeError("c_python_backend_utils.InferenceResponseSender: No constructor defined!")

    def send(self, response=None, flags=0):
        """Sends a response, or only the flag FINAL after the last one; waits for a slow client."""
        if response is not None and not isinstance(response, InferenceResponse):
            raise wrong("response", "an InferenceResponse", response)
        if type(flags) is not int:
            flags = whole(flags, "flags", 0, (1 << 32) - 1)
        if flags != 0 and flags != FINAL:
            if flags < 0:
                raise wrong("flags", "a number that is not negative", flags)
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and flags == 0:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        sent = self._account(response is not None, flags)
        # A response that cannot be sent leaves the request open: the model gets the error.
        try:
            wire = None if response is None else self._packed(response)
        except Refused as refused:
            self._take_back(flags)
            raise _refused(refused) from None
        except BaseException:
            self._take_back(flags)
            raise
        if self._mark is not None:
            # The main thread and other threads use different streams to the server.
            link.follow(self._mark)
        has_to_wait = flags == 0 and sent % kinds.SENDS_BETWEEN_QUERIES == 0
        slot = None
        try:
            if has_to_wait or (wire is not None and _has_to_wait(wire, flags)):
                slot = link.ask(kinds.SEND, self._token, wire, flags)
            else:
                link.notify(kinds.SEND, self._token, wire, flags)
        except BaseException as error:
            # Nothing was sent, for want of memory: the request is still open.
            self._take_back(flags)
            if wire is not None:
                link.discard(wire[0])
            if isinstance(error, Refused):
                raise _refused(error) from None
            raise
        if slot is not None:
            try:
                slot.wait()
            except Refused as refused:
                raise _refused(refused) from None
            finally:
                slot.close()
        elif flags == 0:
            self._mark = link.mark()

    def _packed(self, response):
        """The response for its message. Memory of other responses is freed as their clients read them."""
        end = None
        while True:
            try:
                return response.pack(self._wanted)
            except Refused:
                now = time.monotonic()
                end = end or now + PATIENCE_S
                # A refusal while no response is in flight means that it exceeds the limit.
                if now > end or not link.taken:
                    raise
            time.sleep(0.005)

    def is_cancelled(self):
        """Whether the request is cancelled. A cancelled request still needs its FINAL."""
        token = self._token
        # After its end the index of a request may belong to another.
        return token is not None and not self._is_closed and link.cancelled[token & 0xFFFFFFFF] != 0

    def _account(self, has_response, flags):
        """Counts a response before it is sent, with the checks in the specification's order; returns the count."""
        if self._is_decoupled is None:
            raise TritonModelException(
                "Unable to send response. Response sender has no reference to the decoupled state of the model."
            )
        with _counting:
            sent = self._sent
            if not self._is_decoupled:
                if has_response and sent > 0:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send more than one response."
                    )
                if not has_response and sent == 0:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send complete final before sending a "
                        "response."
                    )
            if self._is_closed:
                raise TritonModelException("Unable to send response. Response sender has been closed.")
            self._sent = sent = sent + 1
            self._is_closed = flags == FINAL
        return sent

    def _close(self):
        """Closes it; returns whether it was open."""
        with _counting:
            was_open = not self._is_closed or self._is_returned
            self._is_closed = True
        return was_open

    def __del__(self):
        """Ends a request that nothing can answer any more: execute has returned, and the model has dropped the request
        and its sender without the last response. Without this its client would wait for ever. Takes no lock, because
        the thread that collects garbage may hold it."""
        text = getattr(self, "_if_dropped", None)
        if text is None or self._is_closed:
            return
        self._is_closed = True
        # The one response of a model that is not decoupled was complete without the flag.
        is_complete = not self._is_decoupled and self._sent > 0
        try:
            if self._mark is not None:
                link.follow(self._mark)
            link.notify(kinds.SEND, self._token, None if is_complete else ((), (), (INTERNAL, text)), FINAL)
        except BaseException:
            # Nobody hears of an error in a finalizer.
            fail()

    def _take_back(self, flags):
        with _counting:
            self._sent -= 1
            if flags == FINAL:
                self._is_closed = False


def _refused(refused):
    return TritonModelException("An error occurred while sending a response. " + refused.text)


def _has_to_wait(wire, flags):
    """Whether the sender has to wait until the server has handled a response. It does for a response with memory of the
    server: the server handles messages of the main thread before the release of that memory, but messages of other
    threads only surely so if the sender waits. It also does for large ones, of which few may be in flight."""
    placed = 0
    for output in wire[0]:
        data = output[3]
        if type(data) is tuple:
            if len(data) == 3:
                placed += data[2]
            elif data[3] >= 0 and get_ident() != link.main:
                return True
    return placed > kinds.PLACED_BETWEEN_QUERIES and flags == 0


InferenceResponseSender.__module__ = "c_python_backend_utils"
_new = InferenceResponseSender.__new__


def sender_of(token, wanted, is_decoupled):
    """The sender of a request with the requested outputs `wanted`; is_decoupled is None for a request that the model
    made."""
    sender = _new(InferenceResponseSender)
    sender._token = token
    sender._wanted = wanted
    sender._is_decoupled = is_decoupled
    sender._sent = 0
    sender._is_closed = False
    sender._is_returned = False
    sender._mark = None
    sender._if_dropped = None
    return sender
