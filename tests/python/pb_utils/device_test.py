"""Tensors on a device, which a file of the process stands for: what the server lends, and what a model lends it."""

import ctypes
import gc
import mmap
import os
import random
import unittest
import weakref

import fake
import numpy as np
from dlpack_test import fields
from nereid_python import device, dlpack, kinds, memory, tensor, wire
from nereid_python.request import InferenceRequest

import triton_python_backend_utils as pb_utils

Tensor = pb_utils.Tensor
KEY = memory.ON_DEVICE


class Memory:
    """A device's memory, as a driver on host memory has it."""

    def __init__(self, length=1 << 16):
        self.descriptor = os.memfd_create("device")
        os.ftruncate(self.descriptor, length)
        self.memory = mmap.mmap(self.descriptor, length)
        self.length = length
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def handle(self, offset=0):
        handle = device.HANDLE.pack(device.MAGIC, os.getpid(), self.descriptor, offset, self.length - offset)
        return handle.ljust(64, b"\0")

    def lent(self, array, at=0, key=KEY, number=0, lasts=False):
        """A tensor of the server's."""
        self.memory[at : at + array.nbytes] = array.tobytes()
        kind = dlpack._number_of(array)
        return ("x", kind, array.shape, (self.handle(), at, array.nbytes, key, number, lasts))


class Producer:
    """A library's tensor on a device."""

    def __init__(self, array, place, at=0, number=0):
        place.memory[at : at + array.nbytes] = array.tobytes()
        self.array, self.address, self.number = array, place.address + at, number
        self.asked = []

    def __dlpack_device__(self):
        return (2, self.number)

    def __dlpack__(self, stream=None):
        self.asked.append(stream)
        return dlpack.export_from(
            self.address, self.array.shape, dlpack._number_of(self.array), self.number, self
        )


def bytes_at(capsule, length):
    return ctypes.string_at(fields(capsule).data, length)


class Lent(unittest.TestCase):
    def setUp(self):
        self.server = fake.Server()
        os.environ["NEREID_SIMULATED_GPUS"] = "1"
        self.addCleanup(os.environ.pop, "NEREID_SIMULATED_GPUS")
        self.memory = Memory()
        device._opened.clear()
        device._lent.clear()

    def test_what_a_model_sees_of_it(self):
        made = fake.received(self.memory.lent(np.arange(6, dtype=np.float32).reshape(2, 3), at=512, number=3))
        self.assertFalse(made.is_cpu())
        self.assertEqual((made.name(), made.shape(), made.triton_dtype()), ("x", [2, 3], 11))
        self.assertEqual(made.__dlpack_device__(), (2, 3))
        self.assertEqual(
            fake.outcome(made.as_numpy),
            ("TritonModelException", "Tensor is stored in GPU and cannot be converted to NumPy."),
        )
        self.assertEqual(device._opened, {}, "nobody has asked where it lies")
        for capsule in (made.to_dlpack(), made.__dlpack__(), made.__dlpack__(stream=1)):
            told = fields(capsule)
            self.assertEqual((told.device_type, told.device_id, told.code, told.bits, told.ndim), (2, 3, 2, 32, 2))
            self.assertEqual([told.shape[0], told.shape[1]], [2, 3])
            content = np.arange(6, dtype=np.float32).tobytes()
            self.assertEqual(ctypes.string_at(told.data + told.byte_offset, 24), content)
        self.assertEqual(len(device._opened), 1)

    def test_every_type(self):
        for at, number in enumerate(list(range(1, 13)) + [14]):
            array = np.ones((2, 2), dlpack.STORED_AS[number])
            name, _, shape, data = self.memory.lent(array, at * 256, KEY + at)
            made = fake.received((name, number, shape, data))
            self.assertEqual(bytes_at(made.to_dlpack(), array.nbytes), array.tobytes())
            other = Tensor.from_dlpack("y", made)
            self.assertEqual((other.triton_dtype(), other.shape(), other.is_cpu()), (number, [2, 2], False))

    def test_arguments_of_the_protocol(self):
        made = fake.received(self.memory.lent(np.ones(4, np.int64), number=1))
        made.__dlpack__(dl_device=(2, 1), copy=False)
        self.assertEqual(fake.outcome(lambda: made.__dlpack__(dl_device=(1, 0)))[0], "BufferError")
        self.assertEqual(fake.outcome(lambda: made.__dlpack__(dl_device=(2, 0)))[0], "BufferError")
        self.assertEqual(fake.outcome(lambda: made.__dlpack__(copy=True))[0], "BufferError")

    def test_it_goes_on_as_it_came(self):
        wire_tensor = self.memory.lent(np.ones(4, np.int64))
        made = fake.received(wire_tensor)
        self.assertIs(tensor.outgoing(made), wire_tensor)
        made.to_dlpack()
        self.assertIs(tensor.outgoing(made), wire_tensor)

    def test_a_part_of_it_is_named_as_such(self):
        made = fake.received(self.memory.lent(np.arange(8, dtype=np.int64), at=256))
        capsule = made.to_dlpack()
        whole = fields(capsule).data

        class Part:
            address, length, device, owner = whole + 16, 24, 0, capsule

        handle, offset, length, key, number, lasts = device.data_of(Part)
        self.assertEqual((handle, offset, length, key), (self.memory.handle(), 272, 24, KEY))
        back = Tensor.from_dlpack("y", made)
        self.assertEqual(tensor.outgoing(back)[3], made._wire[3])
        self.assertEqual(fake.link.lent, {})

    def test_a_handle_that_leads_nowhere(self):
        data = (device.HANDLE.pack(device.MAGIC, os.getpid(), 9999, 0, 4096).ljust(64, b"\0"), 0, 8, KEY, 0, False)
        made = fake.received(("x", 9, (1,), data))
        kind, text = fake.outcome(made.to_dlpack)
        self.assertEqual(kind, "TritonModelException")
        self.assertIn("Failed to use the memory of a GPU", text)
        self.assertEqual((device._opened, device._lent), ({}, {}))

    def test_without_a_driver(self):
        made = fake.received(("x", 9, (1,), (b"\1" * 64, 0, 8, KEY, 0, False)))
        if not os.path.exists("/dev/nvidiactl"):
            kind, text = fake.outcome(made.to_dlpack)
            self.assertEqual(kind, "TritonModelException")
            self.assertIn("libcuda.so.1", text)


