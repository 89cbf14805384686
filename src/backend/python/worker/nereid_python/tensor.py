"""Tensors: a name and elements, which are views of shared memory or arrays of the model.

The class is on the request's path, hence two slots, and no checks of values from the server: `_wire` is the tensor's
form in messages (kinds.py), `_array` the array that was passed or requested. A tensor without an array is untouched,
and is passed on unchanged. So is one on a device, where its elements are not read here (device.py).
"""

from numpy import ascontiguousarray, ndarray

from . import strings
from .errors import TritonModelException, text, wrong
from .types import BF16, BYTES, NUMBER_OF, STORED_AS, number_of_array
from .wire import INLINE_MAX, link


class Tensor:
    """A named tensor of a request or a response (contract/python_backend.md section 3, "Tensor")."""

    __slots__ = ("_wire", "_array", "__weakref__")

    def __init__(self, name, numpy_array):
        if not isinstance(numpy_array, ndarray):
            raise wrong("numpy_array", "a numpy.ndarray", numpy_array)
        if type(name) is not str:
            name = text(name, "name")
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        number = NUMBER_OF.get(numpy_array.dtype)
        if number is None:
            number = number_of_array(numpy_array.dtype)
            if number is None:
                raise TritonModelException("NumPy dtype is not supported.")
        if not numpy_array.flags.c_contiguous:
            numpy_array = ascontiguousarray(numpy_array)
        self._wire = (name, number, numpy_array.shape, None)
        self._array = numpy_array

    def name(self):
        return self._wire[0]

    def shape(self):
        return list(self._wire[2])

    def triton_dtype(self):
        return self._wire[1]

    def is_cpu(self):
        return _device_of(self) is None

    def as_numpy(self):
        """The elements, without a copy; of BYTES an array of objects. The same array each time."""
        if self._array is None and _device_of(self) is not None:
            raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")
        if self._wire[1] == BF16:
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
            )
        array = self._array
        return stored(self) if array is None else array

    def to_dlpack(self):
        """A capsule `dltensor` of the elements, which live as long as it does."""
        number = self._wire[1]
        if number == BYTES:
            raise TritonModelException("DLPack does not have support for string tensors.")
        device = _device_of(self)
        if device is not None:
            return _export_from(self, device)
        return _dlpack().export(stored(self), number)

    def __dlpack__(self, stream=None, max_version=None, dl_device=None, copy=None):
        # No device work on the elements is under way: there is no stream to wait for.
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            place = "host memory" if self.is_cpu() else "the memory of a GPU"
            raise BufferError("a tensor in %s is not exported to the device %r" % (place, dl_device))
        if copy and not self.is_cpu():
            raise BufferError("a tensor in the memory of a GPU is exported as it is only")
        if copy and self._wire[1] != BYTES:
            return _dlpack().export(stored(self).copy(), self._wire[1])
        return self.to_dlpack()

    def __dlpack_device__(self):
        device = _device_of(self)
        return _dlpack().HOST if device is None else (_dlpack().CUDA, device)

    @staticmethod
    def from_dlpack(name, tensor):
        """A tensor of the elements of a capsule, or of an object that gives one, without a copy."""
        if type(name) is not str:
            name = text(name, "name")
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        elements, shape, number = _dlpack().adopt(tensor)
        made = _new(Tensor)
        if isinstance(elements, ndarray):
            made._wire = (name, number, shape, None)
            made._array = elements
        else:
            made._wire = (name, number, shape, elements)
            made._array = None
        return made


Tensor.__module__ = "c_python_backend_utils"
_new = Tensor.__new__
# The number of elements of the tuple for data on a device.
_ON_DEVICE = 6


def _dlpack():
    """The module, imported late: few models need it, and it imports ctypes and defines structures."""
    from . import dlpack

    return dlpack


def _device_of(tensor):
    """The number of the device that a tensor lies on; None: it is in host memory."""
    data = tensor._wire[3]
    if data is None or type(data) is bytes:
        return None
    if type(data) is tuple:
        return data[4] if len(data) == _ON_DEVICE else None
    return data.device


def _export_from(tensor, device):
    name, number, shape, data = tensor._wire
    if type(data) is not tuple:
        return _dlpack().export_from(data.address, shape, number, device, data)
    from .device import address_of

    return _dlpack().export_from(address_of(data), shape, number, device, data)


def incoming(wires):
    """The tensors of a message."""
    tensors = []
    for wire in wires:
        if type(wire[3]) is tuple:
            link.hold(wire[3])
        tensor = _new(Tensor)
        tensor._wire = wire
        tensor._array = None
        tensors.append(tensor)
    return tensors


def outgoing(tensor):
    """A tensor for a message."""
    wire = tensor._wire
    array = tensor._array
    if array is None:
        if type(wire[3]) is tuple or type(wire[3]) is bytes:
            return wire
        return wire[:3] + (_lent(wire[3]),)
    name, number, shape, data = wire
    if number == BYTES:
        try:
            data = strings.encode(array)
        except UnicodeError as error:
            raise TritonModelException("Tensor '%s' has a text that is not Unicode: %s" % (name, error)) from None
        return (name, number, shape, link.place(data))
    if type(data) is tuple:
        # A view of the server's memory, with the bytes that the model has written to it.
        return wire
    if array.nbytes <= INLINE_MAX:
        return (name, number, shape, array.tobytes())
    return (name, number, shape, link.place(array))


def _lent(foreign):
    """The data of a model's own device memory in a message."""
    from .device import data_of

    data = data_of(foreign)
    return data if type(data) is tuple or len(data) <= INLINE_MAX else link.put_bytes(data)


def stored(tensor):
    """The elements as they are stored: of BF16 the integers that have its bits."""
    array = tensor._array
    if array is not None:
        return array
    name, number, shape, data = tensor._wire
    # A copy: a byte string is read-only, but models may write to their inputs.
    is_shared = type(data) is tuple
    if number == BYTES:
        array = strings.decode(link.view(data) if is_shared else data, shape)
        # The received bytes do not follow the model's changes of the elements.
        tensor._wire = (name, number, shape, None)
    else:
        array = ndarray(shape, STORED_AS[number], link.view(data) if is_shared else bytearray(data))
    tensor._array = array
    return array
