"""The shared memory of a worker beside its streams: what it writes there for the server, and what the server wrote.

Outputs go to places that the worker cuts from segments and gets back once the server is through with them. Inputs are
ranges that the server chose, which views refer to; when nothing does any more is found by counting references. How the
server is asked for more is the link's to know.
"""

import itertools
import sys

import numpy as np

# Bytes up to which an array travels in its message.
INLINE_MAX = 4096
PLACE_BITS = 40
PLACE_MASK = (1 << PLACE_BITS) - 1

# The keys of tensors that lie on a device begin here.
ON_DEVICE = 1 << 62
# Tensors of the model's, and bytes of them, that the server may have before it is asked which it needs no more.
LENT_MIN = 16
LENT_BYTES_MAX = 256 << 20

_ndarray = np.ndarray
_OCTET = np.dtype(np.uint8)


class Refused(Exception):
    """The server says no: its code, as TRITONSERVER_Error_Code, and its text."""

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
    """Of one process. Whoever extends it brings `lock` and `socket_lock`, `segment(number)` for one that may still be
    on its way, `_ask_for_memory(length, gone)` and `_settle_others()`."""

    def __init__(self):
        self.segments = {}
        self.free = {}
        self.taken = {}
        # What of each segment was not cut yet: (from, to).
        self.uncut = {}
        self.held = {}
        self.kept = {}
        self.released = []
        # Bytes that came since the last look at what is still in use.
        self.received = 0
        # What of the model's lies on a device and is lent to the server, by number, with its bytes.
        self.lent = {}
        self.lent_bytes = 0
        self.lent_count = 0
        self.lent_most = LENT_MIN
        # Told, before the server is, of keys of the server's tensors on a device that nothing refers to.
        self.let_go = None

    # Memory that this side writes.

    def take_back(self, places):
        """The server needs these no more."""
        with self.lock:
            for place in places:
                length = self.taken.pop(place, None)
                if length is not None:
                    self.free.setdefault(length, []).append(place)

    def free_bytes(self):
        """Bytes of the segments that nothing is in."""
        with self.lock:
            uncut = sum(end - at for at, end in self.uncut.values())
            return uncut + sum(length * len(places) for length, places in self.free.items())

    def _take(self, length):
        """A place of that class, or None. Needs the lock."""
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
        """A place of a larger class, or None. Needs the lock."""
        for larger in sorted(self.free):
            if larger > length and self.free[larger]:
                place = self.free[larger].pop()
                self.taken[place] = larger
                return place
        return None

    def _join(self):
        """Cuts the segments anew of which nothing is taken; their numbers. Needs the lock."""
        used = {place >> PLACE_BITS for place in self.taken}
        whole = [number for number in self.uncut if number not in used]
        for places in self.free.values():
            places[:] = [place for place in places if (place >> PLACE_BITS) in used]
        for number in whole:
            self.uncut[number] = (0, self.uncut[number][1])
        return whole

    def _allocate(self, length):
        """A place of that class. Where there is no more memory, that of other classes is joined again, or given back
        for what is needed."""
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
                    # It came back in the meantime.
                    self._keep(gone)
                    return place
                answer = self._ask_for_memory(length, tuple(gone))
                if answer is True:
                    # The server has taken them.
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
                    # They serve nobody while the server is asked.
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
        """What was placed for these tensors of a message is not sent."""
        datas = [output[3] for output in outputs]
        self.take_back([(data[0] << PLACE_BITS) | data[1] for data in datas if type(data) is tuple and len(data) == 3])
        self.forget([-data[3] for data in datas if type(data) is tuple and len(data) == 6 and data[3] < 0])

    def place(self, data):
        """What a message carries of a contiguous array or of bytes: themselves when they are few, or where they are."""
        if type(data) is bytes:
            return data if len(data) <= INLINE_MAX else self.put_bytes(data)
        length = data.nbytes
        if length <= INLINE_MAX:
            return data.tobytes()
        place = self._allocate(length)
        number, offset = place >> PLACE_BITS, place & PLACE_MASK
        _ndarray(data.shape, data.dtype, self.segments[number], offset)[...] = data
        return number, offset, length

    # Memory on devices that is the model's: (handle, offset, length, key, device, lasts), with a key below zero.

    def lend(self, owner, length):
        """Keeps what owns a tensor on a device until the server needs it no more; the number that it has there."""
        if len(self.lent) >= self.lent_most or self.lent_bytes > LENT_BYTES_MAX:
            # In the midst of an execution nobody is told.
            self.forget(self._ask_for_lent())
            self.lent_most = max(LENT_MIN, 2 * len(self.lent))
        with self.lock:
            self.lent_count = number = self.lent_count + 1
            self.lent[number] = (owner, length)
            self.lent_bytes += length
        return number

    def forget(self, numbers):
        """The server needs these no more."""
        gone = []
        with self.lock:
            for number in numbers:
                found = self.lent.pop(number, None)
                if found is not None:
                    self.lent_bytes -= found[1]
                    gone.append(found)
        # Outside of the lock: what owns them is the model's code.
        del gone

    # Memory that the server writes: (segment, offset, length, key). A range is the server's again when neither the
    # tuple that names it nor a view of it is referred to by anybody else; counts are looked at after an execution.

    def hold(self, data):
        """Keeps the range behind such a tuple for as long as the tuple is referred to."""
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
        """The bytes of a held range, to be written to as well: an array, because arrays of an array refer to it, while
        those of a memoryview refer to what is behind it."""
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
        """The keys of ranges to which nothing refers any more, for the server: looked at are those that are new, and
        `most` of those that were in use the last time."""
        released = []
        while self.released:
            # One by one: other threads add to it.
            released.append(self.released.pop())
        with self.lock:
            held, kept = self.held, self.kept
            for key in list(itertools.islice(kept, most)):
                values = kept.pop(key)
                if [one for one in values if _is_used(values, one)]:
                    # Behind those that are looked at next.
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
            # A message that another thread has sent may name one of them, and is to be heard before it is gone.
            self._settle_others()
        return released


def _is_used(values, one):
    """Whether anybody but the list that is swept refers to it."""
    return sys.getrefcount(one) > _UNUSED


def _unused():
    """What the count of that is to which only the swept list refers: versions of Python count differently."""
    counted = []

    def count(values, one):
        counted.append(sys.getrefcount(one))
        return True

    values = [[]]
    [one for one in values if count(values, one)]
    return counted[0]


_UNUSED = _unused()
