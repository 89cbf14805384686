"""Memory of GPUs: tensors of the server are opened when a model reads their addresses, and tensors of a model are lent
to the server.

Both use the handles of CUDA's inter-process interface, through the driver's library and ctypes, so that no worker needs
a package for it. Only models that use such memory import this module. If the server uses the simulated driver, a handle
names a file of its memory, which is mapped: the host can read its addresses as well.

Messages describe such a tensor as (handle, offset, length, key, device, lasts): the key is the server's for tensors
that it has lent, and below zero for tensors that are lent to it; with `lasts` whoever has allocated the memory keeps it
as long as it lives.
"""

import bisect
import ctypes
import mmap
import os
import struct
import threading

from .errors import TritonModelException
from .wire import link

# The simulated driver's handles: a prefix, and (process, descriptor, offset, length) after it.
MAGIC = b"nereid-1"
HANDLE = struct.Struct("<8sIIQQ")
HANDLE_BYTES = 64

_SIMULATED = "NEREID_SIMULATED_GPUS"
_PAGE = mmap.ALLOCATIONGRANULARITY

_lock = threading.RLock()


class _Handle(ctypes.Structure):
    """CUipcMemHandle."""

    _fields_ = [("bytes", ctypes.c_ubyte * HANDLE_BYTES)]


def _failed(call, text):
    return TritonModelException("Failed to use the memory of a GPU: %s failed: %s" % (call, text))


