"""The protocol between Dynamo's frontend and a worker, spoken without Dynamo: discovery by files, requests by TCP.

A worker is two files that name it, touched at least every 10 s, and a port. A request comes as one frame on a connection
that is kept, and is acknowledged there. The worker connects back for each request, to the address and with the subject
that the request names, and sends the responses.
"""

import json
import os
import socket
import struct
import threading
import urllib.parse

LIFETIME_S = 10


def _exactly(connection, size):
    data = bytearray()
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return bytes(data)


def _two_parts(head, body):
    """A message of two parts, either of which may be empty. A checksum of 0 is none."""
    return struct.pack(">QQQ", len(head), len(body), 0) + head + body


def _compact(value):
    return json.dumps(value, separators=(",", ":")).encode()


class Worker:
    """A worker for one model with one input and one output of floats: it gives back what it gets."""

    def __init__(self, discovery, model, lifetime=LIFETIME_S):
        self.requests = []
        self._is_gone = threading.Event()
        self._lifetime = lifetime
        self._number = int.from_bytes(os.urandom(7), "big")
        self._listener = socket.create_server(("127.0.0.1", 0))
        address = "%s:%d" % self._listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()
        name = {"namespace": "dynamo", "component": "wire", "endpoint": model, "instance_id": self._number}
        path = f"dynamo/wire/{model}/{self._number:x}"
        transport = {"tcp": f"{address}/{self._number:x}/dynamo/wire/{model}"}
        tensor = lambda side: [{"name": f"{side}0", "data_type": "Float32", "shape": [-1]}]
        card = {
            "display_name": model, "slug": model, "context_length": 0, "kv_cache_block_size": 0, "migration_limit": 0,
            "model_type": "TensorBased", "model_input": "Tensor", "worker_type": "aggregated", "needs": [],
            "tensor_model_config": {"name": model, "inputs": tensor("INPUT"), "outputs": tensor("OUTPUT")},
        }
        self._files = [
            self._publish(discovery, "instances", path, {
                "type": "Endpoint", **name, "transport": transport, "request_plane_codec": "json"}),
            self._publish(discovery, "mdc", path, {"type": "Model", **name, "card_json": card}),
        ]
        threading.Thread(target=self._keep, daemon=True).start()

    def _publish(self, discovery, kind, path, value):
        folder = discovery / "v1" / kind
        folder.mkdir(parents=True, exist_ok=True)
        # Readers ignore the first name.
        first = folder / f".tmp_{self._number:x}"
        first.write_bytes(_compact(value))
        return first.rename(folder / urllib.parse.quote(path, safe=""))

    def _keep(self):
        while not self._is_gone.wait(self._lifetime / 3):
            for file in self._files:
                file.touch()

    def leave(self):
        self._is_gone.set()
        for file in self._files:
            file.unlink()

    def _accept(self):
        while True:
            connection, _ = self._listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection):
        while True:
            try:
                (size,) = struct.unpack(">H", _exactly(connection, 2))
            except (EOFError, OSError):
                return
            endpoint = _exactly(connection, size).decode()
            (size,) = struct.unpack(">H", _exactly(connection, 2))
            headers = json.loads(_exactly(connection, size))
            (size,) = struct.unpack(">I", _exactly(connection, 4))
            payload = _exactly(connection, size)
            # An acknowledgement without a text: taken.
            connection.sendall(struct.pack(">I", 0))
            size, body_size, _ = struct.unpack(">QQQ", payload[:24])
            control, body = json.loads(payload[24:24 + size]), json.loads(payload[24 + size:24 + size + body_size])
            self.requests.append((endpoint, headers, control, body))
            self._answer(control, body)

    def _answer(self, control, body):
        back = json.loads(control["connection_info"]["info"])
        tensor = body["tensors"][0]
        tensor["metadata"]["name"] = "OUTPUT0"
        response = {"id": body["id"] or "", "model": body["model"], "tensors": [tensor]}
        host, port = back["address"].rsplit(":", 1)
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"".join([
                _two_parts(_compact({"subject": back["subject"], "stream_type": "response"}), b""),
                _two_parts(_compact({"error": None}), b""),
                _two_parts(b"", _compact({"data": {"data": response}, "complete_final": False})),
                _two_parts(b"", _compact({"complete_final": True})),
                _two_parts(_compact("sentinel"), b""),
            ]))
            # The other side closes first.
            while connection.recv(1024):
                pass
