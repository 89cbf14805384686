"""The transport between a worker and its server: streams of frames, slots, and shared memory.

Every message is one marshalled value, read and written by one call of C code. A frame's position is published after its
bytes. A reader that is about to sleep at its doorbell (an eventfd) asks for a ring in its bell word, and looks once
more; a writer looks at that word after the position, and rings only if it is asked to. Between its write and its look
each needs a full memory fence, on every CPU. Either side also reads positions without a doorbell, which needs fences on
CPUs that reorder accesses. Python has none: the server passes a library with one (`fence.rs`). The server's half has
the same layouts (`message.rs`). The rest of the shared memory is in `memory`.
"""

import array
import marshal
import mmap
import os
import socket
import struct
import sys
import threading
import time
import traceback

from . import kinds
from .memory import INLINE_MAX, PLACE_BITS, Memory, Refused, class_bytes  # noqa: F401

VERSION = 5
FAR = 1 << 31
SKIP = 0xFFFFFFFF

# Kinds of messages, from the worker and to the worker.
INITIALIZED = 101
FAILED = 102
COMPLETED = 103
DONE = 104
BATCH_FAILED = 105
NEED_SEGMENT = 106
NEED_SLOTS = 107
RELEASED = 108
FINALIZED = 109
READY = 110
BATCH = 200
INITIALIZE = 201
COMPLETE = 202
FINALIZE = 203
SWEEP = 204
FREED = 205

# Layout of the control segment, in bytes.
INPUT_WORDS = 0
OUTPUT_WORDS = 128
ASIDE_WORDS = 256
# The number of handled messages of each stream.
OUTPUT_HANDLED = 384
ASIDE_HANDLED = 448
# The bell words of the streams' readers.
INPUT_BELL = 512
OUTPUT_BELL = 576
ASIDE_BELL = 640
# In a bell word: the reader sleeps, and is to be woken for a frame.
FRAMES = 1
WORD_STRIDE = 64
CANCEL_BYTES = 4096
OPEN_MAX = 65536
STREAMS = 128 * 1024
STREAM_BYTES = 256 * 1024
STREAM_MASK = STREAM_BYTES - 1
PAYLOAD_MAX = STREAM_BYTES // 2 - 8

SLOTS_PER_BANK = 64
SLOT_BYTES = 4096
SLOT_STREAM_BYTES = 2048
SLOT_MASK = SLOT_STREAM_BYTES - 1
# In a slot: the bell word of its reader; and the slot whose bell is rung for its answers, counted from 1, or 0: its
# own.
SLOT_BELL = 128
SLOT_RINGS = 136
ANSWER = 1
REFUSED = 2

# Received bytes before a call of `relieve` is worth its cost.
RELIEF_BYTES = 4 << 20

_HEAD = struct.Struct("<II")
_ONE = (1).to_bytes(8, sys.byteorder)
_dumps = marshal.dumps
_loads = marshal.loads
_read = os.read
_write = os.write
_clock = time.perf_counter_ns
_get_ident = threading.get_ident
_new_lock = threading.Lock


class _Nothing:
    """The result of polling an empty slot."""

    __slots__ = ()

    def __repr__(self):
        return "NOTHING"


NOTHING = _Nothing()


def _locked():
    """The full memory fence of x86 for an interpreter without ctypes. Whoever takes a lock there executes one locked
    instruction at least, which no access passes in either direction; a new lock is always free. On other CPUs taking a
    lock orders later accesses only, which does not suffice."""
    _new_lock().acquire()


def _fences_of(descriptor, is_weak):
    """The full memory fence, and the one for positions, which only CPUs with weak order need. On aarch64 both are `dmb
    ish`."""
    if is_weak:
        fence = _fence_of(descriptor)
        return fence, fence
    try:
        return _fence_of(descriptor), None
    except (RuntimeError, OSError):
        # There is no ctypes, or the system does not let it map the library.
        os.close(descriptor)
        return _locked, None


def _fence_of(descriptor):
    """The memory fence in a library of the server."""
    try:
        import ctypes
    except ImportError as error:
        # The interpreter was built without libffi.
        text = "this CPU needs the module ctypes, which this Python lacks (%s); install a Python with ctypes" % error
        raise RuntimeError(text) from None
    fence = ctypes.PyDLL("/proc/self/fd/%d" % descriptor).nereid_fence
    os.close(descriptor)
    fence.restype = None
    fence.argtypes = ()
    return fence


