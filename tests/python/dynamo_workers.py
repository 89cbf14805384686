"""Workers of NVIDIA Dynamo, unmodified, that share a model, come, go and die, under load."""

import collections
import contextlib
import pathlib
import signal
import sys
import threading
import time

from cases import case, run
from dynamo_system import GRPC, System, own_network, until, write

if __name__ == "__main__":
    # Before the imports that start threads.
    own_network()

import numpy
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

CLIENTS = 4
SLOW = """
backend: "python" max_batch_size: 0
input { name: "INPUT0" data_type: TYPE_INT32 dims: 1 }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: 1 }
instance_group { count: 2 kind: KIND_CPU }
"""
# Slow enough that a worker that is ended has requests.
MODEL = """
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.05)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy() + 1)])
                for request in requests]
"""


class Load:
    """Clients that send one request after the other, and count what comes."""

    def __init__(self):
        self.lock = threading.Lock()
        self.answered = 0
        self.failed = collections.Counter()
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(i,), daemon=True) for i in range(CLIENTS)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        self.more(2 * CLIENTS)
        return self

    def __exit__(self, kind, value, trace):
        self._is_over.set()
        for thread in self._threads:
            thread.join(300)
            assert not thread.is_alive(), "a request was never answered"

    def _send(self, number):
        with contextlib.closing(grpcclient.InferenceServerClient(f"127.0.0.1:{GRPC}")) as client:
            while not self._is_over.is_set():
                number += 1
                try:
                    came = ask(client, number)
                except InferenceServerException as error:
                    with self.lock:
                        self.failed[str(error)[:200]] += 1
                    time.sleep(0.01)
                else:
                    with self.lock:
                        self.answered += came == number + 1
                        self.failed.update([f"{came} in place of {number + 1}"] if came != number + 1 else [])

    def more(self, count):
        """Waits for this many further answers."""
        enough = self.answered + count
        until(lambda: self.answered >= enough)


def ask(client, number):
    tensor = grpcclient.InferInput("INPUT0", [1], "INT32")
    tensor.set_data_from_numpy(numpy.array([number], numpy.int32))
    return int(client.infer("slow", [tensor], client_timeout=300).as_numpy("OUTPUT0")[0])


def has_answered(worker):
    with contextlib.suppress(OSError, AttributeError):
        return worker.count("slow") > 0
    return False


def started(system, *names):
    """Workers that get requests, and what became of those that were sent meanwhile."""
    workers = [system.worker(name, system.folder / "models") for name in names]
    with Load() as load:
        for worker in workers:
            worker.find("Registered endpoint")
            until(lambda worker=worker: has_answered(worker))
    return workers, load


def children(pid):
    """Processes that this one started: of a worker, those of its models."""
    found = []
    for status in pathlib.Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            if f"\nPPid:\t{pid}\n" in status.read_text():
                found.append(status.parent)
    return found


def scrape(worker):
    """Asks for metrics for as long as the worker answers, also while its server stops."""
    while worker.is_running():
        with contextlib.suppress(OSError):
            worker.metrics()


@case
def two_workers_share_a_model_and_one_that_is_asked_to_end_loses_no_request():
    workers, _ = started(system, "a", "b")
    a, b = workers
    with Load() as load:
        before = a.count("slow"), b.count("slow")
        load.more(40)
        after = a.count("slow"), b.count("slow")
        assert all(new - old >= 10 for old, new in zip(before, after)), (before, after)
        scrapes = threading.Thread(target=scrape, args=[a], daemon=True)
        scrapes.start()
        a.signal(signal.SIGTERM)
        status = a.end()
        load.more(20)
        scrapes.join(300)
    assert not load.failed, load.failed
    assert status == 0, (status, a.text()[-3000:])
    at_end = b.count("slow")
    with Load() as load:
        load.more(20)
    assert not load.failed, load.failed
    assert b.count("slow") - at_end >= load.answered, (at_end, b.count("slow"), load.answered)


@case
def a_worker_that_is_killed_is_replaced():
    b = next(process for process in system.processes if process.name == "b")
    (c,), load = started(system, "c")
    assert not load.failed, load.failed
    processes = children(b.pid)
    assert len(processes) == 2, processes
    with Load() as load:
        b.signal(signal.SIGKILL)
        b.end()
        # What it had, and what is sent to it before the frontend misses it, fails; nothing waits for ever.
        load.more(60)
        failed = dict(load.failed)
    print(f"failed with a killed worker: {sum(failed.values())} of {load.answered + sum(failed.values())}: {failed}")
    until(lambda: not any(one.exists() for one in processes))
    # In time its entry has gone, and all are answered by the worker that is left.
    left = system.folder / "discovery" / "v1" / "instances"
    until(lambda: len([one for one in left.iterdir() if "slow" in one.name]) == 1)
    at_end = c.count("slow")
    with Load() as load:
        load.more(40)
    assert not load.failed, load.failed
    assert c.count("slow") - at_end >= load.answered
    # A worker of the same name takes the place of the one that died.
    (again,), load = started(system, "b")
    assert not load.failed, load.failed
    for worker in (c, again):
        worker.signal(signal.SIGTERM)
        assert worker.end() == 0, worker.text()[-3000:]


if __name__ == "__main__":
    with System() as system:
        write(system.folder / "models", "slow/config.pbtxt", SLOW)
        write(system.folder / "models", "slow/1/model.py", MODEL)
        system.grpc_frontend()
        run(sys.argv[1:])
