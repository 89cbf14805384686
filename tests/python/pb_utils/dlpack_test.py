"""DLPack both ways: with numpy of any age, by capsules alone, and with torch where it is installed."""

import ctypes
import gc
import subprocess
import sys
import unittest
import weakref

import fake
import numpy as np
from nereid_python import dlpack, tensor

import triton_python_backend_utils as pb_utils

Tensor = pb_utils.Tensor
NOT_CONTIGUOUS = (
    "TritonModelException",
    "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported.",
)
HAS_DLPACK = hasattr(np.ndarray, "__dlpack__")


def fields(capsule):
    """What a capsule says of its tensor."""
    address = dlpack._pointer_of(capsule, b"dltensor")
    return dlpack._Managed.from_address(address).tensor


class Capsule:
    """A library that is not numpy, whose memory is never really freed; its deleter notes that it was called."""

    KEPT = []

    def __init__(self, array, code, bits, strides=None, device=(1, 0), lanes=1, offset=0):
        self.KEPT.append(self)
        self.array = array
        self.freed = []
        self.managed = managed = dlpack._Managed()
        managed.tensor.data = array.ctypes.data - offset
        managed.tensor.byte_offset = offset
        managed.tensor.device_type, managed.tensor.device_id = device
        managed.tensor.ndim = array.ndim
        managed.tensor.code, managed.tensor.bits, managed.tensor.lanes = code, bits, lanes
        self.shape = (ctypes.c_int64 * 8)(*array.shape)
        self.strides = None if strides is None else (ctypes.c_int64 * 8)(*strides)
        managed.tensor.shape = ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64))
        if self.strides is not None:
            managed.tensor.strides = ctypes.cast(self.strides, ctypes.POINTER(ctypes.c_int64))
        self.deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.freed.append)
        managed.deleter = ctypes.cast(self.deleter, ctypes.c_void_p)
        self.capsule = dlpack._new_capsule(ctypes.addressof(managed), b"dltensor", None)


class Export(unittest.TestCase):
    def test_every_type(self):
        for number in range(1, 13):
            array = np.ones((2, 3), pb_utils.triton_to_numpy_type(number))
            made = Tensor("x", array)
            for capsule in (made.to_dlpack(), made.__dlpack__(), made.__dlpack__(stream=None)):
                self.assertIn('"dltensor"', repr(capsule))
                told = fields(capsule)
                self.assertEqual((told.device_type, told.device_id, told.ndim, told.lanes), (1, 0, 2, 1))
                self.assertEqual((told.code, told.bits), dlpack._CODES[number])
                self.assertEqual(told.data + told.byte_offset, array.ctypes.data)
                self.assertEqual([told.shape[0], told.shape[1]], [2, 3])
            self.assertEqual(made.__dlpack_device__(), (1, 0))

    def test_bf16(self):
        made = fake.received(("x", 14, (2,), b"\x80\x3f\0\x40"))
        capsule = made.to_dlpack()
        told = fields(capsule)
        self.assertEqual((told.code, told.bits), (4, 16))
        again = Tensor.from_dlpack("y", made)
        self.assertEqual((again.triton_dtype(), again.shape()), (14, [2]))
        self.assertEqual(fake.outcome(again.as_numpy)[0], "TritonModelException")
        fake.Server()
        self.assertEqual(tensor.outgoing(again), ("y", 14, (2,), b"\x80\x3f\0\x40"))

    def test_strings_have_none(self):
        made = Tensor("x", np.array([b"a"], dtype=object))
        expected = ("TritonModelException", "DLPack does not have support for string tensors.")
        self.assertEqual(fake.outcome(made.to_dlpack), expected)
        self.assertEqual(fake.outcome(made.__dlpack__), expected)

    def test_what_must_not_be_written_to_is_exported(self):
        for array in (np.arange(4), np.array([True, False]), np.zeros((0, 2))):
            array.flags.writeable = False
            back = Tensor.from_dlpack("y", Tensor("x", array).to_dlpack())
            self.assertEqual((back.as_numpy().tolist(), back.shape()), (array.tolist(), list(array.shape)))

    def test_newer_arguments(self):
        array = np.arange(3)
        made = Tensor("x", array)
        for arguments in (dict(max_version=(1, 0)), dict(dl_device=(1, 0)), dict(copy=False), dict(copy=None)):
            capsule = made.__dlpack__(**arguments)
            self.assertEqual(fields(capsule).data, array.ctypes.data)
        capsule = made.__dlpack__(copy=True)
        self.assertNotEqual(fields(capsule).data, array.ctypes.data)
        self.assertEqual(fake.outcome(lambda: made.__dlpack__(dl_device=(2, 0)))[0], "BufferError")

    def test_the_capsule_keeps_the_elements(self):
        class Array(np.ndarray):
            pass

        array = np.arange(1000.0).view(Array)
        gone = weakref.ref(array)
        capsule = Tensor("x", array).to_dlpack()
        del array
        gc.collect()
        self.assertIsNotNone(gone())
        back = Tensor.from_dlpack("y", capsule)
        del capsule
        gc.collect()
        self.assertEqual(back.as_numpy()[999], 999.0)
        view = back.as_numpy()[10:]
        del back
        gc.collect()
        self.assertIsNotNone(gone())
        del view
        gc.collect()
        self.assertIsNone(gone())

    def test_an_unused_capsule_lets_go(self):
        class Array(np.ndarray):
            pass

        for kind in (np.float32, np.bool_):
            array = np.ones(10, kind).view(Array)
            gone = weakref.ref(array)
            Tensor("x", array).to_dlpack()
            del array
            gc.collect()
            self.assertIsNone(gone())

    def test_the_exporter_of_old_numpy(self):
        class Array(np.ndarray):
            pass

        for number in list(range(1, 13)) + [14]:
            array = np.ones((2, 2), dlpack.STORED_AS[number]).view(Array)
            gone = weakref.ref(array)
            capsule = dlpack._own_export(array, number)
            back, _, known = dlpack.adopt(capsule)
            self.assertEqual((known, back.tolist(), back.ctypes.data), (number, array.tolist(), array.ctypes.data))
            del array, capsule
            gc.collect()
            self.assertIsNotNone(gone())
            del back
            gc.collect()
            self.assertIsNone(gone())
        array = np.ones(3).view(Array)
        gone = weakref.ref(array)
        dlpack._own_export(array, 12)
        del array
        gc.collect()
        self.assertIsNone(gone(), "a capsule that nobody took")
        self.assertEqual(dlpack._alive, {})

    @unittest.skipUnless(hasattr(np, "from_dlpack"), "numpy has no from_dlpack")
    def test_numpy_reads_it(self):
        for array in (np.arange(6.0).reshape(2, 3), np.float16([1]), np.arange(3, dtype=np.uint8)):
            self.assertEqual(np.from_dlpack(Tensor("x", array)).tolist(), array.tolist())