def fail():
    """Ends the process for the error that is handled now. For what cannot be made good: a message of the server that is
    lost, or the end of a request that nobody can report. The server fails what was open, and starts another worker."""
    try:
        traceback.print_exc()
    finally:
        os._exit(1)


def _is_readable(descriptor):
    # Not by `select.select`, which takes no descriptor from 1024 on. Only event loops come here, and they import it too.
    from select import POLLIN, poll

    poller = poll()
    poller.register(descriptor, POLLIN)
    return bool(poller.poll(0))


def _lost():
    return Refused(4, "a child of a model's process has no connection to the server")


class _Output:
    """One stream to the server. A finalizer may send during a send: its message is deferred until the end of that
    send."""

    __slots__ = (
        "memory",
        "words",
        "head",
        "head_word",
        "tail_word",
        "handled_word",
        "pushed",
        "base",
        "bell",
        "bell_word",
        "busy",
        "waiting",
        "fence",
        "full_fence",
    )

    def __init__(self, memory, words, at, handled, bell_at, base, bell, full_fence, fence):
        self.memory = memory
        self.words = words
        self.head = 0
        self.head_word = at // 8
        self.tail_word = (at + WORD_STRIDE) // 8
        self.handled_word = handled // 8
        self.pushed = 0
        self.base = base
        self.bell = bell
        self.bell_word = bell_at // 8
        self.busy = False
        self.waiting = []
        self.fence = fence
        self.full_fence = full_fence

    def ring(self):
        """Wakes the server's reader, if it sleeps, for the frames that are published."""
        # Between the position and the bell word: a reader that has not seen the position is seen to sleep.
        self.full_fence()
        words = self.words
        if words[self.bell_word]:
            # A write, where the server would exchange: this is the only writer beside the reader, and it rings in any
            # case, after which the reader asks again.
            words[self.bell_word] = 0
            _write(self.bell, _ONE)

    def push(self, kind, payload, rings=True):
        waiting = self.waiting
        if self.busy:
            waiting.append((kind, payload))
            return
        self.busy = True
        fence = self.fence
        before = self.pushed
        try:
            while True:
                length = len(payload)
                need = (length + 15) & ~7
                head = self.head
                at = head & STREAM_MASK
                skipped = STREAM_BYTES - at if need > STREAM_BYTES - at else 0
                room = STREAM_BYTES - need - skipped
                words = self.words
                while head - words[self.tail_word] > room:
                    # The stream is full: waits until the server has read from it.
                    time.sleep(0.0002)
                if fence is not None:
                    # Between the server's position and the bytes that it has read.
                    fence()
                memory = self.memory
                start = self.base + at
                if skipped:
                    _HEAD.pack_into(memory, start, SKIP, 0)
                    start = self.base
                _HEAD.pack_into(memory, start, length, kind)
                memory[start + 8 : start + 8 + length] = payload
                if fence is not None:
                    # Between the bytes and the position that announces them.
                    fence()
                self.head = words[self.head_word] = head + skipped + need
                self.pushed += 1
                if rings:
                    self.ring()
                if not waiting:
                    return
                kind, payload = waiting.pop(0)
                rings = True
        except BaseException:
            if self.pushed != before:
                # The caller would take its message back, which the server has.
                fail()
            raise
        finally:
            self.busy = False