class Swept(unittest.TestCase):
    """When the server hears that its memory is used no more."""

    def setUp(self):
        fake.Server()
        device._opened.clear()
        device._lent.clear()
        self.memory = Memory()
        self.waits = []
        self.closed = []
        wait, close = device._simulated.wait, device._simulated.close
        device._simulated.wait = self.waits.append
        device._simulated.close = lambda number, kept: self.closed.append(number)
        self.addCleanup(setattr, device._simulated, "wait", wait)
        self.addCleanup(setattr, device._simulated, "close", close)

    def link(self):
        """One whose sweeps are the real ones, for the module under test as well."""
        link = memory.Memory()
        link.lock = fake.link.lock
        link._settle_others = lambda: None
        self.addCleanup(setattr, device, "link", device.link)
        self.addCleanup(setattr, tensor, "link", tensor.link)
        device.link = tensor.link = link
        return link

    def test_a_capsule_keeps_it(self):
        link = self.link()
        made = tensor.incoming([self.memory.lent(np.ones(4, np.int64), number=2)])[0]
        self.assertEqual(link.sweep(), [])
        capsule = made.to_dlpack()
        del made
        gc.collect()
        self.assertEqual((link.sweep(), self.waits), ([], []))
        self.assertEqual(bytes_at(capsule, 32), np.ones(4, np.int64).tobytes())
        del capsule
        gc.collect()
        self.assertEqual((link.sweep(), self.waits, self.closed), ([KEY], [2], [2]))
        self.assertEqual((device._opened, device._lent), ({}, {}))

    def test_a_message_keeps_it_until_it_is_said(self):
        link = self.link()
        os.environ["NEREID_SIMULATED_GPUS"] = "1"
        self.addCleanup(os.environ.pop, "NEREID_SIMULATED_GPUS")
        made = tensor.incoming([self.memory.lent(np.ones(4, np.int64))])
        message = tensor.outgoing(Tensor.from_dlpack("y", made[0]))
        made.clear()
        gc.collect()
        self.assertEqual((message[3][3], link.sweep()), (KEY, []))
        del message
        self.assertEqual(link.sweep(), [KEY])

    def test_an_allocation_is_closed_with_the_last_tensor_in_it(self):
        link = self.link()
        array = np.ones(4, np.int64)
        made = tensor.incoming([self.memory.lent(array), self.memory.lent(array, at=256, key=KEY + 1)])
        for one in made:
            one.to_dlpack()
        del made[0], one
        self.assertEqual((link.sweep(), self.closed), ([KEY + 1 if made[0]._wire[3][3] == KEY else KEY], []))
        made.clear()
        self.assertEqual((len(link.sweep()), self.closed), (1, [0]))

    def test_one_that_lasts_stays_open(self):
        link = self.link()
        for _ in range(2):
            made = tensor.incoming([self.memory.lent(np.ones(4, np.int64), lasts=True)])
            made[0].to_dlpack()
            made.clear()
            self.assertEqual((link.sweep(), self.closed, len(device._opened)), ([KEY], [], 1))
        self.assertEqual(self.waits, [0, 0])

    def test_what_nobody_opened_is_not_waited_for(self):
        link = self.link()
        made = tensor.incoming([self.memory.lent(np.ones(4, np.int64))])
        made.clear()
        self.assertEqual((link.sweep(), self.waits), ([KEY], []))


