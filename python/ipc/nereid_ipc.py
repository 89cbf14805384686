"""A client of the server's shared-memory ring (docs/ipc.md), with Python's standard library only.

    client = nereid_ipc.Client("/run/nereid/ipc")
    outputs = client.infer("add", {"INPUT0": ("INT32", [4], numpy.arange(4, dtype=numpy.int32))})
    print(outputs["OUTPUT0"].shape, bytes(outputs["OUTPUT0"].data))

`Client.call` makes a unary call of any method of the gRPC service with an encoded message, so that messages of a
generated module can be used too. `Client.begin`, `send`, `cancel` and `next` keep several calls open and speak to
decoupled models. Tensors in `Client.arena` are read and written by the server where they are.

A client belongs to one thread at a time.
"""

import collections
import mmap
import os
import platform
import select
import socket
import struct
import time

__all__ = [
    "Client",
    "Closed",
    "Output",
    "Refused",
    "StatusError",
    "decode_infer_response",
    "encode_infer_request",
    "place_in_arena",
]

_MAGIC = b"NRDIPC01"
_VERSION = 1
_HELLO = struct.Struct("<8sIIQ")
_HEADER = struct.Struct("<8sIIQQQQQQQII")
_NAME_AT = 80
_REQUEST_HEAD, _REQUEST_TAIL, _RESPONSE_HEAD, _RESPONSE_TAIL = 512 // 8, 640 // 8, 768 // 8, 896 // 8
_SERVER_BELL, _CLIENT_BELL, _EMPTIED = 1024 // 8, 1152 // 8, 1280 // 8
_FRAMES, _ROOM = 1, 2
_FRAME = struct.Struct("<II")
_SKIP = 0xFFFFFFFF
_ROUTE, _CALL, _DATA, _CANCEL = 1, 2, 3, 4
_FROM_DATA, _FROM_STATUS, _FROM_LEAVE = 1, 2, 3
_END = 1
_CALL_HEAD = struct.Struct("<IHHQ")
_DATA_HEAD = struct.Struct("<II")
_PREFIX = struct.Struct(">BI")
_SERVICE = "/inference.GRPCInferenceService/"

# Python has no memory fence. This system call takes a lock of the scheduler, behind which the kernel has a full one.
_fence = os.sched_yield
# Only x86 keeps the order of stores, and of loads, by itself.
_order = (lambda: None) if platform.machine() in ("x86_64", "AMD64", "i686") else _fence


class Closed(Exception):
    """The connection has ended; the text may say why."""


class Refused(Exception):
    """The server does not take this client."""


class StatusError(Exception):
    """A call has failed, as over gRPC."""

    def __init__(self, code, text, trailers):
        super().__init__(f"status {code}: {text}")
        self.code = code
        self.text = text
        self.trailers = trailers


Output = collections.namedtuple("Output", "datatype shape data")