class _Cuda:
    """CUDA's driver, in the primary contexts of the devices, which the model's libraries use as well."""

    def __init__(self):
        try:
            library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise _failed("opening libcuda.so.1", error) from None
        self._library = library
        self._contexts = {}
        self._streams = {}
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        address = ctypes.c_uint64
        to = ctypes.POINTER
        for name, arguments in (
            ("cuInit", (ctypes.c_uint,)),
            ("cuDeviceGet", (to(number), number)),
            ("cuDevicePrimaryCtxRetain", (to(pointer), number)),
            ("cuCtxPushCurrent_v2", (pointer,)),
            ("cuCtxPopCurrent_v2", (to(pointer),)),
            ("cuCtxSynchronize", ()),
            ("cuIpcOpenMemHandle_v2", (to(address), _Handle, ctypes.c_uint)),
            ("cuIpcCloseMemHandle", (address,)),
            ("cuIpcGetMemHandle", (to(_Handle), address)),
            ("cuMemGetAddressRange_v2", (to(address), to(size), address)),
            ("cuMemcpyDtoH_v2", (pointer, address, size)),
            ("cuMemAlloc_v2", (to(address), size)),
            ("cuMemcpyDtoDAsync_v2", (address, address, size, pointer)),
            ("cuStreamCreate", (to(pointer), ctypes.c_uint)),
            ("cuStreamSynchronize", (pointer,)),
            ("cuGetErrorName", (number, to(ctypes.c_char_p))),
        ):
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, number
        self._call("cuInit", 0)

    def _call(self, name, *arguments):
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(text))
            raise _failed(name, "%s (%d)" % ((text.value or b"unknown error").decode(), code))

    def _context(self, device):
        context = self._contexts.get(device)
        if context is None:
            number, context = ctypes.c_int(), ctypes.c_void_p()
            self._call("cuDeviceGet", ctypes.byref(number), device)
            # Never released: it lives as long as the process.
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
            self._contexts[device] = context
        return context

    def _within(self, device, name, *arguments):
        """Makes a call in the device's context; restores the calling thread's own afterwards."""
        self._call("cuCtxPushCurrent_v2", self._context(device))
        try:
            self._call(name, *arguments)
        finally:
            self._library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def open(self, handle, device):
        """(address of the allocation, what keeps it open)"""
        base = ctypes.c_uint64()
        # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag that there is.
        self._within(device, "cuIpcOpenMemHandle_v2", ctypes.byref(base), _Handle.from_buffer_copy(handle), 1)
        return base.value, base

    def close(self, device, kept):
        self._within(device, "cuIpcCloseMemHandle", kept)

    def export(self, device, address):
        """(handle of the allocation around an address, the address's offset in it)"""
        base, length, handle = ctypes.c_uint64(), ctypes.c_size_t(), _Handle()
        self._within(device, "cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(length), address)
        self._within(device, "cuIpcGetMemHandle", ctypes.byref(handle), base)
        return bytes(handle.bytes), address - base.value

    def read(self, device, address, length):
        content = bytearray(length)
        if length:
            place = (ctypes.c_char * length).from_buffer(content)
            self._within(device, "cuMemcpyDtoH_v2", ctypes.addressof(place), address, length)
        return content

    def allocate(self, device, length):
        """The address of memory that is never freed."""
        address = ctypes.c_uint64()
        self._within(device, "cuMemAlloc_v2", ctypes.byref(address), length)
        return address.value

    def copy(self, device, to, address, length):
        """Copies on the device, in its default stream."""
        self._within(device, "cuMemcpyDtoDAsync_v2", to, address, length, None)

    def wait(self, device):
        """Waits until all work of the process on the device has completed."""
        self._within(device, "cuCtxSynchronize")

    def stream(self, device):
        """A stream that producers make wait for their work; its number, as DLPack passes it."""
        stream = self._streams.get(device)
        if stream is None:
            stream = ctypes.c_void_p()
            # CU_STREAM_NON_BLOCKING: it waits only for the work that it is made to wait for.
            self._within(device, "cuStreamCreate", ctypes.byref(stream), 1)
            self._streams[device] = stream
        return stream.value

    def settle(self, device, stream=None):
        """Waits for a stream; without one for the default stream of the libraries."""
        self._within(device, "cuStreamSynchronize", stream)


class _Simulated:
    """Memory that a file backs: of the server, or of the process itself."""

    def __init__(self):
        self._allocated = []

    def open(self, handle, device):
        _, process, descriptor, offset, length = HANDLE.unpack_from(handle)
        try:
            descriptor = os.open("/proc/%d/fd/%d" % (process, descriptor), os.O_RDWR | os.O_CLOEXEC)
            try:
                before = offset % _PAGE
                memory = mmap.mmap(descriptor, length + before, offset=offset - before)
            finally:
                os.close(descriptor)
        except (OSError, ValueError, OverflowError) as error:
            raise _failed("opening a simulated GPU's memory", error) from None
        place = (ctypes.c_char * len(memory)).from_buffer(memory)
        return ctypes.addressof(place) + before, place

    def close(self, device, kept):
        # It is unmapped when it has no references any more.
        pass

    def export(self, device, address):
        """Finds the file by the system's list of the process's mappings."""
        with open("/proc/self/maps") as maps:
            for line in maps:
                fields = line.split(None, 5)
                start, _, end = fields[0].partition("-")
                start, end = int(start, 16), int(end, 16)
                if start <= address < end:
                    break
            else:
                raise _failed("looking for an address", "it is not mapped")
        major, _, minor = fields[3].partition(":")
        file = (os.makedev(int(major, 16), int(minor, 16)), int(fields[4]))
        for name in os.listdir("/proc/self/fd"):
            try:
                found = os.stat("/proc/self/fd/" + name)
                if (found.st_dev, found.st_ino) == file:
                    break
            except OSError:
                # Closed meanwhile, like the descriptor of this listing itself.
                continue
        else:
            raise _failed("looking for an address", "it is in no file that is open")
        # A mapping extends to the end of a page, its file may not.
        offset = int(fields[2], 16)
        handle = HANDLE.pack(MAGIC, os.getpid(), int(name), offset, min(end - start, found.st_size - offset))
        return handle.ljust(HANDLE_BYTES, b"\0"), address - start

    def read(self, device, address, length):
        return bytearray(ctypes.string_at(address, length))

    def allocate(self, device, length):
        descriptor = os.memfd_create("nereid-gpu-pool", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, length)
        place = (ctypes.c_char * length).from_buffer(mmap.mmap(descriptor, length))
        self._allocated.append(place)
        return ctypes.addressof(place)

    def copy(self, device, to, address, length):
        ctypes.memmove(to, address, length)

    def wait(self, device):
        pass

    def stream(self, device):
        return None

    def settle(self, device, stream=None):
        pass


_simulated = _Simulated()
_cuda = None


def _driver(is_simulated):
    global _cuda
    if is_simulated:
        return _simulated
    with _lock:
        if _cuda is None:
            _cuda = _Cuda()
    return _cuda


def _own():
    """The driver of the process's own memory."""
    return _driver(_SIMULATED in os.environ)


# Tensors that the server lends.


class _Opened:
    """An opened allocation of the server."""

    __slots__ = ("driver", "device", "base", "kept", "lasts", "keys")

    def __init__(self, handle, device, lasts):
        self.driver = _driver(handle.startswith(MAGIC))
        self.device = device
        self.base, self.kept = self.driver.open(handle, device)
        self.lasts = lasts
        # Keys of the tensors in it that are open.
        self.keys = set()


# Open allocations by handle and device.
_opened = {}
# Tensors in them by key: (address, end, its data).
_lent = {}


def address_of(data):
    """The address of a tensor that the server has lent."""
    handle, offset, length, key, device, lasts = data
    with _lock:
        found = _lent.get(key)
        if found is not None:
            return found[0]
        opened = _opened.get((handle, device))
        if opened is None:
            opened = _opened[(handle, device)] = _Opened(handle, device, lasts)
        link.let_go = let_go
        opened.keys.add(key)
        address = opened.base + offset
        _lent[key] = (address, address + length, data[:3] + (key, device, lasts))
    return address


def let_go(keys):
    """Closes tensors without references in the model, after the device work of the process, which may still use
    them."""
    with _lock:
        keys = [key for key in keys if _lent.pop(key, None) is not None]
        if not keys:
            return
        used = [(name, opened) for name, opened in _opened.items() if not opened.keys.isdisjoint(keys)]
        for device, driver in {opened.device: opened.driver for _, opened in used}.items():
            driver.wait(device)
        for name, opened in used:
            opened.keys.difference_update(keys)
            if not opened.keys and not opened.lasts:
                # The server may free it from here on.
                del _opened[name]
                opened.driver.close(opened.device, opened.kept)


# Tensors that a model lends.

# Shorter ones are copied to memory that the server keeps open: to open and close a handle takes it a hundred
# microseconds, a copy ten.
COPIED_MAX = 256 << 10
POOL_BYTES = 4 << 20
_SLOT_BYTES = 512


class _Pool:
    """Memory of a device for copies of tensors. It is used under the lock of this module."""

    def __init__(self, driver, device):
        self.address = driver.allocate(device, POOL_BYTES)
        self.handle, self.offset = driver.export(device, self.address)
        # (begin, end) of what is unused, in order; between two is something that is used.
        self.unused = [(0, POOL_BYTES)]

    def take(self, length):
        """A slot; None if no unused part is long enough."""
        length = -(-length // _SLOT_BYTES) * _SLOT_BYTES
        for at, (begin, end) in enumerate(self.unused):
            if end - begin >= length:
                self.unused[at : at + 1] = [(begin + length, end)] if end - begin > length else []
                return _Slot(self, begin, begin + length)
        return None

    def give_back(self, begin, end):
        at = bisect.bisect(self.unused, (begin, end))
        if at < len(self.unused) and self.unused[at][0] == end:
            end = self.unused.pop(at)[1]
        if at > 0 and self.unused[at - 1][1] == begin:
            at -= 1
            begin = self.unused.pop(at)[0]
        self.unused.insert(at, (begin, end))


class _Slot:
    """A part of a pool, which it returns when it has no references any more."""

    __slots__ = ("pool", "begin", "end")

    def __init__(self, pool, begin, end):
        self.pool, self.begin, self.end = pool, begin, end

    def __del__(self):
        with _lock:
            self.pool.give_back(self.begin, self.end)


# By device; None where there is no memory for one.
_pools = {}


def _slot(driver, device, length):
    """A slot of the device's pool, if it has one."""
    with _lock:
        if device not in _pools:
            try:
                _pools[device] = _Pool(driver, device)
            except TritonModelException:
                _pools[device] = None
        pool = _pools[device]
        return None if pool is None else pool.take(length)


class Foreign:
    """The memory of a model's tensor on a device. A reference to it keeps the memory."""

    __slots__ = ("address", "length", "device", "owner")

    def __init__(self, address, length, device, owner):
        self.address = address
        self.length = length
        self.device = device
        self.owner = owner


def producer_stream(device):
    """The stream argument of `__dlpack__`: the stream on which its tensor shall be complete."""
    return _own().stream(device)


def settle(device, stream):
    """Waits until a tensor is complete on that stream."""
    if stream is not None:
        _own().settle(device, stream)


def data_of(foreign):
    """The data of a model's own memory in a message; bytes if another process cannot open it."""
    address, length, device = foreign.address, foreign.length, foreign.device
    if length == 0:
        return b""
    with _lock:
        for start, end, data in _lent.values():
            if start <= address and address + length <= end and data[4] == device:
                # The server's own tensor, or a part of it: the message's data keeps it until the server has read the
                # message.
                part = (data[0], data[1] + address - start, length) + data[3:]
                link.hold(part)
                return part
    driver = _own()
    slot = _slot(driver, device, length) if length <= COPIED_MAX else None
    # A capsule does not contain its stream: it is mostly the default stream of its library.
    if slot is not None:
        pool = slot.pool
        driver.copy(device, pool.address + slot.begin, address, length)
        driver.settle(device)
        return (pool.handle, pool.offset + slot.begin, length, -link.lend(slot, length), device, True)
    driver.settle(device)
    try:
        handle, offset = driver.export(device, address)
    except TritonModelException:
        # Memory of a pool that cannot be shared, or opened from another process.
        return driver.read(device, address, length)
    return (handle, offset, length, -link.lend(foreign, length), device, False)
