"""Watches the head of the Ray cluster from a replica.

Without a head a replica gets no health checks and is not replaced, and after a minute Ray kills its process in the
middle of whatever it does. So the replica ends by itself before that: it answers the requests it has, and says why.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from typing import Callable

logger = logging.getLogger("ray.serve")

_PERIOD_S = 0.5


class HeadWatch:
    """A thread that calls `lost` with a reason once the head took no connection for `timeout_s`."""

    def __init__(self, address: str, timeout_s: float, lost: Callable[[str], None]) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host.strip("[]"), int(port))
        self._address = address
        self._timeout_s = timeout_s
        self._lost = lost
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, name="nereid-head-watch", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        seen = time.monotonic()
        while not self._stopped.wait(_PERIOD_S):
            if self._answers():
                seen = time.monotonic()
            elif time.monotonic() - seen >= self._timeout_s:
                reason = f"the Ray head at {self._address} accepted no connection for {self._timeout_s:g} s"
                self._lost(reason)
                return

    def _answers(self) -> bool:
        try:
            socket.create_connection(self._target, timeout=min(self._timeout_s, 2.0)).close()
        except OSError:
            return False
        return True