class Client:
    """One connection: `path` is what the server's --ipc-path names, `metadata` goes with every call."""

    def __init__(self, path, metadata=()):
        self._memory = None
        self._closed = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(os.fspath(path))
            self._map(self._greeting())
        except BaseException:
            self.close()
            raise
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._metadata = [(_bytes(name), _bytes(value)) for name, value in metadata]
        self._routes = {}
        self._last_call = 0
        self._head = 0
        self._tail = 0
        # Calls for which something may still come: where their first frames end in the ring.
        self._open = {}
        # Bytes of messages that are not complete.
        self._partial = {}
        self._events = collections.deque()
        # Nothing more can be read; the server has said why it ends the connection.
        self._is_cut = self._has_farewell = False
        self.is_leaving = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends the connection; calls that are open are cancelled. The memory is unmapped, at once or with the last
        slice of the arena that the caller has kept."""
        self._socket.close()
        self._closed = self._closed or Closed("the client has closed the connection")
        memory, self._memory = self._memory, None
        if memory is None:
            return
        self._words = self._bytes = self.arena = None
        try:
            memory.close()
        except BufferError:
            # A slice of the arena is in use: the mapping goes with it.
            pass

    def _greeting(self):
        # Not socket.recv_fds, which ignores its flags.
        space = socket.CMSG_SPACE(struct.calcsize("i"))
        hello, control, _, _ = self._socket.recvmsg(_HELLO.size, space, socket.MSG_CMSG_CLOEXEC)
        descriptors = []
        for level, kind, data in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors += struct.unpack(f"{len(data) // 4}i", data[: len(data) // 4 * 4])
        try:
            while len(hello) < _HELLO.size:
                more = self._socket.recv(_HELLO.size - len(hello))
                if not more:
                    raise Closed("the server has closed the connection")
                hello += more
            magic, version, code, size = _HELLO.unpack(hello)
            if magic != _MAGIC or version != _VERSION:
                raise Refused(f"the server does not speak version {_VERSION} of the shared-memory ring")
            if code != 0:
                text = b""
                while len(text) < size and (more := self._socket.recv(min(size - len(text), 65536))):
                    text += more
                raise Refused(f"status {code}: {text.decode(errors='replace')}")
            if not descriptors:
                raise Refused("the server sent no memory object")
            return descriptors.pop(0), size
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _map(self, given):
        descriptor, size = given
        try:
            self._memory = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(descriptor)
        head = _HEADER.unpack_from(self._memory, 0)
        magic, version, _, whole, *places, name_len, self._routes_max = head
        if magic != _MAGIC or version != _VERSION or whole != size:
            raise Refused("the object is none of this version of the shared-memory ring")
        self._requests, self._responses, arena = zip(places[0::2], places[1::2])
        view = memoryview(self._memory)
        self._words = view[:4096].cast("Q")
        self._bytes = view
        self.arena = view[arena[0] : arena[0] + arena[1]]
        """The memory for tensors, which the caller divides; place tensors at multiples of 64."""
        self.arena_name = bytes(view[_NAME_AT : _NAME_AT + name_len]).decode()
        """What shared_memory_region is for tensors in the arena."""

    # Calls.

    def call(self, method, message, timeout=None):
        """A unary call: the encoded response. `timeout` in seconds is the call's deadline."""
        this = self.begin(method, message, timeout=timeout)
        response = b""
        while True:
            call, kind, value = self.next()
            if call != this:
                continue
            if kind == "message":
                response = value
            elif value is None:
                return response
            else:
                raise value

    def begin(self, method, message, ends=True, timeout=None, metadata=None):
        """Begins a call and returns its number. `method` is a name such as "ModelInfer", or a whole path. Not `ends`:
        further messages follow (`send`)."""
        if self.is_leaving and not self._closed:
            raise Closed("the server leaves: it takes no new calls on this connection")
        message, prefix = _framed(message)
        route = self._route(method, metadata)
        call = self._last_call % 0xFFFFFFFF + 1
        while call in self._open:
            call = call % 0xFFFFFFFF + 1
        self._last_call = call
        timeout_ns = 0 if timeout is None else max(1, int(timeout * 1e9))
        most = self._requests[1] // 2 - 8 - _CALL_HEAD.size - _PREFIX.size
        flags = _END if ends and len(message) <= most else 0
        self._open[call] = float("inf")
        try:
            self._push(_CALL, _CALL_HEAD.pack(call, route, flags, timeout_ns) + prefix, message[:most])
        except BaseException:
            self._forget(call)
            raise
        # Its end may have come already.
        if call in self._open:
            self._open[call] = self._head
        self._go_on(call, message, most, ends)
        return call

    def send(self, call, message, ends=False):
        """Another message of a call."""
        message, prefix = _framed(message)
        most = self._requests[1] // 2 - 8 - _DATA_HEAD.size - _PREFIX.size
        flags = _END if ends and len(message) <= most else 0
        self._push(_DATA, _DATA_HEAD.pack(call, flags) + prefix, message[:most])
        self._go_on(call, message, most, ends)

    def finish(self, call):
        """No message follows."""
        self._push(_DATA, _DATA_HEAD.pack(call, _END))

    def cancel(self, call):
        """Waits no longer for a call: `next` returns nothing of it any more."""
        self._forget(call)
        self._events = collections.deque(event for event in self._events if event[0] != call)
        self._push(_CANCEL, _DATA_HEAD.pack(call, 0))

    def is_taken(self, call):
        """Whether the server has taken a call from the ring, or all of it is over. A call that it has not taken when the
        connection has ended (`Closed`) has not run: it can be repeated elsewhere. Ask before `close`."""
        return call not in self._open or self._words is None or self._words[_REQUEST_TAIL] >= self._open[call]

    @property
    def is_emptied(self):
        """The server has ended the connection and emptied the rings and the arena. What was copied out of the arena
        before this was false is what was written."""
        _order()
        return self._words is None or self._words[_EMPTIED] != 0

    def next(self, timeout=None):
        """What comes next: (call, "message", bytes) or (call, "end", None or a StatusError). `timeout` in seconds;
        None is returned when it is over."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._memory is None:
                raise self._closed
            self._read()
            if self._events:
                return self._events.popleft()
            if self._closed:
                raise self._closed
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return None
            self._sleep(_FRAMES, left, lambda: self._words[_RESPONSE_HEAD] != self._tail)

    def infer(self, model, inputs, outputs=(), version="", id="", parameters=None, timeout=None):
        """Calls a model that answers once. `inputs`: names to (datatype, shape, any buffer). Returns names to Output."""
        message = encode_infer_request(model, inputs, outputs, version, id, parameters)
        return decode_infer_response(self.call("ModelInfer", message, timeout))

    def _route(self, method, metadata):
        path = method if method.startswith("/") else _SERVICE + method
        pairs = self._metadata + [(_bytes(name), _bytes(value)) for name, value in metadata or ()]
        key = (path, tuple(pairs))
        route = self._routes.get(key)
        if route is None:
            if len(self._routes) >= self._routes_max:
                raise ValueError(f"a client defines at most {self._routes_max} methods with their metadata")
            route = len(self._routes)
            strings = [path.encode()] + [text for pair in pairs for text in pair]
            payload = struct.pack("<I", route) + b"".join(struct.pack("<I", len(text)) + text for text in strings)
            self._push(_ROUTE, payload)
            self._routes[key] = route
        return route

    def _go_on(self, call, message, at, ends):
        """Sends what lies behind `at`. Parts are views: a long message is copied once, into the ring."""
        most = self._requests[1] // 2 - 8 - _DATA_HEAD.size
        while at < len(message):
            part = message[at : at + most]
            at += len(part)
            self._push(_DATA, _DATA_HEAD.pack(call, _END if ends and at == len(message) else 0), part)

    # Rings.

    def _has_room(self, frame):
        at, capacity = self._head % self._requests[1], self._requests[1]
        skipped = capacity - at if frame > capacity - at else 0
        return self._head - self._words[_REQUEST_TAIL] + skipped + frame <= capacity

    def _push(self, kind, head, part=b""):
        if self._closed:
            raise self._closed
        base, capacity = self._requests
        length = len(head) + len(part)
        frame = (8 + length + 7) & ~7
        if length > capacity // 2 - 8:
            raise ValueError("a frame is longer than half of the ring")
        while not self._has_room(frame):
            self._read()
            if self._closed:
                raise self._closed
            wanted = lambda: self._has_room(frame) or self._words[_RESPONSE_HEAD] != self._tail
            self._sleep(_FRAMES | _ROOM, None, wanted)
        _order()
        at = self._head % capacity
        if frame > capacity - at:
            _FRAME.pack_into(self._memory, base + at, _SKIP, 0)
            self._head += capacity - at
            at = 0
        _FRAME.pack_into(self._memory, base + at, length, kind)
        at += base + 8
        self._bytes[at : at + len(head)] = head
        self._bytes[at + len(head) : at + length] = part
        self._head += frame
        _order()
        self._words[_REQUEST_HEAD] = self._head
        self._ring_if_wanted(_FRAMES)

    def _ring_if_wanted(self, event):
        _fence()
        if self._words[_SERVER_BELL] & event:
            # Not exchanged, but written: at worst the server is woken twice.
            self._words[_SERVER_BELL] = 0
            self._ring()

    def _ring(self):
        try:
            self._socket.send(b"\x01")
        except (BrokenPipeError, ConnectionResetError):
            self._read_to_the_end()

    def _sleep(self, events, timeout, is_over):
        self._words[_CLIENT_BELL] = events
        _fence()
        if not is_over() and self._poll.poll(None if timeout is None else timeout * 1000):
            try:
                if not self._socket.recv(64):
                    self._read_to_the_end()
            except ConnectionResetError:
                self._read_to_the_end()
        self._words[_CLIENT_BELL] = 0

    def _read_to_the_end(self):
        self._closed = self._closed or Closed("the server has closed the connection")
        self._read()

    def _read(self):
        base, capacity = self._responses
        has_read = False
        while not self._is_cut and (head := self._words[_RESPONSE_HEAD]) != self._tail:
            _order()
            at = self._tail % capacity
            length, kind = _FRAME.unpack_from(self._memory, base + at) if capacity - at >= 8 else (_SKIP, 0)
            payload = b"" if length == _SKIP else bytes(self._bytes[base + at + 8 : base + at + 8 + length])
            # Looked at behind the copy, or zeros could pass for a frame or for some of its bytes.
            if self.is_emptied:
                return self._cut("the server has taken its memory back, with what was not read in it")
            self._tail += capacity - at if length == _SKIP else (8 + length + 7) & ~7
            if self._tail > head or (length != _SKIP and length > capacity - at - 8):
                return self._cut("what the server wrote cannot be")
            if length != _SKIP:
                try:
                    self._take(kind, payload)
                except (struct.error, IndexError):
                    return self._cut("what the server wrote cannot be")
            has_read = True
            _order()
            self._words[_RESPONSE_TAIL] = self._tail
        if has_read and not self._closed:
            self._ring_if_wanted(_ROOM)

    def _cut(self, text):
        """Nothing behind this is read. What was read before is whole."""
        self._is_cut = True
        self._closed = Closed(str(self._closed) if self._has_farewell else text)

    def _forget(self, call):
        self._open.pop(call, None)
        self._partial.pop(call, None)

    def _take(self, kind, payload):
        call, flags = _DATA_HEAD.unpack_from(payload)
        # What was under way when its call was cancelled is nobody's.
        if kind == _FROM_DATA and call in self._open:
            self._take_data(call, payload)
            if flags & _END:
                self._forget(call)
                self._events.append((call, "end", None))
        elif kind == _FROM_STATUS and (call == 0 or call in self._open):
            self._forget(call)
            strings, at = [], 8
            while at < len(payload):
                (length,) = struct.unpack_from("<I", payload, at)
                strings.append(payload[at + 4 : at + 4 + length])
                at += 4 + length
            text = strings[0].decode(errors="replace") if strings else ""
            if call == 0:
                self._closed, self._has_farewell = Closed(text), True
                return
            trailers = list(zip(strings[1::2], strings[2::2]))
            self._events.append((call, "end", None if flags == 0 else StatusError(flags, text, trailers)))
        elif kind == _FROM_LEAVE:
            self.is_leaving = True

    def _take_data(self, call, payload):
        """The bytes of messages behind the head of a frame. Those of a message that is not complete are appended to
        what is there, so that a long message is not copied again with each of its parts."""
        pending = self._partial.get(call)
        at = _DATA_HEAD.size
        if pending is not None:
            pending += memoryview(payload)[at:]
            payload, at = pending, 0
        with memoryview(payload) as view:
            while len(view) - at >= _PREFIX.size:
                begin = at + _PREFIX.size
                end = begin + _PREFIX.unpack_from(view, at)[1]
                if end > len(view):
                    break
                self._events.append((call, "message", bytes(view[begin:end])))
                at = end
        if at == len(payload):
            self._partial.pop(call, None)
        elif pending is None:
            self._partial[call] = bytearray(memoryview(payload)[at:])
        else:
            del pending[:at]


# Messages of inference, as protobuf encodes them (proto/grpc_service.proto).


def _bytes(text):
    return text.encode() if isinstance(text, str) else bytes(text)


def _raw(data):
    """The bytes of any buffer, whatever its shape."""
    return memoryview(data).tobytes()


def _framed(message):
    """A message as a view of bytes, and its prefix."""
    view = memoryview(message)
    if view.ndim != 1 or view.itemsize != 1 or not view.c_contiguous:
        view = memoryview(_raw(view))
    if len(view) > 0xFFFFFFFF:
        raise ValueError(f"a message of {len(view)} bytes is too long: its length has 32 bits")
    return view.cast("B"), _PREFIX.pack(0, len(view))


def _varint(number):
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number, value):
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _parameters(number, parameters):
    out = b""
    for key, value in (parameters or {}).items():
        if isinstance(value, bool):
            choice = b"\x08" + _varint(value)
        elif isinstance(value, int):
            choice = b"\x10" + _varint(value)
        elif isinstance(value, float):
            choice = b"\x21" + struct.pack("<d", value)
        else:
            choice = _field(3, _bytes(value))
        out += _field(number, _field(1, _bytes(key)) + _field(2, choice))
    return out


def place_in_arena(client, offset, byte_size):
    """The parameters of a tensor that lies in the arena."""
    return {
        "shared_memory_region": client.arena_name,
        "shared_memory_offset": offset,
        "shared_memory_byte_size": byte_size,
    }


def encode_infer_request(model, inputs, outputs=(), version="", id="", parameters=None):
    """A ModelInferRequest. An input is (datatype, shape, bytes-like) or (datatype, shape, parameters of its place); an
    output is a name, or a name and the parameters of its place."""
    message, raw = _field(1, _bytes(model)), []
    if version:
        message += _field(2, _bytes(version))
    if id:
        message += _field(3, _bytes(id))
    message += _parameters(4, parameters)
    for name, (datatype, shape, data) in inputs.items():
        tensor = _field(1, _bytes(name)) + _field(2, _bytes(datatype))
        tensor += _field(3, b"".join(_varint(int(dim)) for dim in shape))
        if isinstance(data, dict):
            tensor += _parameters(4, data)
        else:
            data = _raw(data)
            raw += [_varint(7 << 3 | 2) + _varint(len(data)), data]
        message += _field(5, tensor)
    for output in outputs:
        name, place = (output, None) if isinstance(output, str) else output
        message += _field(6, _field(1, _bytes(name)) + _parameters(2, place))
    return b"".join([message, *raw])


def _fields(message):
    at = 0

    def varint():
        nonlocal at
        number, shift = 0, 0
        while True:
            byte = message[at]
            at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    while at < len(message):
        key = varint()
        if key & 7 == 2:
            length = varint()
            yield key >> 3, message[at : at + length]
            at += length
        elif key & 7 == 0:
            yield key >> 3, varint()
        else:
            width = 8 if key & 7 == 1 else 4
            yield key >> 3, message[at : at + width]
            at += width


def _dims(value):
    if isinstance(value, int):
        return [value]
    dims, number, shift = [], 0, 0
    for byte in value:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            dims.append(number)
            number, shift = 0, 0
    return dims


def decode_infer_response(message):
    """Names to Output, of a ModelInferResponse whose outputs are raw. An output in the arena has no data."""
    tensors, raw = [], []
    for number, value in _fields(memoryview(message)):
        if number == 5:
            name, datatype, shape = "", "", []
            for inner, of in _fields(value):
                if inner == 1:
                    name = str(of, "utf-8")
                elif inner == 2:
                    datatype = str(of, "utf-8")
                elif inner == 3:
                    shape += _dims(of)
            tensors.append((name, datatype, shape))
        elif number == 6:
            raw.append(value)
    raw += [memoryview(b"")] * (len(tensors) - len(raw))
    return {name: Output(datatype, shape, data) for (name, datatype, shape), data in zip(tensors, raw)}
