"""Makes ten times its numbers on a device, in memory of its own, and says where its input lay."""

import ctypes
import json
import mmap
import os

import numpy as np
import triton_python_backend_utils as pb_utils


class Described(ctypes.Structure):
    """The beginning of DLManagedTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("type", ctypes.c_uint32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", Described), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_FLOATS = 2 | 32 << 8 | 1 << 16


def look(tensor):
    """The numbers of a tensor on a device whose memory the host can read, and the device."""
    capsule = tensor.to_dlpack()
    told = Described.from_address(_pointer_of(capsule, b"dltensor"))
    count = 1
    for axis in range(told.ndim):
        count *= told.shape[axis]
    numbers = np.frombuffer(ctypes.string_at(told.data + told.byte_offset, count * 4), np.float32)
    return numbers, (told.device_type, told.device_id)


class Made:
    """A tensor of a library's in device memory: a file stands for it. Freed when its capsule's deleter is called."""

    alive = {}

    def __init__(self, numbers, device):
        numbers = np.ascontiguousarray(numbers, np.float32)
        self.length = 4096 + max(numbers.nbytes, 1)
        self.descriptor = os.memfd_create("made")
        os.ftruncate(self.descriptor, self.length)
        self.memory = mmap.mmap(self.descriptor, self.length)
        self.memory[512 : 512 + numbers.nbytes] = numbers.tobytes()
        place = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.shape = (ctypes.c_int64 * numbers.ndim)(*numbers.shape)
        self.managed = Managed()
        self.managed.tensor = Described(place, 2, device, numbers.ndim, _FLOATS, self.shape, None, 512)
        self.managed.deleter = ctypes.cast(_free, ctypes.c_void_p)
        self.device = device
        Made.alive[ctypes.addressof(self.managed)] = self

    def __dlpack_device__(self):
        return (2, self.device)

    def __dlpack__(self, stream=None):
        return _new_capsule(ctypes.addressof(self.managed), b"dltensor", None)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _free(address):
    made = Made.alive.pop(address, None)
    if made is not None:
        # What still reads it finds other numbers, or nothing.
        made.memory[:] = b"\xff" * made.length
        os.close(made.descriptor)


class TritonPythonModel:
    def initialize(self, args):
        self.facts = {"kind": args["model_instance_kind"], "device": args["model_instance_device_id"]}
        self.number = int(args["model_instance_device_id"])

    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "IN")
            facts = dict(self.facts, is_cpu=tensor.is_cpu(), alive=len(Made.alive))
            if tensor.is_cpu():
                numbers = tensor.as_numpy()
            else:
                numbers, facts["lies_on"] = look(tensor)
                try:
                    tensor.as_numpy()
                except Exception as error:
                    facts["as_numpy"] = "%s: %s" % (type(error).__name__, error)
            made = pb_utils.Tensor.from_dlpack("OUT", Made(numbers * 10, self.number))
            facts["made_is_cpu"] = made.is_cpu()
            text = np.array([json.dumps(facts).encode()], dtype=object)
            responses.append(pb_utils.InferenceResponse([made, pb_utils.Tensor("FACTS", text)]))
        return responses
