"""Memory that a worker cuts itself: classes, what is joined again, what goes for a larger segment; and its sweeps."""

import gc
import threading
import types
import unittest
import weakref

import fake  # noqa: F401: finds the modules
from nereid_python import wire

KIB = 1024


class Server(wire.Link):
    """A link whose server gives segments up to a bound, and refuses what is more."""

    def __init__(self, most):
        super().__init__()
        self.lock = threading.RLock()
        self.socket_lock = threading.RLock()
        self.segments, self.free, self.taken, self.uncut = {}, {}, {}, {}
        self.held, self.kept, self.released = {}, {}, []
        self.given = {}
        # Nothing was sent by another thread.
        self.main, self.words = threading.get_ident(), [0]
        self.aside = types.SimpleNamespace(pushed=0, handled_word=0)
        self.most, self.asked, self.number = most, [], 0

    def send(self, kind, value):
        assert kind == wire.NEED_SEGMENT
        self.asked.append(value)

    def _take_message(self):
        length, gone = self.asked[-1]
        length = -(-length // 4096) * 4096
        left = sum(size for number, size in self.given.items() if number not in gone)
        if left + length > self.most:
            raise wire.Refused(1, "no more")
        for number in gone:
            del self.given[number]
        self.number += 1
        self.given[self.number] = length
        self.segments[self.number] = bytearray(length)
        return ("segment", self.number, length, True, ())

    def put(self, length):
        return self.put_bytes(b"\1" * length)

    def back(self, *places):
        self.take_back([(number << wire.PLACE_BITS) | offset for number, offset, _ in places])


class Memory(unittest.TestCase):
    def test_what_is_free_can_be_asked_for(self):
        import c_python_backend_utils as native

        self.assertIs(type(native.shared_memory.free_memory()), int)
        server = Server(64 * KIB)
        self.assertEqual(server.free_bytes(), 0)
        first = server.put(30 * KIB)
        rest = server.free_bytes()
        server.back(server.put(rest)) if rest else None
        self.assertEqual(server.free_bytes(), rest)
        server.back(first)
        self.assertGreaterEqual(server.free_bytes(), rest + 30 * KIB)

    def test_one_size_after_the_other_finds_room(self):
        server = Server(64 * KIB)
        for _ in range(3):
            for size in (1, 3, 8, 20, 33, 50, 64, 2, 40, 5):
                place = server.put(size * KIB)
                self.assertEqual(bytes(server.segments[place[0]][place[1] : place[1] + 3]), b"\1\1\1")
                self.assertLessEqual(sum(server.given.values()), 64 * KIB)
                self.assertEqual(set(server.segments), set(server.given))
                server.back(place)
        self.assertEqual(server.taken, {})

    def test_what_is_taken_stays(self):
        server = Server(16 * KIB)
        kept = server.put(3 * KIB)
        other = server.put(8 * KIB)
        with self.assertRaises(wire.Refused):
            server.put(12 * KIB)
        server.back(other)
        large = server.put(12 * KIB)
        self.assertNotEqual(large[0], kept[0])
        self.assertIn(kept[0], server.segments)
        self.assertNotIn(other[0], server.segments)
        with self.assertRaises(wire.Refused):
            server.put(16 * KIB)
        # Nothing was lost over the refusals.
        server.back(kept, large)
        server.back(server.put(16 * KIB))

    def test_places_do_not_overlap(self):
        server = Server(1024 * KIB)
        places = [server.put(size) for size in (1, 64, 65, 5000, 4096, 9000, 100) * 10]
        spans = sorted((number, at, at + wire.class_bytes(length)) for number, at, length in places)
        for (number, _, end), (following, start, _) in zip(spans, spans[1:]):
            self.assertTrue(number != following or end <= start)

    def test_what_is_discarded_is_free_again(self):
        server = Server(16 * KIB)
        server.discard([("A", 1, (1,), server.put(9000)), ("B", 1, (1,), b"x"), ("C", 1, (1,), (1, 2, 3, 4))])
        self.assertEqual(server.taken, {})


    def test_a_refusal_holds_nothing_of_whoever_asked(self):
        """Inputs of an execution are counted by their references, at once."""

        class Held:
            pass

        def ask(server, size):
            held = Held()
            reference = weakref.ref(held)
            try:
                server.put(size)
                was_refused = False
            except wire.Refused:
                was_refused = True
            return reference, was_refused

        gc.disable()
        self.addCleanup(gc.enable)
        server = Server(16 * KIB)
        server.back(server.put(10 * KIB))
        # Refused first, and then joined; and refused for good.
        for size, refused in ((12, False), (15, True)):
            reference, was_refused = ask(server, size * KIB)
            self.assertEqual(was_refused, refused)
            self.assertIsNone(reference())


class Order(unittest.TestCase):
    def test_who_sends_the_other_way_waits_for_what_was_sent_before(self):
        server = Server(0)
        server.output = types.SimpleNamespace(pushed=3, handled_word=1)
        server.words = [0, 2]
        own = server.mark()
        self.assertEqual(own, (server.output, 3))
        server.follow(own)
        thread = threading.Thread(target=server.follow, args=(own,))
        thread.start()
        thread.join(0.05)
        self.assertTrue(thread.is_alive(), "the third is not handled yet")
        server.words[1] = 3
        thread.join(300)
        self.assertFalse(thread.is_alive())


class Sweeps(unittest.TestCase):
    def setUp(self):
        self.server = Server(0)
        self.server.segments[1] = bytearray(4096)

    def data(self, key):
        return tuple([1, 0, 16, key])

    def test_a_range_goes_back_when_nothing_refers_to_it(self):
        data = self.data(7)
        self.server.hold(data)
        self.assertEqual(self.server.sweep(), [])
        view = self.server.view(data)
        del data
        part = view[3:5]
        del view
        self.assertEqual(self.server.sweep(), [])
        del part
        self.assertEqual(self.server.sweep(), [7])
        self.assertEqual(self.server.sweep(), [])

    def test_what_is_kept_is_looked_at_in_turns(self):
        datas = [self.data(key) for key in range(100)]
        for data in datas:
            self.server.hold(data)
        del data
        self.assertEqual(self.server.sweep(), [])
        datas.clear()
        released = []
        for _ in range(7):
            some = self.server.sweep()
            self.assertLessEqual(len(some), 16)
            released += some
        self.assertEqual(sorted(released), list(range(100)))

    def test_all_of_it_where_it_is_asked_for(self):
        datas = [self.data(key) for key in range(100)]
        for data in datas:
            self.server.hold(data)
        del data
        self.server.sweep()
        datas.clear()
        self.assertEqual(len(self.server.sweep(1 << 30)), 100)


if __name__ == "__main__":
    unittest.main()
