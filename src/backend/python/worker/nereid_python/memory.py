"""The shared memory of a worker beside its streams: the memory that it writes for the server, and the memory that the
server writes.

Outputs are written to ranges that the worker cuts from segments and gets back after the server's use. Inputs are in
ranges that the server chose, to which views refer; reference counts show when no view is left. The link implements the
requests for more memory.
"""

import itertools
import sys

import numpy as np

# The most bytes of an array inside its message.
INLINE_MAX = 4096
PLACE_BITS = 40
PLACE_MASK = (1 << PLACE_BITS) - 1

# The keys of tensors that lie on a device begin here.
ON_DEVICE = 1 << 62
# Tensors of the model, and bytes of them, that the server may hold before it is queried which it no longer needs.
LENT_MIN = 16
LENT_BYTES_MAX = 256 << 20

_ndarray = np.ndarray
_OCTET = np.dtype(np.uint8)


class Refused(Exception):
    """A refusal of the server: its code, as TRITONSERVER_Error_Code, and its text."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code
        self.text = text


def class_bytes(length):
    """Bytes of the class that holds `length`: four classes to each power of two."""
    if length <= 64:
        return 64
    step = max((1 << (length - 1).bit_length()) // 8, 64)
    return (length + step - 1) // step * step


class Memory:
    """The shared memory of one process. A subclass defines `lock` and `socket_lock`, `segment(number)` for one that may
    not have arrived yet, `_request_memory(length, gone)` and `_settle_others()`."""

    def __init__(self):
        self.segments = {}
        self.free = {}
        self.taken = {}
        # The part of each segment that was not cut yet: (from, to).
        self.uncut = {}
        self.held = {}
        self.kept = {}
        self.released = []
        # Bytes received since the last sweep.
        self.received = 0
        # Device tensors of the model that are lent to the server, by number, with their bytes.
        self.lent = {}
        self.lent_bytes = 0
        self.lent_count = 0
        self.lent_most = LENT_MIN
        # Called with the keys of the server's device tensors without references, before they are sent to the server.
        self.let_go = None

    # Memory that this side writes.

    def take_back(self, places):
        """Frees ranges that the server no longer needs."""
        with self.lock:
            for place in places:
                length = self.taken.pop(place, None)
                if length is not None:
                    self.free.setdefault(length, []).append(place)

    def free_bytes(self):
        """The unused bytes of the segments."""
        with self.lock:
            uncut = sum(end - at for at, end in self.uncut.values())
            return uncut + sum(length * len(places) for length, places in self.free.items())

    def _take(self, length):
        """A range of that class, or None. Needs the lock."""
        found = self.free.get(length)
        if found:
            place = found.pop()
        else:
            for number, (at, end) in self.uncut.items():
                if end - at >= length:
                    break
            else:
                return None
            self.uncut[number] = (at + length, end)
            place = (number << PLACE_BITS) | at
        self.taken[place] = length
        return place

    def _take_larger(self, length):
        """A range of a larger class, or None. Needs the lock."""
        for larger in sorted(self.free):
            if larger > length and self.free[larger]:
                place = self.free[larger].pop()
                self.taken[place] = larger
                return place
        return None

    def _join(self):
        """Makes segments without taken ranges whole again; their numbers. Needs the lock."""
        used = {place >> PLACE_BITS for place in self.taken}
        whole = [number for number in self.uncut if number not in used]
        for places in self.free.values():
            places[:] = [place for place in places if (place >> PLACE_BITS) in used]
        for number in whole:
            self.uncut[number] = (0, self.uncut[number][1])
        return whole

    def _allocate(self, length):
        """A range of that class. If memory has run out, ranges of other classes are joined again, or given up for a new
        segment."""
        length = class_bytes(length)
        with self.lock:
            place = self._take(length)
        if place is not None:
            return place
        with self.socket_lock:
            gone = {}
            while True:
                with self.lock:
                    place = self._take(length)
                if place is not None:
                    # A range was freed in the meantime.
                    self._keep(gone)
                    return place
                answer = self._request_memory(length, tuple(gone))
                if answer is True:
                    # The server has removed them.
                    for number in gone:
                        del self.segments[number]
                    gone = {}
                    continue
                self._keep(gone)
                if answer is False:
                    gone = {}
                    continue
                if gone:
                    raise Refused(*answer)
                with self.lock:
                    gone = self._join()
                    place = self._take(length) or self._take_larger(length)
                    # They are not used while the request to the server is open.
                    gone = {number: self.uncut.pop(number) for number in gone} if place is None else {}
                if place is not None:
                    return place
                if not gone:
                    raise Refused(*answer)

    def _keep(self, gone):
        with self.lock:
            self.uncut.update(gone)

    def put_bytes(self, data):
        """Copies `data`, anything with contiguous bytes, to shared memory: (segment, offset, length)."""
        view = memoryview(data).cast("B")
        length = view.nbytes
        place = self._allocate(length)
        number, offset = place >> PLACE_BITS, place & PLACE_MASK
        memoryview(self.segments[number])[offset : offset + length] = view
        return number, offset, length

    def discard(self, outputs):
        """Frees the ranges of these tensors, whose message is not sent."""
        datas = [output[3] for output in outputs]
        self.take_back([(data[0] << PLACE_BITS) | data[1] for data in datas if type(data) is tuple and len(data) == 3])
        self.forget([-data[3] for data in datas if type(data) is tuple and len(data) == 6 and data[3] < 0])

    def place(self, data):
        """The data of a contiguous array or of bytes in a message: the bytes themselves if they are few, or their
        location."""
        if type(data) is bytes:
            return data if len(data) <= INLINE_MAX else self.put_bytes(data)
        length = data.nbytes
        if length <= INLINE_MAX:
            return data.tobytes()
        place = self._allocate(length)
        number, offset = place >> PLACE_BITS, place & PLACE_MASK
        _ndarray(data.shape, data.dtype, self.segments[number], offset)[...] = data
        return number, offset, length

    # Device memory of the model: (handle, offset, length, key, device, lasts), with a key below zero.

    def lend(self, owner, length):
        """Keeps the owner of a tensor on a device until the server no longer needs it; returns the number for
        messages."""
        if len(self.lent) >= self.lent_most or self.lent_bytes > LENT_BYTES_MAX:
            # During an execution the server does not report them itself.
            self.forget(self._query_lent())
            self.lent_most = max(LENT_MIN, 2 * len(self.lent))
        with self.lock:
            self.lent_count = number = self.lent_count + 1
            self.lent[number] = (owner, length)
            self.lent_bytes += length
        return number

    def forget(self, numbers):
        """Drops the owners of device tensors that the server no longer needs."""
        gone = []
        with self.lock:
            for number in numbers:
                found = self.lent.pop(number, None)
                if found is not None:
                    self.lent_bytes -= found[1]
                    gone.append(found)
        # Outside of the lock: dropping them may run the model's code.
        del gone

    # Memory that the server writes: (segment, offset, length, key). A range is released when neither the tuple that
    # names it nor a view of it has another reference; references are counted after an execution.

    def hold(self, data):
        """Keeps the range of such a tuple as long as the tuple is referenced."""
        key = data[3]
        with self.lock:
            self.received += data[2]
            values = self.held.get(key)
            if values is None:
                values = self.kept.get(key)
            if values is None:
                self.held[key] = [data]
            else:
                values.append(data)

    def view(self, data):
        """The bytes of a held range, writable: an array, because arrays made from an array refer to it, while those
        made from a memoryview refer to the object behind it."""
        number, offset, length, key = data
        memory = self.segments.get(number)
        if memory is None:
            memory = self.segment(number)
        view = _ndarray(length, _OCTET, memory, offset)
        with self.lock:
            values = self.held.get(key)
            if values is None:
                values = self.kept[key]
            values.append(view)
        return view

    def sweep(self, most=16):
        """The keys of ranges without references, for the server. It checks the new ranges, and `most` of those that
        were in use the last time."""
        released = []
        while self.released:
            # One by one: other threads append to it.
            released.append(self.released.pop())
        with self.lock:
            held, kept = self.held, self.kept
            for key in list(itertools.islice(kept, most)):
                values = kept.pop(key)
                if [one for one in values if _is_used(values, one)]:
                    # After those that are checked next.
                    kept[key] = values
                else:
                    released.append(key)
            for key in list(held):
                values = held.pop(key)
                if [one for one in values if _is_used(values, one)]:
                    kept[key] = values
                else:
                    released.append(key)
        if self.let_go is not None:
            on_device = [key for key in released if key >= ON_DEVICE]
            if on_device:
                self.let_go(on_device)
        if released:
            # A message of another thread may name one of them, and must be handled before its release.
            self._settle_others()
        return released


def _is_used(values, one):
    """Whether it has a reference other than the swept list's."""
    return sys.getrefcount(one) > _UNUSED


def _unused():
    """The reference count of an object that only the swept list refers to: versions of Python count differently."""
    counted = []

    def count(values, one):
        counted.append(sys.getrefcount(one))
        return True

    values = [[]]
    [one for one in values if count(values, one)]
    return counted[0]


_UNUSED = _unused()