class Slot:
    """The slot on which a thread waits for the answer to one query. It comes from the link's pool and returns to it."""

    __slots__ = ("number", "fd", "words", "tail", "_link", "_memory", "_base")

    def __init__(self, link, number, fd, memory, words, base):
        self.number = number
        self.fd = fd
        self._link = link
        self._memory = memory
        # The first word is the position of the last answer, and `tail` that of the last one that was read.
        self.words = words
        self.tail = 0
        self._base = base

    def poll(self):
        """The next answer, or NOTHING. A refusal is raised."""
        words = self.words
        while True:
            tail = self.tail
            if words[0] == tail:
                return NOTHING
            fence = self._link.fence
            if fence is not None:
                fence()
            at = tail & SLOT_MASK
            start = self._base + SLOT_BYTES - SLOT_STREAM_BYTES + at
            length, kind = _HEAD.unpack_from(self._memory, start)
            if length == SKIP:
                if fence is not None:
                    fence()
                self.tail = tail = tail + SLOT_STREAM_BYTES - at
                words[WORD_STRIDE // 8] = tail
                continue
            value = _loads(self._memory[start + 8 : start + 8 + length])
            if fence is not None:
                fence()
            self.tail = tail = tail + ((length + 15) & ~7)
            words[WORD_STRIDE // 8] = tail
            if kind & FAR:
                kind &= ~FAR
                value = self._link.fetch(value)
            if kind == REFUSED:
                raise Refused(*value)
            return value

    def has_answer(self):
        return self.words[0] != self.tail

    def want_bell(self):
        """From now on `fd` gets readable for an answer, of this slot or of those that ring for it. To be followed by a
        look for answers that came before."""
        self.words[SLOT_BELL // 8] = FRAMES
        self._link.full_fence()

    def refuse_bell(self):
        """Ends `want_bell`. A ring that is under way may still come."""
        self.words[SLOT_BELL // 8] = 0

    def take_bell(self):
        """To be called when `fd` was readable, before a look for answers. It does not block: an event loop may call it
        more than once for one ring."""
        # Whoever took down the word rings. `fd` itself has to block, for `wait`: its open file is the slot's for ever.
        if not self.words[SLOT_BELL // 8] or _is_readable(self.fd):
            _read(self.fd, 8)

    def ring_at(self, other):
        """Has the server ring the bell of another slot for the answers of this one; None: its own bell."""
        self.words[SLOT_RINGS // 8] = 0 if other is None else other.number + 1

    def wait(self):
        """Blocks until there is an answer."""
        while True:
            value = self.poll()
            if value is not NOTHING:
                return value
            self.want_bell()
            if not self.has_answer():
                _read(self.fd, 8)
            self.refuse_bell()

    def close(self):
        # A forked child writes nothing there: the slot is its parent's.
        if not self._link.is_lost:
            self.refuse_bell()
            self.ring_at(None)
        self._link.slots.append(self)


class Link(Memory):
    """The worker's end. One for the process."""

    def __init__(self):
        super().__init__()
        self.is_connected = False
        self.is_lost = False
        self.is_ring_owed = False
        self.fence = None
        self.full_fence = _locked

    def connect(self, descriptor):
        self.socket = socket.socket(fileno=descriptor)
        for one in (descriptor, descriptor + 1):
            # This and the program's descriptor are not for processes that the model starts.
            os.set_inheritable(one, False)
        hello, descriptors = self._receive_message()
        if hello[0] != "hello" or hello[1] != VERSION:
            raise RuntimeError("the server speaks another version of this protocol: %r" % (hello,))
        control, self.input_bell, output_bell, aside_bell, library = descriptors
        # `full_fence` is called between a write and the look that decides whether to sleep or to ring, `fence` between
        # an access to a position and an access to the bytes that it announces.
        self.full_fence, self.fence = fences = _fences_of(library, hello[3])
        memory = mmap.mmap(control, 0)
        os.close(control)
        self.control = memory
        self.memory = view = memoryview(memory)
        self.words = words = view.cast("Q")
        self.cancelled = view[CANCEL_BYTES : CANCEL_BYTES + OPEN_MAX]
        self.tail = 0
        at = STREAMS + STREAM_BYTES
        self.output = _Output(view, words, OUTPUT_WORDS, OUTPUT_HANDLED, OUTPUT_BELL, at, output_bell, *fences)
        at += STREAM_BYTES
        self.aside = _Output(view, words, ASIDE_WORDS, ASIDE_HANDLED, ASIDE_BELL, at, aside_bell, *fences)
        self.main = _get_ident()
        self.lock = threading.RLock()
        self.socket_lock = threading.RLock()
        self.slots = []
        # How long to spin for the next message before sleeping, and the average of the last waits.
        self.spin_ns = hello[2]
        self.expected_ns = self.spin_ns
        self.is_connected = True
        os.register_at_fork(after_in_child=self._lose)

    def _lose(self):
        """Disconnects a forked child of the worker: it cannot reach the server, and does not write to shared memory."""
        self.is_lost = True
        self.is_ring_owed = False
        self.words = memoryview(bytearray(CANCEL_BYTES)).cast("Q")
        self.tail = 0
        self.lock = threading.RLock()
        self.socket_lock = threading.RLock()
        self.slots = []
        self.free = {}
        self.taken = {}
        self.uncut = {}
        # Open descriptors in the child would hide the worker's end from the server.
        for descriptor in (self.input_bell, self.output.bell, self.aside.bell, self.socket.detach()):
            try:
                os.close(descriptor)
            except OSError:
                pass
        self.input_bell = -1

    # Messages of the server over the socket.

    def _receive_message(self):
        space = socket.CMSG_SPACE(4 * (SLOTS_PER_BANK + 1))
        data, ancillary, _, _ = self.socket.recvmsg(64 * 1024, space, socket.MSG_CMSG_CLOEXEC)
        if not data:
            raise RuntimeError("the server has closed the connection")
        descriptors = array.array("i")
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
        return _loads(data), descriptors

    def _take_message(self):
        """Takes one message from the socket; a refusal is raised. Needs the socket's lock."""
        message, descriptors = self._receive_message()
        try:
            return self._took(message, descriptors)
        except Refused:
            raise
        except BaseException:
            # Limits on memory or descriptors of the process can cause it. The server does not send the message again,
            # and whoever needs it would wait for ever.
            fail()

    def _took(self, message, descriptors):
        what = message[0]
        if what == "segment":
            # It replaces segments without references.
            for number in message[4]:
                self.segments.pop(number, None)
            memory = mmap.mmap(descriptors[0], message[2])
            os.close(descriptors[0])
            self.segments[message[1]] = memory
        elif what == "slots":
            memory = mmap.mmap(descriptors[0], SLOTS_PER_BANK * SLOT_BYTES)
            os.close(descriptors[0])
            view = memoryview(memory)
            first = message[1] * SLOTS_PER_BANK
            for number in range(SLOTS_PER_BANK):
                base = number * SLOT_BYTES
                words = view[base : base + SLOT_BYTES - SLOT_STREAM_BYTES].cast("Q")
                self.slots.append(Slot(self, first + number, descriptors[1 + number], view, words, base))
        elif what == "freed":
            self.take_back(message[1])
        elif what == "refused":
            raise Refused(1, message[1])
        return message

    def segment(self, number):
        """The memory of a segment, which may not have arrived yet."""
        memory = self.segments.get(number)
        if memory is None:
            with self.socket_lock:
                while number not in self.segments:
                    self._take_message()
            memory = self.segments[number]
        return memory

    # Messages.

    def receive(self):
        """The next message to the main thread: its kind and its value."""
        words = self.words
        fence = self.fence
        while True:
            tail = self.tail
            if words[INPUT_WORDS // 8] == tail:
                self._await_input(tail)
            if fence is not None:
                fence()
            at = tail & STREAM_MASK
            start = STREAMS + at
            length, kind = _HEAD.unpack_from(self.memory, start)
            if length == SKIP:
                if fence is not None:
                    fence()
                self.tail = tail = tail + STREAM_BYTES - at
                words[(INPUT_WORDS + WORD_STRIDE) // 8] = tail
                continue
            value = _loads(self.memory[start + 8 : start + 8 + length])
            if fence is not None:
                fence()
            self.tail = tail = tail + ((length + 15) & ~7)
            words[(INPUT_WORDS + WORD_STRIDE) // 8] = tail
            if kind & FAR:
                kind &= ~FAR
                value = self.fetch(value)
            return kind, value

    def _await_input(self, tail):
        """Waits until the server's position changes: spins if that is allowed and the last waits were short, and then
        sleeps."""
        if self.is_ring_owed:
            self.is_ring_owed = False
            self.output.ring()
        words = self.words
        if not self.spin_ns:
            while words[INPUT_WORDS // 8] == tail:
                self._sleep(tail)
            return
        began = _clock()
        # Spinning keeps other threads from running.
        is_worth_it = self.expected_ns < self.spin_ns and threading.active_count() == 1
        until = began + self.spin_ns if is_worth_it else began
        has_slept = False
        while words[INPUT_WORDS // 8] == tail:
            if has_slept or _clock() >= until:
                self._sleep(tail)
                has_slept = True
        # A sleeping thread would not have been woken by then.
        waited = _clock() - began - (self.spin_ns // 2 if has_slept else 0)
        waited = max(0, min(waited, 4 * self.spin_ns))
        self.expected_ns += (waited - self.expected_ns) // 4

    def _sleep(self, tail):
        """Waits at the doorbell, unless the server's position changes before the server can see that."""
        words = self.words
        words[INPUT_BELL // 8] = FRAMES
        self.full_fence()
        if words[INPUT_WORDS // 8] == tail:
            _read(self.input_bell, 8)
        words[INPUT_BELL // 8] = 0

    def fetch(self, place):
        """A message in shared memory, at (segment, offset, length, key)."""
        number, offset, length, key = place
        value = _loads(memoryview(self.segment(number))[offset : offset + length])
        self.released.append(key)
        self.received += length
        return value

    def send(self, kind, value):
        """Sends a message of the loop's own, without a slot. If it raises, nothing was sent."""
        if self.is_lost:
            raise _lost()
        kind, payload = self._packed(kind, value)
        if _get_ident() == self.main:
            self.output.push(kind, payload)
        else:
            with self.lock:
                self.aside.push(kind, payload)

    def _packed(self, kind, value):
        payload = _dumps(value, 2)
        if len(payload) > PAYLOAD_MAX:
            payload = _dumps(self.put_bytes(payload), 2)
            kind |= FAR
        return kind, payload

    def conclude(self, kind, value):
        """Sends the result of a batch. If the next one is here already, a server that sleeps is not woken: it polls for
        the result after a moment, or one ring announces both."""
        if self.is_lost:
            raise _lost()
        self.is_ring_owed = is_owed = self.words[INPUT_WORDS // 8] != self.tail
        kind, payload = self._packed(kind, value)
        self.output.push(kind, payload, not is_owed)

    def mark(self):
        """The position in the calling thread's stream, for `follow`."""
        output = self.output if _get_ident() == self.main else self.aside
        return output, output.pushed

    def follow(self, marked):
        """Orders the next messages of the calling thread after those up to a mark."""
        output, pushed = marked
        if (output is self.output) != (_get_ident() == self.main):
            self.settle(marked)

    def settle(self, marked):
        """Waits until the server has handled the messages up to a mark."""
        output, pushed = marked
        while self.words[output.handled_word] < pushed and not self.is_lost:
            time.sleep(0.0001)
        if self.fence is not None:
            self.fence()

    def _settle_others(self):
        other = self.aside if _get_ident() == self.main else self.output
        self.settle((other, other.pushed))

    def notify(self, kind, *payload):
        """Sends a message without an answer."""
        if not self.is_lost:
            self.send(kind, (None,) + payload)

    def query(self, kind, *payload):
        """Sends a query, and blocks until its answer arrives; other threads run meanwhile."""
        slot = self.ask(kind, *payload)
        try:
            return slot.wait()
        finally:
            slot.close()

    def ask(self, kind, *payload):
        """Sends a query; returns the slot of its answer, for the caller to close. If it raises, nothing was sent."""
        slot = self.open_slot()
        try:
            self.send(kind, (slot.number,) + payload)
        except BaseException:
            slot.close()
            raise
        return slot

    def open_slot(self):
        """A slot of the pool, which grows as needed."""
        if self.is_lost:
            raise _lost()
        while True:
            try:
                return self.slots.pop()
            except IndexError:
                with self.socket_lock:
                    if not self.slots:
                        self.send(NEED_SLOTS, ())
                        while self._take_message()[0] != "slots":
                            pass

    def _request_memory(self, length, gone):
        """True: a segment was added, which replaces those in `gone`. False: ranges were freed. Else code and text of
        the server's refusal. Needs the socket's lock."""
        self.send(NEED_SEGMENT, (length, gone))
        try:
            return self._await_memory()
        except Refused as refused:
            # Not the exception: its traceback would keep the locals alive as long as it is referenced.
            return refused.code, refused.text

    def _query_lent(self):
        """The numbers of the model's lent device tensors that the server no longer needs."""
        return self.query(kinds.LENT)

    def _await_memory(self):
        """Waits for memory: True for a segment, False for freed ranges. Needs the socket's lock."""
        while True:
            message = self._take_message()
            if message[0] == "freed":
                return False
            # Other announced segments are for the server to write.
            if message[0] == "segment" and message[3]:
                with self.lock:
                    self.uncut[message[1]] = (0, message[2])
                return True

    def relieve(self):
        """Releases received ranges without references, during an execution that makes many calls."""
        self.received = 0
        released = self.sweep(64)
        if released:
            self.send(RELEASED, (released,))


link = Link()
