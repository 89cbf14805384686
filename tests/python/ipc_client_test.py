"""The Python client of the shared-memory ring with a peer of its own: its memory, its descriptors, its copies.

The peer is a thread with a real memory object and a real socket. It answers a call with the message that came."""

import array
import ctypes
import os
import socket
import struct
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python" / "ipc"))

import nereid_ipc

RING = 64 * 1024
ARENA = 16 * 1024
SIZE = 4096 + 2 * RING + ARENA
NAME = "ipc-client-test"


class Peer:
    """The server's side: one client, on a thread that ends with the client's socket."""

    def __init__(self, version=1, with_object=True):
        self.directory = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.directory.name, "s")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen()
        self.version = version
        self.object = os.memfd_create(NAME, os.MFD_CLOEXEC)
        os.ftruncate(self.object, SIZE)
        self.with_object = with_object
        self.head, self.tail = 0, 0
        self.memory = memoryview(nereid_ipc.mmap.mmap(self.object, SIZE))
        places = (4096, RING, 4096 + RING, RING, 4096 + 2 * RING, ARENA)
        head = struct.pack("<8sIIQQQQQQQII", b"NRDIPC01", 1, 4096, SIZE, *places, 5, 64) + b"arena"
        self.memory[: len(head)] = head
        self.words = self.memory[:4096].cast("Q")
        # Asleep: the client rings for its frames.
        self.words[1024 // 8] = 1
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        client, _ = self.listener.accept()
        hello = struct.pack("<8sIIQ", b"NRDIPC01", self.version, 0, SIZE)
        socket.send_fds(client, [hello], [self.object] if self.with_object else [])
        try:
            while True:
                while self.tail != self.words[512 // 8]:
                    self.take(client)
                self.words[1024 // 8] = 1
                os.sched_yield()
                if self.tail == self.words[512 // 8] and not client.recv(64):
                    break
                self.words[1024 // 8] = 0
        except (BrokenPipeError, ConnectionResetError):
            pass
        client.close()

    def take(self, client):
        """Takes a frame; bytes of messages go back as they are."""
        at = self.tail % RING
        length, kind = struct.unpack_from("<II", self.memory, 4096 + at)
        if length == 0xFFFFFFFF:
            self.tail += RING - at
        else:
            payload = bytes(self.memory[4096 + at + 8 : 4096 + at + 8 + length])
            self.tail += (8 + length + 7) & ~7
            self.words[640 // 8] = self.tail
            if kind == 2:
                call, _, flags, _ = struct.unpack_from("<IHHQ", payload)
                self.put(client, struct.pack("<II", call, flags) + payload[16:])
            elif kind == 3:
                self.put(client, payload)
        self.words[640 // 8] = self.tail
        self.wake(client)

    def put(self, client, payload):
        frame = (8 + len(payload) + 7) & ~7
        while True:
            at = self.head % RING
            skipped = RING - at if frame > RING - at else 0
            if self.head - self.words[896 // 8] + skipped + frame <= RING:
                break
            os.sched_yield()
        base = 4096 + RING
        if skipped:
            struct.pack_into("<I", self.memory, base + at, 0xFFFFFFFF)
            at = 0
        struct.pack_into("<II", self.memory, base + at, len(payload), 1)
        self.memory[base + at + 8 : base + at + 8 + len(payload)] = payload
        self.head += skipped + frame
        self.words[768 // 8] = self.head
        self.wake(client)

    def wake(self, client):
        os.sched_yield()
        if self.words[1152 // 8]:
            self.words[1152 // 8] = 0
            client.send(b"\x01")

    def close(self):
        self.listener.close()
        self.thread.join(300)
        self.words = self.memory = None
        os.close(self.object)
        self.directory.cleanup()


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def mappings():
    return Path("/proc/self/maps").read_text().count(f"memfd:{NAME}")


class ClientTest(unittest.TestCase):
    def connect(self, **peer):
        self.peer = Peer(**peer)
        self.addCleanup(self.peer.close)
        client = nereid_ipc.Client(self.peer.path)
        self.addCleanup(client.close)
        return client

    def test_messages_of_any_length_come_back(self):
        client = self.connect()
        for length in (0, 1, RING // 2, 3 * RING + 1, 40 * RING):
            message = os.urandom(length)
            self.assertEqual(client.call("Echo", message), message, length)
        words = array.array("i", range(100))
        self.assertEqual(client.call("Echo", words), words.tobytes())

    def test_several_messages_of_one_call_come_back(self):
        client = self.connect()
        messages = [b"", b"one", os.urandom(2 * RING), b"", b"last"]
        call = client.begin("Echo", messages[0], ends=False)
        for message in messages[1:]:
            client.send(call, message)
        client.finish(call)
        events = [client.next(60) for _ in range(len(messages) + 1)]
        self.assertEqual(events, [(call, "message", message) for message in messages] + [(call, "end", None)])

    def test_a_long_message_is_sent_as_parts_of_itself(self):
        client = self.connect()
        message = bytes(20 * RING)
        parts = []
        push = client._push

        def pushed(kind, head, part=b""):
            parts.append(part)
            push(kind, head, part)

        client._push = pushed
        client.call("Echo", message)
        sent = [part for part in parts if len(part) > 0]
        self.assertTrue(len(sent) > 20 and all(part.obj is message for part in sent))

    def test_parts_of_a_long_response_are_collected_in_one_place(self):
        client = self.connect()
        client._take_data(1, struct.pack("<II", 1, 0) + struct.pack(">BI", 0, 6) + b"a")
        place = client._partial[1]
        for letter in b"bcde":
            client._take_data(1, struct.pack("<II", 1, 0) + bytes([letter]))
            self.assertIs(client._partial[1], place)
        client._take_data(1, struct.pack("<II", 1, 0) + b"f" + struct.pack(">BI", 0, 1))
        self.assertEqual(client.next(), (1, "message", b"abcdef"))
        client._take_data(1, struct.pack("<II", 1, 0) + b"g")
        self.assertEqual((client.next(), client._partial), ((1, "message", b"g"), {}))

    def test_nothing_of_a_cancelled_call_is_kept_or_returned(self):
        client = self.connect()
        client._open = {1: 0, 2: 0, 3: 0}
        data = lambda call, flags, part: client._take(1, struct.pack("<II", call, flags) + part)
        data(1, 0, struct.pack(">BI", 0, 96) + b"ab")
        data(2, 1, struct.pack(">BI", 0, 1) + b"q")
        client.cancel(1)
        client.cancel(2)
        # The middle of a tensor, which is no message.
        data(1, 0, bytes(40))
        data(1, 0, bytes(54))
        client._take(2, struct.pack("<III", 1, 1, 0))
        data(3, 1, struct.pack(">BI", 0, 1) + b"x")
        self.assertEqual([client.next(0), client.next(0)], [(3, "message", b"x"), (3, "end", None)])
        self.assertEqual((client.next(0), client._partial, client._open), (None, {}, {}))

    def test_rings_that_are_emptied_are_the_end_and_no_frames(self):
        for emptied, text in ((1, "the server has taken its memory back"), (0, "what the server wrote cannot be")):
            client = self.connect()
            client._open = {1: 0}
            client._take(1, struct.pack("<II", 1, 0) + struct.pack(">BI", 0, 1) + b"x")
            self.peer.words[1280 // 8] = emptied
            self.assertEqual(client.is_emptied, emptied == 1)
            self.peer.words[768 // 8] = 64
            self.assertEqual(client.next(0), (1, "message", b"x"), "it was read before")
            for _ in range(2):
                with self.assertRaisesRegex(nereid_ipc.Closed, text):
                    client.next()

    def test_a_client_sees_which_calls_the_server_has_not_taken(self):
        client = self.connect()
        call = client.begin("Echo", b"x")
        self.assertEqual([client.next(60), client.next(60)], [(call, "message", b"x"), (call, "end", None)])
        client._open = {7: client._head, 8: client._head + 8}
        self.assertEqual([client.is_taken(number) for number in (call, 7, 8)], [True, True, False])

    def test_no_program_that_is_started_inherits_the_object(self):
        inherited = []
        make = nereid_ipc.mmap.mmap

        def mapped(descriptor, *rest):
            inherited.append(os.get_inheritable(descriptor))
            return make(descriptor, *rest)

        self.peer = Peer()
        self.addCleanup(self.peer.close)
        with mock.patch.object(nereid_ipc.mmap, "mmap", mapped):
            nereid_ipc.Client(self.peer.path).close()
        self.assertEqual(inherited, [False])

    def test_nothing_stays_of_a_server_that_cannot_be_used(self):
        for peer in (dict(version=7), dict(with_object=False)):
            before = descriptors()
            with self.assertRaises(nereid_ipc.Refused):
                self.connect(**peer)
            self.doCleanups()
            self.assertEqual(descriptors(), before, peer)

    def test_a_closed_client_has_no_memory_and_takes_no_calls(self):
        client = self.connect()
        client.call("Echo", b"x")
        before = mappings()
        client.close()
        self.assertEqual(mappings(), before - 1)
        for use in (lambda: client.begin("Echo", b""), lambda: client.next(), lambda: client.finish(1)):
            self.assertRaises(nereid_ipc.Closed, use)
        client.close()

    def test_a_slice_of_the_arena_outlives_its_client(self):
        client = self.connect()
        kept = client.arena[:4]
        kept[:] = b"kept"
        client.close()
        self.assertEqual(bytes(kept), b"kept")


class TensorTest(unittest.TestCase):
    def test_tensors_of_any_shape_are_encoded(self):
        grid = ((ctypes.c_int32 * 2) * 3)((1, 2), (3, 4), (5, 6))
        for data, expected in (
            (ctypes.c_int32(7), struct.pack("<i", 7)),
            (((ctypes.c_int32 * 0) * 2)(), b""),
            (grid, struct.pack("<6i", 1, 2, 3, 4, 5, 6)),
            (memoryview(b"abcd")[::2], b"ac"),
            (array.array("f"), b""),
        ):
            message = nereid_ipc.encode_infer_request("m", {"I": ("INT32", [1], data)})
            raw = [bytes(value) for number, value in nereid_ipc._fields(memoryview(message)) if number == 7]
            self.assertEqual(raw, [expected])


if __name__ == "__main__":
    unittest.main()