class Copied(unittest.TestCase):
    """A model's own memory that is copied to a pool."""

    def setUp(self):
        self.server = fake.Server()
        os.environ["NEREID_SIMULATED_GPUS"] = "1"
        self.addCleanup(os.environ.pop, "NEREID_SIMULATED_GPUS")
        device._lent.clear()
        device._pools.clear()
        self.addCleanup(device._pools.clear)
        self.memory = Memory()

    def sent(self, array, number=0):
        made = Tensor.from_dlpack("y", Producer(array, self.memory, number=number))
        return tensor.outgoing(made)[3]

    def content(self, data):
        _, _, descriptor, start, _ = device.HANDLE.unpack_from(data[0])
        return os.pread(descriptor, data[2], start + data[1])

    def test_its_owner_is_free_and_the_slot_is_used_again(self):
        array = np.arange(700, dtype=np.float32)
        source = Producer(array, self.memory, at=768, number=1)
        gone = weakref.ref(source)
        data = tensor.outgoing(Tensor.from_dlpack("y", source))[3]
        del source
        gc.collect()
        self.assertIsNone(gone())
        self.assertEqual((data[2:], self.content(data)), ((2800, -1, 1, True), array.tobytes()))
        other = self.sent(array + 1, number=1)
        self.assertEqual((other[0], other[1]), (data[0], data[1] + 3072), "one handle for all")
        self.assertEqual((self.content(data), self.content(other)), (array.tobytes(), (array + 1).tobytes()))
        fake.link.forget([1])
        self.assertEqual(self.sent(array, number=1)[1], data[1])
        fake.link.forget([2, 3])
        self.assertEqual(device._pools[1].unused, [(0, device.POOL_BYTES)])
        self.assertEqual((fake.link.lent, fake.link.lent_bytes), ({}, 0))

    def test_what_is_too_long_or_finds_no_slot_has_a_handle_of_its_own(self):
        self.memory = Memory(1 << 20)
        self.server.answer = lambda kind, payload: []
        self.addCleanup(setattr, fake.link, "lent_most", fake.link.lent_most)
        self.assertFalse(self.sent(np.ones(device.COPIED_MAX + 1, np.uint8))[5])
        longest = np.ones(device.COPIED_MAX, np.uint8)
        lasts = [self.sent(longest)[5] for _ in range(device.POOL_BYTES // device.COPIED_MAX + 1)]
        self.assertEqual((lasts.count(True), lasts[-1]), (device.POOL_BYTES // device.COPIED_MAX, False))

    def test_a_device_without_memory_for_a_pool(self):
        own = device._simulated
        self.addCleanup(setattr, device, "_simulated", own)
        asked = []

        class Full(device._Simulated):
            def allocate(self, number, length):
                asked.append(number)
                raise device.TritonModelException("full")

        device._simulated = Full()
        array = np.ones(5, np.float32)
        for _ in range(2):
            data = self.sent(array)
            self.assertEqual((data[5], self.content(data)), (False, array.tobytes()))
        self.assertEqual(asked, [0], "once")

    def test_slots_are_apart_and_come_back(self):
        pool = device._Pool(device._simulated, 0)
        choice, slots = random.Random(7), []
        for _ in range(3000):
            if slots and choice.random() < 0.5:
                slots.pop(choice.randrange(len(slots)))
            else:
                slots.append(pool.take(choice.randrange(1, 300_000)))
                slots = [one for one in slots if one is not None]
            parts = sorted([(one.begin, one.end) for one in slots] + pool.unused)
            ends = [0] + [end for _, end in parts]
            self.assertEqual([begin for begin, _ in parts] + [device.POOL_BYTES], ends)
        slots.clear()
        self.assertEqual(pool.unused, [(0, device.POOL_BYTES)])


class Foreign(unittest.TestCase):
    """A model's own memory, of tensors that are too long to be copied."""

    def setUp(self):
        self.server = fake.Server()
        self.addCleanup(setattr, device, "COPIED_MAX", device.COPIED_MAX)
        device.COPIED_MAX = 0
        os.environ["NEREID_SIMULATED_GPUS"] = "1"
        self.addCleanup(os.environ.pop, "NEREID_SIMULATED_GPUS")
        device._opened.clear()
        device._lent.clear()
        self.memory = Memory()

    def test_it_is_lent_by_its_allocation(self):
        array = np.arange(5, dtype=np.float32)
        made = Tensor.from_dlpack("y", Producer(array, self.memory, at=768, number=1))
        self.assertEqual((made.is_cpu(), made.shape(), made.triton_dtype()), (False, [5], 11))
        self.assertEqual(made.__dlpack_device__(), (2, 1))
        name, number, shape, (handle, offset, length, key, place, lasts) = tensor.outgoing(made)
        self.assertEqual((name, number, shape, length, key, place, lasts), ("y", 11, (5,), 20, -1, 1, False))
        magic, process, descriptor, start, whole = device.HANDLE.unpack_from(handle)
        self.assertEqual((magic, process, len(handle)), (device.MAGIC, os.getpid(), 64))
        self.assertEqual(os.pread(descriptor, 20, start + offset), array.tobytes())
        self.assertEqual(bytes_at(made.to_dlpack(), 20), array.tobytes())

    def test_a_file_that_ends_within_a_page(self):
        place = Memory(5000)
        made = Tensor.from_dlpack("y", Producer(np.ones(5, np.float32), place))
        handle = tensor.outgoing(made)[3][0]
        self.assertEqual(device.HANDLE.unpack_from(handle)[4], 5000)

    def test_it_stays_until_the_server_needs_it_no_more(self):
        source = Producer(np.ones(5, np.float32), self.memory)
        gone = weakref.ref(source)
        made = Tensor.from_dlpack("y", source)
        del source
        numbers = [-tensor.outgoing(made)[3][3] for _ in range(2)]
        del made
        gc.collect()
        self.assertIsNotNone(gone())
        fake.link.forget(numbers[:1])
        gc.collect()
        self.assertIsNotNone(gone())
        fake.link.forget(numbers + [77])
        gc.collect()
        self.assertIsNone(gone())
        self.assertEqual((fake.link.lent, fake.link.lent_bytes), ({}, 0))

    def test_in_a_long_execution_the_server_is_asked(self):
        made = Tensor.from_dlpack("y", Producer(np.ones(5, np.float32), self.memory))
        self.server.answer = lambda kind, payload: list(fake.link.lent)[:-1]
        most = 0
        for _ in range(100):
            tensor.outgoing(made)
            most = max(most, len(fake.link.lent))
        self.assertEqual((most, self.server.asked[0]), (memory.LENT_MIN, ("LENT",)))

    def test_what_is_not_sent_is_not_lent(self):
        made = Tensor.from_dlpack("y", Producer(np.ones(5, np.float32), self.memory))
        broken = pb_utils.Tensor("z", np.array(["\ud800"], dtype=np.object_))
        response = pb_utils.InferenceResponse([made, broken])
        self.assertEqual(fake.outcome(lambda: response.pack(("y", "z")))[0], "TritonModelException")
        self.assertEqual(fake.link.lent, {})

    def test_an_allocation_that_cannot_be_shared_is_brought(self):
        array = np.arange(2000, dtype=np.float32)
        kept = mmap.mmap(-1, 8192)
        address = ctypes.addressof(ctypes.c_char.from_buffer(kept))
        kept[: array.nbytes] = array.tobytes()
        foreign = device.Foreign(address, array.nbytes, 0, kept)
        data = device.data_of(foreign)
        self.assertEqual(bytes(data), array.tobytes())
        self.assertEqual(fake.link.lent, {})

    def test_an_empty_one_is_of_the_host(self):
        made = Tensor.from_dlpack("y", Producer(np.ones((0, 3), np.float32), self.memory))
        self.assertTrue(made.is_cpu())
        self.assertEqual(tensor.outgoing(made), ("y", 11, (0, 3), b""))

    def test_a_producer_is_told_of_the_stream(self):
        streams = []
        own = device._simulated
        self.addCleanup(setattr, device, "_simulated", own)

        class Driver(device._Simulated):
            def stream(self, number):
                return 0x5000 + number

            def settle(self, number, stream=None):
                streams.append((number, stream))

        device._simulated = Driver()
        source = Producer(np.ones(3, np.float32), self.memory, number=1)
        made = Tensor.from_dlpack("y", source)
        self.assertEqual((source.asked, streams), ([0x5001], [(1, 0x5001)]))
        tensor.outgoing(made)
        self.assertEqual(streams[1:], [(1, None)], "capsules say nothing of their stream")

    def test_as_an_input_of_another_model(self):
        made = Tensor.from_dlpack("y", Producer(np.ones(3, np.float32), self.memory))
        self.server.called = lambda slot, message: slot.put(((), (), None) and (((), (), None), True))
        memory_wanted = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 1)
        request = InferenceRequest(
            inputs=[made], requested_output_names=["o"], model_name="m", preferred_memory=memory_wanted
        )
        self.assertEqual(request.exec().output_tensors(), [])
        message = self.server.told[0]
        self.assertEqual((message[0], message[-1]), ("CALL", (2, 1)))
        self.assertEqual(message[1 + 2 + 8][0][3][3], -1)


class Kinds(unittest.TestCase):
    def test_numbers(self):
        self.assertEqual((wire.FREED, kinds.LENT), (205, 57))


if __name__ == "__main__":
    unittest.main()
