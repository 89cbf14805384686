"""Requests to other models: one slot each, on which its caller waits; hundreds may be under way, from any thread.

A call is one message, and its responses are written to its slot. Threads wait at the bell of that slot, an event loop
at one bell for all of its calls. The slot is reused only after its final response was read. So a dropped call keeps its
slot, in a list, until that response has arrived: the server drops all unread responses of it (kinds.py, CALL_DROPPED).
"""

import itertools
import threading
import weakref
from collections import deque

from . import kinds
from .errors import TritonModelException
from .response import empty
from .response import incoming as incoming_response
from .tensor import outgoing as outgoing_tensor
from .wire import NOTHING, RELIEF_BYTES, Refused, link

# Set by the loop while models may be called: from the end of initialize to the beginning of finalize.
_allowed = False

_next_number = itertools.count(1).__next__
_left = deque()
# The bells of event loops, by the loops' ids: a bell keeps its loop, and is kept by the loop that watches it.
_bells = weakref.WeakValueDictionary()


def allow(allowed):
    """Sets whether other models may be called from now on."""
    global _allowed
    _allowed = allowed


def execute(request, decoupled):
    """The response to a request, or the iterator of its responses."""
    call = Call(request, decoupled)
    if decoupled:
        return _iterator_of(call)
    return _response_of(call.wait()[0])


def execute_async(request, decoupled):
    """A future of the same, of the running event loop. The request is sent when this returns."""
    loop = _running_loop()
    bell = _bells.get(id(loop))
    if bell is None:
        _bells[id(loop)] = bell = _LoopBell(loop)
    call = Call(request, decoupled, bell)
    future = loop.create_future()
    future.add_done_callback(_Awaited(bell, call, future, decoupled).left)
    return future


class Call:
    """A call under way. If it is dropped before its end, the server drops its responses."""

    __slots__ = ("_number", "slot", "_taken", "_inputs", "_mark", "is_over", "__weakref__")

    def __init__(self, request, decoupled, bell=None):
        # From here on the finalizer has to release the slot.
        self.is_over = True
        if not _allowed:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        message = _message_of(request, decoupled)
        if _left:
            _look_after()
        self.slot = slot = _open_slot()
        if bell is not None:
            slot.ring_at(bell.slot)
        self._number = number = _next_number()
        self._taken = 0
        # Ranges of the server among the inputs are kept until the call has ended: the server may read the message late.
        self._inputs = message[_INPUTS]
        try:
            link.notify(kinds.CALL, number, slot.number, *message)
        except BaseException:
            slot.close()
            raise
        # Messages of other threads about the call must be handled after it.
        self._mark = link.mark()
        self.is_over = False

    def leave_loop(self):
        """No event loop waits for further answers: they ring at the slot of the call."""
        # After its end the slot may be another call's.
        if not self.is_over:
            self.slot.ring_at(None)

    def wait(self):
        """Blocks until the next answer: (response of a message or None, is it the last)."""
        answer = self.poll()
        if answer is None:
            self._report_taken()
            answer = self._took(_read(self.slot.wait))
        return answer

    def poll(self):
        """The next answer, or None."""
        answer = _read(self.slot.poll)
        return None if answer is NOTHING else self._took(answer)

    def cancel(self):
        if not self.is_over:
            link.follow(self._mark)
            link.notify(kinds.CALL_CANCEL, self._number)

    def _took(self, answer):
        if link.received > RELIEF_BYTES:
            link.relieve()
        if answer[1]:
            self.is_over = True
            self._inputs = None
            self.slot.close()
            return answer
        self._taken += 1
        if self._taken * 2 >= kinds.WINDOW:
            self._report_taken()
        return answer

    def _report_taken(self):
        """Reports the taken answers: until then the server may hold back further ones for lack of room."""
        if self._taken:
            taken, self._taken = self._taken, 0
            link.notify(kinds.CALL_TOOK, self._number, taken)

    def __del__(self):
        if not self.is_over:
            self.is_over = True
            _left.append((self.slot, self._inputs))
            link.follow(self._mark)
            link.notify(kinds.CALL_DROPPED, self._number)


def _open_slot():
    try:
        return link.open_slot()
    except Refused as refused:
        raise TritonModelException("An error occurred while performing BLS request. " + refused.text) from None


# The index of the inputs in the message below.
_INPUTS = 8


def _message_of(request, decoupled):
    """The call's message, without its number and its slot."""
    if request._callee is None:
        # A request that the model received: it has no preferences for a call.
        model, version, parameters, memory = "", -1, (), None
    else:
        model, version, parameters, memory = request._callee
    facts = request._facts
    inputs = tuple([outgoing_tensor(tensor) for tensor in request._inputs])
    trace = request.trace()._token
    return (
        (model, version, facts[1], facts[2], request._flags, facts[4])
        + (parameters, facts[6], inputs, trace, decoupled, memory)
    )


