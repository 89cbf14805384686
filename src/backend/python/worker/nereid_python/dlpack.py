"""DLPack both ways, without a copy: capsules of arrays, and arrays of capsules.

Capsules of arrays are made by numpy if it can; for types that numpy lacks (BF16) or formerly lacked (bool), the type is
changed in place, so that numpy's code frees the memory and not Python's, which may have ended by then. Capsules of
other libraries are read here with every numpy, because numpy makes the arrays that it adopts read-only.

Layouts and names are those of dlpack.h, version 1.1.
"""

import ctypes

import numpy as np

from .errors import TritonModelException
from .types import BF16, BOOL, BYTES, STORED_AS

# kDLCPU, and its only device.
HOST = (1, 0)
# kDLCUDA.
CUDA = 2

_HOST_DEVICES = (1, 3)  # kDLCPU, and kDLCUDAHost: pinned host memory.

_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6

# (code, bits) to numbers of data types.
_NUMBERS = {
    (_BOOL, 8): BOOL,
    (_UINT, 8): 2,
    (_UINT, 16): 3,
    (_UINT, 32): 4,
    (_UINT, 64): 5,
    (_INT, 8): 6,
    (_INT, 16): 7,
    (_INT, 32): 8,
    (_INT, 64): 9,
    (_FLOAT, 16): 10,
    (_FLOAT, 32): 11,
    (_FLOAT, 64): 12,
    (_BFLOAT, 16): BF16,
}


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


_NAME = b"dltensor"
# Names of capsules, with their structures and their names after the tensor was taken.
_KINDS = ((_NAME, _Managed, b"used_dlpack"), (b"dltensor_versioned", _Versioned, b"used_dltensor_versioned"))

# Not `ctypes.pythonapi`: a function's types are set for all that use the same object, and models set theirs.
_api = ctypes.PyDLL(None)
_is_valid = _api.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
_pointer_of = _api.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_rename = _api.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
_set_destructor = _api.PyCapsule_SetDestructor
_set_destructor.restype, _set_destructor.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_void_p)
_new_capsule = _api.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

# Called with the interpreter's lock held, as by numpy: some libraries rely on that.
_Deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)

_HAS_EXPORT = hasattr(np.ndarray, "__dlpack__")


def export(array, number):
    """A capsule of an array that holds elements of the data type `number`."""
    if not _HAS_EXPORT:
        return _own_export(array, number)
    if not array.flags.writeable:
        array = _writable(array)
    if number != BF16 and number != BOOL:
        return array.__dlpack__()
    if number == BOOL:
        array = array.view(np.uint8)
    capsule = array.__dlpack__()
    tensor = _Managed.from_address(_pointer_of(capsule, _NAME)).tensor
    tensor.code = _BFLOAT if number == BF16 else _BOOL
    return capsule


def export_from(address, shape, number, device, owner):
    """A capsule of memory on a device that `owner` keeps. The intermediate array is never read."""
    count = 1
    for length in shape:
        count *= length
    memory = (ctypes.c_char * max(count * STORED_AS[number].itemsize, 1)).from_address(address or 1)
    memory.owner = owner
    capsule = export(np.ndarray(shape, STORED_AS[number], memory), number)
    tensor = _Managed.from_address(_pointer_of(capsule, _NAME)).tensor
    tensor.device_type, tensor.device_id = CUDA, device
    return capsule


def adopt(source):
    """The elements of a capsule, or of an object that gives one, with their shape and the number of their data type: an
    array, of BF16 as integers, or their address on a device."""
    if not _is_capsule(source):
        if not (hasattr(source, "__dlpack__") and hasattr(source, "__dlpack_device__")):
            raise TritonModelException(
                "Provided tensor is not supported. Tensor must be a DLPack capsule         or have `__dlpack__` and "
                "`__dlpack_device__` attributes"
            )
        kind, place = source.__dlpack_device__()
        if kind == CUDA:
            from . import device

            stream = device.producer_stream(place)
            source = source.__dlpack__(stream=stream)
            device.settle(place, stream)
        elif kind in _HOST_DEVICES:
            source = _capsule_of(source)
        else:
            raise _elsewhere((kind, place))
    for name, layout, used in _KINDS:
        if _is_valid(source, name):
            break
    else:
        raise TritonModelException("Provided DLPack capsule holds no tensor, or its tensor was taken before.")
    address = _pointer_of(source, name)
    managed = layout.from_address(address)
    if layout is _Versioned and managed.major > 1:
        raise TritonModelException("Provided DLPack capsule is of the version %d, which is unknown." % managed.major)
    # From here on this module owns the tensor: its capsule must not free it.
    shape, number, at, size = _describe(managed.tensor)
    _rename(source, used)
    _set_destructor(source, None)
    owner = _Owner(managed.deleter, address)
    if size == 0:
        return np.empty(shape, STORED_AS[number]), shape, number
    if managed.tensor.device_type == CUDA:
        from .device import Foreign

        return Foreign(at, size, managed.tensor.device_id, owner), shape, number
    memory = (ctypes.c_char * size).from_address(at)
    memory.owner = owner
    return np.ndarray(shape, STORED_AS[number], memory), shape, number


