"""The streams of a worker: when it rings for what it says, and how it waits for what it is told."""

import marshal
import os
import struct
import sys
import threading
import unittest
import unittest.mock

import fake  # noqa: F401: finds the modules
from nereid_python import wire

SPIN_NS = 5_000_000


class Worker(wire.Link):
    """A link in memory of its own, with pipes for bells; the test is its server."""

    def __init__(self, spin_ns=0):
        super().__init__()
        self.memory = memoryview(bytearray(wire.STREAMS + 3 * wire.STREAM_BYTES))
        self.words = self.memory.cast("Q")
        self.input_bell, self.told_bell = os.pipe()
        self.rung, bell = os.pipe()
        os.set_blocking(self.rung, False)
        os.set_blocking(self.input_bell, False)
        at = wire.STREAMS + wire.STREAM_BYTES
        places = wire.OUTPUT_WORDS, wire.OUTPUT_HANDLED, wire.OUTPUT_BELL, at
        self.output = wire._Output(self.memory, self.words, *places, bell, self.full_fence, None)
        self.server_sleeps()
        self.tail, self.head = 0, 0
        self.main = threading.get_ident()
        self.spin_ns, self.expected_ns, self.is_ring_owed = spin_ns, spin_ns, False

    def told(self, value, rings=True):
        """The server's next message."""
        payload = marshal.dumps(value, 2)
        start = wire.STREAMS + self.head
        self.memory[start : start + 8 + len(payload)] = struct.pack("<II", len(payload), wire.BATCH) + payload
        self.head += (len(payload) + 15) & ~7
        self.words[wire.INPUT_WORDS // 8] = self.head
        if rings:
            os.write(self.told_bell, bytes(8))

    def server_sleeps(self):
        self.words[wire.OUTPUT_BELL // 8] = wire.FRAMES

    def rings(self):
        """How often it has rung since the last question."""
        try:
            return len(os.read(self.rung, 8000)) // 8
        except BlockingIOError:
            return 0

    def said(self):
        return self.words[wire.OUTPUT_WORDS // 8] > 0

    def close(self):
        for one in (self.input_bell, self.told_bell, self.rung, self.output.bell):
            os.close(one)


class Watched:
    """Words of which something happens after so many looks."""

    def __init__(self, words, looks, then):
        self.words, self.looks, self.then = words, looks, then

    def __getitem__(self, at):
        self.looks -= 1
        if self.looks == 0:
            self.then()
        return self.words[at]

    def __setitem__(self, at, value):
        self.words[at] = value


class Rings(unittest.TestCase):
    def setUp(self):
        self.worker = Worker()
        self.addCleanup(self.worker.close)

    def test_a_result_rings_where_nothing_else_is_to_be_done(self):
        self.worker.told(1)
        self.worker.receive()
        self.worker.conclude(wire.DONE, ([], ()))
        self.assertEqual(self.worker.rings(), 1)

    def test_results_of_batches_that_follow_each_other_share_a_ring(self):
        worker = self.worker
        for number in range(3):
            worker.told(number)
        for number in range(3):
            self.assertEqual(worker.receive(), (wire.BATCH, number))
            worker.conclude(wire.DONE, ([], ()))
            self.assertTrue(worker.said())
            self.assertEqual(worker.rings(), 1 if number == 2 else 0)

    def test_a_server_that_is_awake_is_not_rung_for(self):
        worker = self.worker
        for number in range(20):
            worker.send(wire.RELEASED, ([number],))
        # The first one has woken it.
        self.assertEqual(worker.rings(), 1)
        worker.server_sleeps()
        worker.send(wire.RELEASED, ([],))
        self.assertEqual(worker.rings(), 1)

    def test_a_server_that_falls_asleep_without_the_frame_is_rung_for(self):
        worker = self.worker
        worker.words[wire.OUTPUT_BELL // 8] = 0

        def fence():
            # By now the position is visible. This server has looked before.
            self.assertTrue(worker.said())
            worker.server_sleeps()

        worker.output.full_fence = fence
        worker.send(wire.RELEASED, ([],))
        self.assertEqual(worker.rings(), 1)

    def test_what_else_is_said_rings_at_once(self):
        worker = self.worker
        worker.told(0)
        worker.told(1)
        worker.receive()
        worker.conclude(wire.DONE, ([], ()))
        worker.send(wire.RELEASED, ([],))
        self.assertEqual(worker.rings(), 1)

    def test_who_is_about_to_sleep_rings_for_what_it_owes(self):
        worker = self.worker
        worker.told(0)
        worker.told(1)
        worker.receive()
        worker.conclude(wire.DONE, ([], ()))
        # The next one is none that is answered.
        worker.receive()
        self.assertEqual(worker.rings(), 0)
        with self.assertRaises(BlockingIOError):
            # Both bells are read, and then it would sleep.
            worker.receive()
        self.assertEqual(worker.rings(), 1)


class Waits(unittest.TestCase):
    def setUp(self):
        self.worker = Worker(SPIN_NS)
        self.addCleanup(self.worker.close)

    def test_who_expects_a_short_wait_sees_what_nobody_rings_for(self):
        worker = self.worker
        worker.expected_ns = 0
        worker.words = Watched(worker.words, 100, lambda: worker.told("here", False))
        self.assertEqual(worker.receive(), (wire.BATCH, "here"))

    def test_who_is_not_alone_does_not_look(self):
        worker = self.worker
        worker.expected_ns = 0
        over = threading.Event()
        other = threading.Thread(target=over.wait)
        other.start()
        with self.assertRaises(BlockingIOError):
            worker.receive()
        over.set()
        other.join()

    def test_who_sleeps_says_so_and_looks_once_more(self):
        for spin_ns in (0, SPIN_NS):
            worker = Worker(spin_ns)
            self.addCleanup(worker.close)

            def fence():
                # By now the server can see it. What this server says now it says without a ring.
                self.assertEqual(worker.words[wire.INPUT_BELL // 8], wire.FRAMES)
                worker.told("late", False)

            worker.full_fence = fence
            self.assertEqual(worker.receive(), (wire.BATCH, "late"))
            self.assertEqual(worker.words[wire.INPUT_BELL // 8], 0)

    def test_who_knows_nothing_of_its_waits_sleeps(self):
        with self.assertRaises(BlockingIOError):
            self.worker.receive()

    def test_short_waits_are_learnt_and_long_ones_too(self):
        worker = self.worker
        for number in range(3):
            worker.told(number)
        for _ in range(8):
            # The position is another one already.
            worker._await_input(-1)
        self.assertLess(worker.expected_ns, SPIN_NS)
        timer = threading.Timer(10 * SPIN_NS / 1e9, worker.told, ("late",))
        timer.start()
        os.set_blocking(worker.input_bell, True)
        # There are rings for the first three, too.
        worker._await_input(worker.head)
        timer.join()
        self.assertGreater(worker.expected_ns, SPIN_NS // 2)


class SlotTest(unittest.TestCase):
    def setUp(self):
        self.link = wire.Link()
        self.link.slots = []
        self.memory = memoryview(bytearray(wire.SLOT_BYTES))
        self.words = self.memory.cast("Q")
        self.rung, self.bell = os.pipe()
        os.set_blocking(self.rung, False)
        self.addCleanup(os.close, self.rung)
        self.addCleanup(os.close, self.bell)
        self.slot = wire.Slot(self.link, 7, self.rung, self.memory, self.words, 0)

    def answer(self, value):
        payload = marshal.dumps(value, 2)
        head = self.words[0]
        start = wire.SLOT_BYTES - wire.SLOT_STREAM_BYTES + head
        self.memory[start : start + 8 + len(payload)] = struct.pack("<II", len(payload), wire.ANSWER) + payload
        self.words[0] = head + ((len(payload) + 15) & ~7)

    def test_an_answer_that_is_there_is_not_rung_for(self):
        self.answer("here")
        self.link.full_fence = lambda: self.fail("it does not sleep")
        self.assertEqual(self.slot.wait(), "here")

    def test_who_sleeps_says_so_and_looks_once_more(self):
        def fence():
            self.assertEqual(self.words[wire.SLOT_BELL // 8], wire.FRAMES)
            self.answer("late")

        self.link.full_fence = fence
        self.assertEqual(self.slot.wait(), "late")
        self.assertEqual(self.words[wire.SLOT_BELL // 8], 0)

    def test_a_ring_without_an_answer_is_waited_through(self):
        os.set_blocking(self.rung, True)
        os.write(self.bell, bytes(8))

        def later():
            self.answer("at last")
            os.write(self.bell, bytes(8))

        timer = threading.Timer(0.05, later)
        timer.start()
        self.assertEqual(self.slot.wait(), "at last")
        timer.join()

    def test_a_bell_is_taken_once_and_never_waited_for(self):
        self.slot.want_bell()
        self.slot.take_bell()
        # A late ring, for what was taken already.
        os.write(self.bell, bytes(8))
        self.slot.take_bell()
        with self.assertRaises(BlockingIOError):
            os.read(self.rung, 8)
        # Who took down the word rings; a poll would be one system call more.
        self.slot.refuse_bell()
        os.write(self.bell, bytes(8))
        with unittest.mock.patch.object(wire, "_is_readable", lambda _: self.fail("it is")):
            self.slot.take_bell()
        with self.assertRaises(BlockingIOError):
            os.read(self.rung, 8)

    def test_a_slot_goes_back_without_what_its_user_asked_for(self):
        other = wire.Slot(self.link, 0, -1, self.memory, self.words, 0)
        self.slot.want_bell()
        self.slot.ring_at(other)
        self.assertEqual(self.words[wire.SLOT_RINGS // 8], 1)
        # A forked child does not write to the slots of its parent.
        self.link.is_lost = True
        self.slot.close()
        self.assertEqual((self.words[wire.SLOT_RINGS // 8], self.words[wire.SLOT_BELL // 8]), (1, wire.FRAMES))
        self.link.is_lost = False
        self.slot.close()
        self.assertEqual((self.words[wire.SLOT_RINGS // 8], self.words[wire.SLOT_BELL // 8]), (0, 0))


class FenceTest(unittest.TestCase):
    def test_a_frame_is_written_before_the_fence_and_announced_after_it(self):
        worker = Worker()
        start = wire.STREAMS + wire.STREAM_BYTES
        seen = []

        def fence():
            is_written = bytes(worker.memory[start + 8 : start + 13]) == b"frame"
            seen.append((is_written, worker.words[wire.OUTPUT_WORDS // 8]))

        worker.output.fence = fence
        worker.output.push(wire.DONE, b"frame")
        self.assertEqual(seen, [(False, 0), (True, 0)])
        self.assertEqual(worker.words[wire.OUTPUT_WORDS // 8], 16)

    def test_a_frame_is_read_between_two_fences_and_given_back_after_them(self):
        worker = Worker()
        seen = []
        worker.fence = lambda: seen.append((worker.tail, worker.words[(wire.INPUT_WORDS + wire.WORD_STRIDE) // 8]))
        worker.told((1, 2))
        self.assertEqual(worker.receive(), (wire.BATCH, (1, 2)))
        self.assertEqual(seen, [(0, 0), (0, 0)])
        self.assertEqual(worker.words[(wire.INPUT_WORDS + wire.WORD_STRIDE) // 8], worker.tail)

    def test_an_interpreter_without_ctypes_is_refused_with_the_reason(self):
        with unittest.mock.patch.dict(sys.modules, {"ctypes": None}):
            with self.assertRaisesRegex(RuntimeError, "this CPU needs the module ctypes, which this Python lacks"):
                wire._fence_of(-1)
            with self.assertRaisesRegex(RuntimeError, "ctypes"):
                wire._fences_of(-1, True)
            # x86 needs no library.
            self.assertEqual(wire._fences_of(os.dup(0), False), (wire._locked, None))
        self.assertIsNone(wire._locked())


if __name__ == "__main__":
    unittest.main()