def _read(read):
    """An answer; a refusal of the call itself becomes one, because every error of a call is a response."""
    try:
        return read()
    except Refused as refused:
        return (((), (), (refused.code, refused.text)), True)


def _look_after():
    """Releases the slots of dropped calls that have ended."""
    for _ in range(len(_left)):
        try:
            slot, inputs = _left.popleft()
        except IndexError:
            return
        answer = _read(slot.poll)
        while answer is not NOTHING and not answer[1]:
            answer = _read(slot.poll)
        if answer is NOTHING:
            _left.append((slot, inputs))
        else:
            slot.close()


def _response_of(wire):
    return empty("Unexpected empty response.") if wire is None else incoming_response(wire)


class ResponseIterator:
    """The responses to a request, in their order. After its end it can be iterated again from the start."""

    __slots__ = ("_call", "_responses", "_next", "_lock", "__weakref__")

    def __init__(self, *_):
        raise TypeError("c_python_backend_utils.ResponseIterator: No constructor defined!")

    def __iter__(self):
        if self._call.is_over:
            self._next = 0
        return self

    def __next__(self):
        with self._lock:
            if self._next == len(self._responses):
                if self._call.is_over:
                    raise StopIteration("Iteration is done for the responses.")
                self._add(self._call.wait())
            response = self._responses[self._next]
            self._next += 1
            return response

    def cancel(self):
        """Cancels the call. Further responses are iterated as before, up to the last one."""
        self._call.cancel()

    def _add(self, answer):
        # A last answer may be empty: only the final flag.
        wire = answer[0]
        self._responses.append(empty() if wire is None else incoming_response(wire))


ResponseIterator.__module__ = "c_python_backend_utils"


def _iterator_of(call):
    iterator = ResponseIterator.__new__(ResponseIterator)
    iterator._call = call
    iterator._responses = []
    iterator._next = 0
    iterator._lock = threading.Lock()
    return iterator


class _LoopBell:
    """Wakes an event loop for the answers of all calls on which it waits: the bell of a slot that gets no answers. The
    server is asked to ring it whenever its callback does not run, and of the answers until its next run one rings. Only
    the loop and the calls keep it: it ends with the loop, or when the loop is closed."""

    __slots__ = ("_loop", "slot", "awaited", "__weakref__")

    def __init__(self, loop):
        self._loop = loop
        # The slots of the calls.
        self.awaited = {}
        self.slot = None
        self.slot = slot = _open_slot()
        slot.want_bell()
        loop.add_reader(slot.fd, self._on_readable)

    def _on_readable(self):
        try:
            self.slot.take_bell()
            self._take_answers()
        except BaseException:
            # A signal handler of the model, for one. What was answered meanwhile may not have rung, and will not.
            self.slot.want_bell()
            self._loop.call_soon(self._on_readable)
            raise

    def _take_answers(self):
        slot = self.slot
        answered = self._answered()
        while True:
            for one in answered:
                one.take()
            slot.want_bell()
            # What was answered before that has not rung.
            answered = self._answered()
            if not answered:
                return
            slot.refuse_bell()

    def _answered(self):
        # All of them are looked at for each ring: a call of Python code for each would take most of the time.
        return [one for one, slot in self.awaited.items() if slot.words[0] != slot.tail]

    def __del__(self):
        if self.slot is not None:
            self.slot.close()


class _Awaited:
    """A call on whose answer an event loop waits."""

    __slots__ = ("_bell", "call", "_future", "_decoupled", "__weakref__")

    def __init__(self, bell, call, future, decoupled):
        self._bell = bell
        self.call = call
        self._future = future
        self._decoupled = decoupled
        bell.awaited[self] = call.slot

    def take(self):
        """Called when there is an answer."""
        try:
            answer = self.call.poll()
            if self._decoupled:
                result = _iterator_of(self.call)
                result._add(answer)
            else:
                result = _response_of(answer[0])
        except BaseException as error:
            self._unwatch()
            if not self._future.done():
                self._future.set_exception(error)
            return
        self._unwatch()
        if not self._future.done():
            self._future.set_result(result)

    def left(self, _):
        """The future is done, maybe because it was cancelled."""
        self._unwatch()
        # The call's finalizer reports its end, if this was the last reference.
        self.call = self._future = None

    def _unwatch(self):
        if self._bell.awaited.pop(self, None) is not None:
            self.call.leave_loop()


def _running_loop():
    # Imported late: the module is large, and most models never need it.
    global _running_loop
    from asyncio import get_running_loop

    _running_loop = get_running_loop
    return get_running_loop()