def _capsule_of(source):
    if isinstance(source, np.ndarray):
        # numpy refuses to export read-only arrays, and this module does not write to them.
        number = _number_of(source)
        if number is not None and (number == BOOL or not source.flags.writeable):
            return export(source, number)
    return source.__dlpack__()


def _number_of(array):
    return {STORED_AS[number]: number for number in range(BOOL, BYTES)}.get(array.dtype)


def _is_capsule(source):
    return type(source).__name__ == "PyCapsule"


def _elsewhere(device):
    """Fails: only memory of the host and of CUDA devices is supported."""
    return TritonModelException("DLDevice type %d is not support by Python backend." % device[0])


def _describe(tensor):
    """(shape, number of the data type, address, bytes) of a supported tensor."""
    if tensor.device_type != CUDA and tensor.device_type not in _HOST_DEVICES:
        raise _elsewhere((tensor.device_type, tensor.device_id))
    number = _NUMBERS.get((tensor.code, tensor.bits))
    if tensor.bits == 1 and tensor.code in (_INT, _UINT):
        # The form of bool in other Triton modules.
        number = BOOL
    if number is None or tensor.lanes != 1:
        if tensor.code == _BFLOAT:
            raise TritonModelException("Expected BF16 tensor to have 16 bits, but had: %d" % tensor.bits)
        raise TritonModelException(
            "DLPack data type is not supported: code %d, %d bits, %d lanes." % (tensor.code, tensor.bits, tensor.lanes)
        )
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    if tensor.strides and 0 not in shape:
        expected = 1
        for axis in range(tensor.ndim - 1, -1, -1):
            if shape[axis] != 1 and tensor.strides[axis] != expected:
                raise TritonModelException(
                    "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are "
                    "supported."
                )
            expected *= shape[axis]
    size = STORED_AS[number].itemsize
    for length in shape:
        size *= length
    return shape, number, (tensor.data or 0) + tensor.byte_offset, size


class _Owner:
    """The tensor of a capsule; freed with the last array of it."""

    __slots__ = ("_delete", "_address")

    def __init__(self, deleter, address):
        self._delete = _Deleter(deleter) if deleter else None
        self._address = address

    def __del__(self):
        if self._delete is not None:
            self._delete(self._address)


def _writable(array):
    """The same elements without the read-only flag, which the format cannot express."""
    if array.nbytes == 0:
        return np.empty(array.shape, array.dtype)
    memory = (ctypes.c_char * array.nbytes).from_address(array.ctypes.data)
    memory.owner = array
    return np.ndarray(array.shape, array.dtype, memory)


# The rest is for numpy before 1.22.

_alive = {}


class _Exported(ctypes.Structure):
    """A managed tensor with the lengths that it points to, at most numpy's 32 of each."""

    _fields_ = [("managed", _Managed), ("shape", ctypes.c_int64 * 32)]


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _let_go(address):
    _alive.pop(address, None)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _drop_unused(capsule):
    # The capsule is being destroyed: no reference to it must be made, so it is read by address.
    if _raw_is_valid(capsule, _NAME):
        _alive.pop(_raw_pointer_of(capsule, _NAME), None)


_raw_api = ctypes.PyDLL(None)
_raw_is_valid = _raw_api.PyCapsule_IsValid
_raw_is_valid.restype, _raw_is_valid.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p)
_raw_pointer_of = _raw_api.PyCapsule_GetPointer
_raw_pointer_of.restype, _raw_pointer_of.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)

# Capsules may outlive this module, and then still call these functions.
for _callback in (_let_go, _drop_unused):
    _api.Py_IncRef(ctypes.py_object(_callback))

_CODES = {number: pair for pair, number in _NUMBERS.items()}


def _own_export(array, number):
    exported = _Exported()
    exported.shape[: array.ndim] = array.shape
    tensor = exported.managed.tensor
    tensor.data = array.ctypes.data
    tensor.device_type, tensor.device_id = HOST
    tensor.ndim = array.ndim
    tensor.code, tensor.bits = _CODES[number]
    tensor.lanes = 1
    tensor.shape = ctypes.cast(exported.shape, ctypes.POINTER(ctypes.c_int64))
    exported.managed.deleter = ctypes.cast(_let_go, ctypes.c_void_p)
    address = ctypes.addressof(exported)
    _alive[address] = (exported, array)
    return _new_capsule(address, _NAME, ctypes.cast(_drop_unused, ctypes.c_void_p))