class Adopt(unittest.TestCase):
    def test_the_name_of_a_tensor(self):
        array = np.arange(3)
        self.assertEqual(
            fake.outcome(lambda: Tensor.from_dlpack("", array)),
            ("TritonModelException", "Tensor name cannot be an empty string."),
        )
        self.assertEqual(fake.outcome(lambda: Tensor.from_dlpack(None, array))[0], "TypeError")

    def test_what_is_no_tensor(self):
        for other in (None, 5, "x", [1]):
            kind, text = fake.outcome(lambda: Tensor.from_dlpack("x", other))
            self.assertEqual(kind, "TritonModelException")
            self.assertTrue(text.startswith("Provided tensor is not supported. Tensor must be a DLPack capsule"), text)

    def test_a_capsule_is_taken_once(self):
        source = Capsule(np.arange(6, dtype=np.int32).reshape(2, 3), 0, 32)
        made = Tensor.from_dlpack("x", source.capsule)
        self.assertIn('"used_dlpack"', repr(source.capsule))
        self.assertEqual((made.shape(), made.triton_dtype()), ([2, 3], 8))
        self.assertEqual(made.as_numpy().tolist(), [[0, 1, 2], [3, 4, 5]])
        made.as_numpy()[0, 0] = 9
        self.assertEqual(source.array[0, 0], 9)
        self.assertEqual(fake.outcome(lambda: Tensor.from_dlpack("x", source.capsule))[0], "TritonModelException")
        view = made.as_numpy()[1]
        del made
        gc.collect()
        self.assertEqual(source.freed, [])
        del view
        gc.collect()
        self.assertEqual(source.freed, [ctypes.addressof(source.managed)])

    def test_types_of_others(self):
        array = np.ones(2, np.int8)
        for code, bits, number in ((6, 8, 1), (0, 1, 1), (1, 1, 1), (1, 8, 2), (0, 8, 6)):
            self.assertEqual(Tensor.from_dlpack("x", Capsule(array, code, bits).capsule).triton_dtype(), number)
        wide = np.ones(2, np.int16)
        self.assertEqual(Tensor.from_dlpack("x", Capsule(wide, 4, 16, offset=64).capsule).triton_dtype(), 14)
        for code, bits, lanes in ((5, 64, 1), (2, 8, 1), (0, 8, 4), (4, 32, 1), (3, 8, 1)):
            source = Capsule(array, code, bits, lanes=lanes)
            self.assertEqual(fake.outcome(lambda: Tensor.from_dlpack("x", source.capsule))[0], "TritonModelException")
            # What is refused is still its owner's.
            self.assertIn('"dltensor"', repr(source.capsule))
            self.assertEqual(source.freed, [])

    def test_strides(self):
        array = np.arange(6, dtype=np.int64).reshape(2, 3)
        for strides in ((3, 1), None):
            self.assertEqual(Tensor.from_dlpack("x", Capsule(array, 0, 64, strides).capsule).shape(), [2, 3])
        for strides in ((1, 2), (6, 2), (0, 0), (-3, 1)):
            source = Capsule(array, 0, 64, strides)
            self.assertEqual(fake.outcome(lambda: Tensor.from_dlpack("x", source.capsule)), NOT_CONTIGUOUS)
        # A step along an axis of one element, or in a tensor of none, is never taken.
        one = np.arange(3, dtype=np.int64).reshape(3, 1)
        self.assertEqual(Tensor.from_dlpack("x", Capsule(one, 0, 64, (1, 77)).capsule).shape(), [3, 1])
        none = np.zeros((0, 3), np.int64)
        self.assertEqual(Tensor.from_dlpack("x", Capsule(none, 0, 64, (5, 5)).capsule).shape(), [0, 3])
        scalar = np.array(4, np.int64)
        self.assertEqual(Tensor.from_dlpack("x", Capsule(scalar, 0, 64).capsule).as_numpy().item(), 4)

    def test_devices(self):
        array = np.arange(3, dtype=np.int64)
        self.assertEqual(Tensor.from_dlpack("x", Capsule(array, 0, 64, device=(3, 0)).capsule).__dlpack_device__(), (1, 0))
        for device in ((8, 0), (10, 1)):
            source = Capsule(array, 0, 64, device=device)
            kind, text = fake.outcome(lambda: Tensor.from_dlpack("x", source.capsule))
            self.assertEqual(kind, "TritonModelException")
            self.assertEqual(text, "DLDevice type %d is not support by Python backend." % device[0])

    def test_a_versioned_capsule(self):
        array = np.arange(4, dtype=np.float32)
        plain = Capsule(array, 2, 32)
        freed = []
        deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(freed.append)
        versioned = dlpack._Versioned(major=1, minor=1, tensor=plain.managed.tensor)
        versioned.deleter = ctypes.cast(deleter, ctypes.c_void_p)
        capsule = dlpack._new_capsule(ctypes.addressof(versioned), b"dltensor_versioned", None)
        made = Tensor.from_dlpack("x", capsule)
        self.assertEqual(made.as_numpy().tolist(), [0, 1, 2, 3])
        self.assertIn('"used_dltensor_versioned"', repr(capsule))
        del made
        gc.collect()
        self.assertEqual(freed, [ctypes.addressof(versioned)])
        versioned.major = 2
        other = dlpack._new_capsule(ctypes.addressof(versioned), b"dltensor_versioned", None)
        self.assertEqual(fake.outcome(lambda: Tensor.from_dlpack("x", other))[0], "TritonModelException")

    @unittest.skipUnless(HAS_DLPACK, "numpy has no __dlpack__")
    def test_arrays_of_numpy(self):
        for array in (np.arange(6.0).reshape(2, 3), np.array([True, False]), np.zeros((0, 2), np.int8)):
            for other in (array, array.__dlpack__()) if array.dtype != bool else (array,):
                made = Tensor.from_dlpack("x", other)
                self.assertEqual((made.as_numpy().tolist(), made.as_numpy().dtype), (array.tolist(), array.dtype))
        self.assertEqual(fake.outcome(lambda: Tensor.from_dlpack("x", np.arange(6.0).reshape(2, 3).T)), NOT_CONTIGUOUS)
        fixed = np.arange(3)
        fixed.flags.writeable = False
        self.assertEqual(Tensor.from_dlpack("x", fixed).as_numpy().tolist(), [0, 1, 2])

    def test_tensors_of_our_own(self):
        made = Tensor.from_dlpack("y", Tensor("x", np.arange(3)))
        self.assertEqual((made.name(), made.as_numpy().tolist()), ("y", [0, 1, 2]))

    def test_nothing_crashes_at_the_interpreters_end(self):
        code = """if True:
            import sys
            sys.path.insert(0, %r)
            import fake
            import numpy as np
            from nereid_python import dlpack
            import triton_python_backend_utils as pb_utils
            kept = [pb_utils.Tensor("x", np.arange(10)).to_dlpack(), dlpack._own_export(np.ones(3), 12)]
            kept.append(pb_utils.Tensor.from_dlpack("y", pb_utils.Tensor("x", np.arange(10))))
            kept.append(dlpack.adopt(dlpack._own_export(np.ones(3), 12)))
            kept.append(kept)
            sys.kept = kept
        """
        here = str(fake.ROOT / "tests/python/pb_utils")
        done = subprocess.run([sys.executable, "-B", "-c", code % here], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual((done.returncode, done.stderr), (0, b""))


class Torch(unittest.TestCase):
    def setUp(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        self.torch = torch

    def test_both_ways_without_a_copy(self):
        torch = self.torch
        for kind in (torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool, torch.bfloat16):
            source = torch.ones((2, 3), dtype=kind)
            if kind is torch.bool and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 0):
                # DLPack had no bool then.
                continue
            for given in (source, torch.utils.dlpack.to_dlpack(source)):
                made = Tensor.from_dlpack("x", given)
                self.assertEqual(made.shape(), [2, 3])
                back = torch.utils.dlpack.from_dlpack(made.to_dlpack())
                self.assertEqual((back.dtype, back.data_ptr()), (kind, source.data_ptr()))
                self.assertEqual(torch.from_dlpack(made).data_ptr(), source.data_ptr())
        self.assertEqual(fake.outcome(lambda: Tensor.from_dlpack("x", torch.ones((2, 3)).t())), NOT_CONTIGUOUS)


if __name__ == "__main__":
    unittest.main()
