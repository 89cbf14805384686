"""A server for unit tests of the worker's modules: it notes what it is told, and answers as the test says."""

import os
import queue
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "src/backend/python/worker"))

import numpy as np  # noqa: E402
from nereid_python import calls, control, kinds, wire  # noqa: E402

link = wire.link
NAMES = {
    number: name
    for name, number in vars(kinds).items()
    if name.isupper() and name.split("_")[0] in ("LOG", "METRIC", "FAMILY", "MODEL", "CALL", "SEND", "LENT")
}
for _name in ("SENDS_BETWEEN_QUERIES",):
    NAMES = {number: name for number, name in NAMES.items() if name != _name}


class Slot:
    """As wire.Slot is to its users."""

    def __init__(self, server, number):
        self.server = server
        self.number = number
        self.fd, self.bell = os.pipe()
        self.answers = queue.Queue()
        # The number of answers, and the bell word.
        self.words, self.tail = [0] * (wire.SLOT_BELL // 8 + 1), 0
        self.rings_at = None
        self.rings = 0

    def put(self, *answers):
        for answer in answers:
            self.answers.put(answer)
            self.words[0] += 1
            (self.rings_at or self).ring()

    def ring(self, is_due=False):
        if self.is_wanted or is_due:
            self.refuse_bell()
            self.rings += 1
            os.write(self.bell, b"x")

    def ring_at(self, other):
        self.rings_at = other

    @property
    def is_wanted(self):
        return self.words[wire.SLOT_BELL // 8] != 0

    def want_bell(self):
        self.words[wire.SLOT_BELL // 8] = wire.FRAMES

    refuse_bell, take_bell = wire.Slot.refuse_bell, wire.Slot.take_bell

    def poll(self):
        try:
            answer = self.answers.get_nowait()
        except queue.Empty:
            return wire.NOTHING
        self.tail += 1
        return self._value(answer)

    def wait(self):
        answer = self.answers.get(timeout=300)
        self.tail += 1
        return self._value(answer)

    def close(self):
        self.rings_at = None
        self.server.closed.append(self.number)

    @staticmethod
    def _value(answer):
        if isinstance(answer, wire.Refused):
            raise answer
        return answer


class Asked:
    """The slot of a query."""

    def __init__(self, answer):
        self.answer = answer

    def wait(self):
        return Slot._value(self.answer())

    def close(self):
        pass


class Server:
    """Stands for the server, until another one is made."""

    def __init__(self):
        self.lock = threading.Lock()
        self.told = []
        self.asked = []
        self.slots = []
        # Those of calls, in the calls' order.
        self.calling = []
        self.closed = []
        self.answer = lambda kind, payload: None
        self.called = lambda slot, message: None
        self.memory = {}
        self.held = []
        link.is_connected = True
        link.main = threading.get_ident()
        link.cancelled = bytearray(64)
        link.lock = threading.RLock()
        link.lent, link.lent_bytes, link.lent_count, link.let_go = {}, 0, 0, None
        for name in ("notify", "query", "ask", "open_slot", "place", "hold", "view", "mark", "follow", "discard"):
            setattr(link, name, getattr(self, name))
        calls.allow(True)
        control.set_model_dir("/models/probe/1")

    def notify(self, kind, *payload):
        self.told.append((NAMES[kind],) + payload)
        if kind == kinds.CALL:
            self.calling.append(self.slots[payload[1]])
            self.called(self.slots[payload[1]], payload)

    def query(self, kind, *payload):
        return self.ask(kind, *payload).wait()

    def ask(self, kind, *payload):
        self.asked.append((NAMES[kind],) + payload)
        return Asked(lambda: self.answer(NAMES[kind], payload))

    def mark(self):
        return threading.get_ident()

    def follow(self, marked):
        pass

    def discard(self, outputs):
        for output in outputs:
            self.memory.pop(output[3], None)
            if type(output[3]) is tuple and len(output[3]) == 6 and output[3][3] < 0:
                link.forget([-output[3][3]])

    def open_slot(self):
        with self.lock:
            slot = Slot(self, len(self.slots))
            self.slots.append(slot)
        return slot

    def place(self, data):
        """Small things as they are, larger ones as a reference; both as the real one does."""
        content = data if type(data) is bytes else data.tobytes()
        if len(content) <= wire.INLINE_MAX:
            return content
        offset = 64 * len(self.memory)
        self.memory[(9, offset, len(content))] = content
        return (9, offset, len(content))

    def share(self, content):
        """A range of the server's memory."""
        data = (1, 64 * len(self.memory), len(content), 500 + len(self.memory))
        self.memory[data] = np.frombuffer(bytearray(content), np.uint8)
        return data

    def hold(self, data):
        self.held.append(data)

    def view(self, data):
        return self.memory[data]


def tensor(name, array):
    """A tensor as a message carries it."""
    from nereid_python import strings, types

    number = types.number_of_array(array.dtype)
    data = strings.encode(array) if number == types.BYTES else array.tobytes()
    return (name, number, array.shape, data)


def received(wire):
    """A tensor of a message, as models see it."""
    from nereid_python.tensor import incoming

    return incoming((wire,))[0]


def request(inputs=(), token=3, decoupled=False, outputs=("OUT",), **facts):
    """A request as the loop makes it."""
    from nereid_python.request import InferenceRequest

    known = dict(id="", correlation=0, flags=0, timeout=0, parameters="{}", trace=None)
    known.update(facts)
    values = (
        token,
        known["id"],
        known["correlation"],
        known["flags"],
        known["timeout"],
        known["parameters"],
        outputs,
        known["trace"],
        tuple(inputs),
    )
    return InferenceRequest.received(values, decoupled)


def outcome(action):
    """What an action gives: its value, or the name of its exception and the text."""
    try:
        return action()
    except Exception as error:
        return (type(error).__name__, str(error))
