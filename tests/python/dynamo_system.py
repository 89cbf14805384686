"""A frontend of NVIDIA Dynamo and its workers, unmodified, in a network that nothing else reaches."""

import ctypes
import fcntl
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_DIE_WITH_PARENT = 1
_libc = ctypes.CDLL(None, use_errno=True)
# What Dynamo listens on, and where it looks for others.
ENVIRONMENT = {
    "DYN_DISCOVERY_BACKEND": "file",
    "DYN_EVENT_PLANE": "zmq",
    "DYN_EVENT_PLANE_HOST": "127.0.0.1",
    "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "1",
    "DYN_LOG": "info",
    "DYN_REQUEST_PLANE": "tcp",
    "DYN_SDK_DISABLE_ANSI_LOGGING": "1",
    "DYN_SYSTEM_HOST": "127.0.0.1",
    "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
    "DYN_TCP_RPC_HOST": "127.0.0.1",
    "HF_HUB_OFFLINE": "1",
}
GRPC, HTTP, METRICS = 8787, 8000, 8788
# From this release on the worker asks for the log of the server.
RELEASE = {"NVIDIA_TRITON_SERVER_VERSION": "26.11"}


def own_network():
    """Leaves the host's network: Dynamo's gRPC port listens on every address, whatever host it is given."""
    user, group = os.getuid(), os.getgid()
    if _libc.unshare(_NEW_USER | _NEW_NET) != 0:
        print(f"no network of its own: {os.strerror(ctypes.get_errno())}", flush=True)
        sys.exit(77)
    pathlib.Path("/proc/self/setgroups").write_text("deny")
    pathlib.Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    pathlib.Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        is_up = 1
        fcntl.ioctl(one, 0x8914, struct.pack("16sh14x", b"lo", is_up))
    # After the change of user, which forgets it.
    die_with_parent()


def die_with_parent():
    _libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def start(command, **options):
    """Starts a program that ends with this one. Between fork and exec nothing runs: the client's threads bear no fork."""
    return subprocess.Popen([sys.executable, "-B", __file__, *command], stdin=subprocess.DEVNULL, **options)


class Process:
    """One program of Dynamo. It ends with this one, however that ends."""

    def __init__(self, system, name, module, *arguments, **environment):
        self.name = name
        self.log = system.folder / f"{name}.log"
        environment = {**os.environ, **ENVIRONMENT, "DYN_FILE_KV": str(system.folder / "discovery"), **environment}
        command = [sys.executable, "-m", module, *arguments]
        with self.log.open("wb") as log:
            self._process = start(command, stdout=log, stderr=log, env=environment)
        self.pid = self._process.pid
        system.processes.append(self)

    def text(self):
        return self.log.read_text(errors="replace")

    def is_running(self):
        return self._process.poll() is None

    def find(self, pattern):
        """The first match of a pattern in what the program wrote, once it is there."""
        return until(lambda: self._found(pattern))

    def _found(self, pattern):
        found = re.search(pattern, self.text())
        assert found or self.is_running(), f"{self.name} ended:\n{self.text()}"
        return found

    def signal(self, number):
        self._process.send_signal(number)

    def end(self):
        return self._process.wait(timeout=300)

    def kill(self):
        if self.is_running():
            self._process.kill()
        self._process.wait()


class Worker(Process):
    """A worker for all models of a repository."""

    def __init__(self, system, name, repository, *arguments, **environment):
        arguments = ["--id", name, "--model-repository", str(repository), *arguments]
        environment = {"DYN_SYSTEM_PORT": "0", **RELEASE, **environment}
        super().__init__(system, name, "dynamo.triton", *arguments, **environment)

    def metrics(self):
        port = self.find(r"system status server bound to: 127.0.0.1:(\d+)").group(1)
        return get(f"http://127.0.0.1:{port}/metrics")

    def count(self, model, version="1"):
        """Executed inferences, as the server counts them."""
        found = re.search(rf'^nv_inference_count{{model="{model}",version="{version}"}} (\d+)$', self.metrics(), re.M)
        return int(found.group(1))


class System:
    """A frontend and its workers, and the folder by which they find each other."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.processes = []

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        for process in reversed(self.processes):
            process.kill()
            if kind:
                print(f"---- {process.name}\n{process.text()[-6000:]}", file=sys.stderr)
        shutil.rmtree(self.folder, ignore_errors=True)

    def grpc_frontend(self, **environment):
        arguments = ["--kserve-grpc-server", "--http-port", str(GRPC), "--grpc-metrics-port", str(METRICS)]
        return Process(self, "frontend", "dynamo.frontend", *arguments, **environment)

    def http_frontend(self):
        arguments = ["--http-host", "127.0.0.1", "--http-port", str(HTTP)]
        return Process(self, "http-frontend", "dynamo.frontend", *arguments)

    def worker(self, name, repository, *arguments, **environment):
        return Worker(self, name, repository, *arguments, **environment)


def until(holds, seconds=300):
    """What a condition returns once it is true. The bound is for what will never hold."""
    end = time.monotonic() + seconds
    while not (value := holds()):
        assert time.monotonic() < end, "it did not come to hold"
        time.sleep(0.02)
    return value


def get(url, data=None, kind="application/json"):
    request = urllib.request.Request(url, data=data, headers={"content-type": kind})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return answer.read().decode()


def write(folder, path, text):
    path = pathlib.Path(folder, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    if sys.argv[1:]:
        die_with_parent()
        os.execv(sys.argv[1], sys.argv[1:])
    own_network()
