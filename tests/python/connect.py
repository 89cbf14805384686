"""One face for the four official clients, so that a script states its check once.

`connect("http" | "grpc" | "http-aio" | "grpc-aio", url)` gives an object with the methods of the client; those of the
asynchronous clients are run to their end.
"""

import asyncio
import contextlib
import importlib
import inspect

PROTOCOLS = ["http", "grpc", "http-aio", "grpc-aio"]


class Connection:
    """A client and the module whose InferInput and InferRequestedOutput go with it."""

    def __init__(self, protocol, url):
        self.protocol = protocol
        self.is_http = protocol.startswith("http")
        self.tensors = importlib.import_module("tritonclient.http" if self.is_http else "tritonclient.grpc")
        self._loop = asyncio.new_event_loop() if protocol.endswith("-aio") else None
        module = importlib.import_module(f"tritonclient.{protocol.replace('-', '.')}")
        make = module.InferenceServerClient
        self.client = make(url) if self._loop is None else self._run(self._made(make, url))

    @staticmethod
    async def _made(make, url):
        return make(url)

    def _run(self, work):
        return self._loop.run_until_complete(work)

    def __getattr__(self, name):
        method = getattr(self.client, name)

        def call(*args, **kwargs):
            result = method(*args, **kwargs)
            return self._run(result) if inspect.isawaitable(result) else result

        return call

    def input(self, name, array, datatype, binary=True):
        """A tensor to send; over HTTP as binary data or as JSON."""
        tensor = self.tensors.InferInput(name, list(array.shape), datatype)
        if self.is_http:
            tensor.set_data_from_numpy(array, binary_data=binary)
        else:
            tensor.set_data_from_numpy(array)
        return tensor

    def output(self, name, binary=True, class_count=0):
        """A tensor to ask for; over HTTP as binary data or as JSON."""
        if self.is_http:
            return self.tensors.InferRequestedOutput(name, binary_data=binary, class_count=class_count)
        return self.tensors.InferRequestedOutput(name, class_count=class_count)

    def close(self):
        with contextlib.suppress(Exception):
            result = self.client.close()
            if inspect.isawaitable(result):
                self._run(result)
        if self._loop is not None:
            self._loop.close()


@contextlib.contextmanager
def connect(protocol, url):
    connection = Connection(protocol, url)
    try:
        yield connection
    finally:
        connection.close()


def expect(what, got, wanted):
    """Ends the script with both values unless they are equal."""
    if got != wanted:
        raise SystemExit(f"{what}: expected {wanted!r}, got {got!r}")
