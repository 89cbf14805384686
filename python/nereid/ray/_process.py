"""A process `nereid` that does not outlive the replica that started it, however the replica ends."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import Optional

from nereid.ray._errors import ServerLost

# The child asks the kernel for SIGTERM when its parent ends, and then becomes the server, which keeps the wish. This is
# a program of its own because a function between fork and exec may wait for ever on a lock of another thread.
_BIND_TO_PARENT = """
import ctypes, os, signal, sys
parent = int(sys.argv[1])
if ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM, 0, 0, 0) != 0:
    sys.exit("prctl(PR_SET_PDEATHSIG): " + os.strerror(ctypes.get_errno()))
if os.getppid() != parent:
    sys.exit("the replica ended before its server started")
os.execv(sys.argv[2], sys.argv[2:])
"""
_ATTEMPTS = 3
_POLL_S = 0.02


def program() -> str:
    """The path of `nereid`: the wheel's own, or the one on PATH."""
    try:
        files = importlib.metadata.files("nereid") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    own = [pathlib.Path(str(file.locate())).resolve() for file in files if file.name == "nereid"]
    found = next((str(path) for path in own if os.access(path, os.X_OK) and path.is_file()), None)
    found = found or shutil.which("nereid")
    if found is None:
        raise ServerLost("neither the installed wheel nor PATH has the program nereid: install the wheel on each node")
    return found


def _free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody had a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class ServerProcess:
    """The process, and the addresses that it serves on 127.0.0.1."""

    def __init__(self, flags: list[str], start_timeout_s: float) -> None:
        self._end: Optional[int] = None
        self._ended = threading.Event()
        # Between the choice of a port and its use another process may take it.
        for attempt in range(1, _ATTEMPTS + 1):
            self.http, self.grpc, self.metrics = (f"127.0.0.1:{port}" for port in _free_ports(3))
            self._run(flags)
            if self._is_up(start_timeout_s):
                return
            if not self._ended.is_set():
                self.stop(grace_s=1.0)
                raise ServerLost(f"the server was not ready after {start_timeout_s:g} s: raise start_timeout_s")
            if attempt == _ATTEMPTS or not self._is_port_taken():
                raise ServerLost(f"the server ended with status {self._end} before it was ready: see its log on stderr")

    def _is_port_taken(self) -> bool:
        for address in (self.http, self.grpc, self.metrics):
            host, _, port = address.rpartition(":")
            with socket.socket() as probe:
                try:
                    probe.bind((host, int(port)))
                except OSError:
                    return True
        return False

    def _run(self, flags: list[str]) -> None:
        # Ray sends no requests any more when the server is to end, so there is nothing to wait for.
        ports = ["--drain-delay=0"]
        for name, address in [("http", self.http), ("grpc", self.grpc), ("metrics", self.metrics)]:
            host, _, port = address.rpartition(":")
            ports += [f"--{name}-address={host}", f"--{name}-port={port}"]
        # -I and -S: no site, no path of the caller's: the interpreter is there for one call.
        command = [sys.executable, "-I", "-S", "-c", _BIND_TO_PARENT, str(os.getpid()), program(), *flags, *ports]
        self._ended = threading.Event()
        self._end = None
        started = threading.Event()
        thread = threading.Thread(target=self._own, args=(command, started), name="nereid-process", daemon=True)
        thread.start()
        started.wait()
        if isinstance(self._failure, OSError):
            raise ServerLost(f"the server cannot be started: {self._failure}")

    def _own(self, command: list[str], started: threading.Event) -> None:
        # The kernel sends the signal when the thread ends that started the child, hence a thread that lives as long.
        self._failure: Optional[OSError] = None
        # That of the service that runs the raylet.
        environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
        try:
            # A group of its own: Ctrl-C of the terminal ends the replica first, and the replica its server.
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, env=environment)
        except OSError as error:
            self._failure = error
            started.set()
            self._ended.set()
            return
        self.pid = process.pid
        ended = self._ended
        started.set()
        self._end = process.wait()
        ended.set()

    def _is_up(self, timeout_s: float) -> bool:
        until = time.monotonic() + timeout_s
        while time.monotonic() < until and not self._ended.wait(_POLL_S):
            if self.is_ready():
                return True
        return False

    def is_running(self) -> bool:
        return not self._ended.is_set()

    @property
    def status(self) -> Optional[int]:
        """The status with which it ended; minus the signal that killed it."""
        return self._end

    def is_ready(self) -> bool:
        status, _ = self.ask("/v2/health/ready")
        return status == 200

    def ask(
        self, path: str, method: str = "GET", at: Optional[str] = None, timeout_s: float = 5.0
    ) -> tuple[int, bytes]:
        """The status and the body of one call; status 0 if there is no answer."""
        body = b"{}" if method == "POST" else None
        request = urllib.request.Request(f"http://{at or self.http}{path}", data=body, method=method)
        # A proxy of the environment is for other hosts than this one.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=timeout_s) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError as error:
            return 0, str(error).encode()

    def stop(self, grace_s: float) -> None:
        """SIGTERM, which lets requests end, and SIGKILL after `grace_s` seconds."""
        for number, wait_s in [(signal.SIGTERM, grace_s), (signal.SIGKILL, 10.0)]:
            if self._ended.is_set():
                return
            os.kill(self.pid, number)
            self._ended.wait(wait_s)
