"""A model that does what its input says: work, fail, die, block, or harm the process that it lives in.

Parameters of the configuration say what its other methods do: `initialize`, `finalize` and `auto_complete` are words
as the input has them, `initialize_once` happens unless the file that it names is there already, which it makes.
"""

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


def crash():
    ctypes.string_at(0)


def exhaust():
    """More memory than a limit that it sets itself allows."""
    with open("/proc/self/statm") as statm:
        now = int(statm.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + (64 << 20), before[1]))
    try:
        np.ones(1 << 28)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def exhaust_for_good():
    """The same, and nothing is given back: whoever handles the error has no memory either."""
    with open("/proc/self/statm") as statm:
        now = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now, now))
    held = []
    size = 1 << 20
    while size:
        try:
            held.append(bytearray(size))
        except MemoryError:
            size //= 2
    sys.held = held
    raise MemoryError("nothing is left")


def limit_memory():
    """From now on nothing more can be mapped."""
    with open("/proc/self/statm") as statm:
        now = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now, now))


def limit_descriptors():
    """From now on nothing more can be opened."""
    lowest_free = os.dup(2)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, lowest_free))


def descriptors():
    return [int(name) for name in os.listdir("/proc/self/fd")]


def close_descriptors():
    for one in descriptors():
        if one > 2:
            try:
                os.close(one)
            except OSError:
                pass


def print_garbage():
    noise = bytes(range(256)) * 64
    for stream in (1, 2):
        os.write(stream, noise)
        os.write(stream, b"\n")


def talk_nonsense():
    """Garbage on the socket to the server, and on every doorbell."""
    from nereid_python.wire import link

    for _ in range(100):
        try:
            link.socket.send(os.urandom(200), 0x40)
        except OSError:
            break
    for bell in (link.output.bell, link.aside.bell):
        os.write(bell, (1).to_bytes(8, sys.byteorder))


def scribble(words):
    """Writes over what the worker and the server share."""
    from nereid_python import wire

    memory = wire.link.memory
    if words == "control":
        memory[: 16 * 1024] = os.urandom(16 * 1024)
    elif words == "streams":
        memory[wire.STREAMS :] = os.urandom(len(memory) - wire.STREAMS)
        wire.link.words[wire.OUTPUT_WORDS // 8] += 4096
        wire.link.words[wire.ASIDE_WORDS // 8] += 4096
    elif words == "tail":
        wire.link.words[(wire.INPUT_WORDS + wire.WORD_STRIDE) // 8] = 1 << 60
    elif words == "head":
        wire.link.words[wire.OUTPUT_WORDS // 8] = 1 << 60
    for bell in (wire.link.output.bell, wire.link.aside.bell):
        os.write(bell, (1).to_bytes(8, sys.byteorder))


def lie(text):
    """A message that its kind does not allow: `<kind> <expression>`."""
    from nereid_python import wire

    kind, _, value = text.partition(" ")
    wire.link.send(int(kind), eval(value))


def flood():
    """Sends as long as it may."""
    while True:
        pb_utils.Logger.log_verbose("and on")


def fork_and_return():
    """The child comes back from here as well, and goes on as if it were the worker."""
    child = os.fork()
    if child == 0:
        return "child"
    _, status = os.waitpid(child, 0)
    return "the child ended with %d" % os.waitstatus_to_exitcode(status)


def leave_children():
    """Children that outlive the call: one of the same program, one of another."""
    child = os.fork()
    if child == 0:
        time.sleep(3600)
        os._exit(0)
    other = subprocess.Popen(["sleep", "3600"])
    return "%d %d" % (child, other.pid)


def thread_that_stays():
    threading.Thread(target=time.sleep, args=(3600,)).start()


ACTS = {
    "": lambda rest: None,
    "echo": lambda rest: rest,
    "pid": lambda rest: str(os.getpid()),
    "sleep": lambda rest: time.sleep(float(rest)),
    "exit": lambda rest: os._exit(int(rest)),
    "sys.exit": lambda rest: sys.exit(int(rest)),
    "signal": lambda rest: os.kill(os.getpid(), int(rest)),
    "crash": lambda rest: crash(),
    "abort": lambda rest: os.abort(),
    "exhaust": lambda rest: exhaust(),
    "exhaust_for_good": lambda rest: exhaust_for_good(),
    "limit": lambda rest: {"memory": limit_memory, "descriptors": limit_descriptors}[rest](),
    "length": lambda rest: str(len(rest)),
    "close": lambda rest: close_descriptors(),
    "print": lambda rest: print_garbage(),
    "nonsense": lambda rest: talk_nonsense(),
    "scribble": lambda rest: scribble(rest),
    "lie": lambda rest: lie(rest),
    "flood": lambda rest: flood(),
    "fork": lambda rest: fork_and_return(),
    "children": lambda rest: leave_children(),
    "thread": lambda rest: thread_that_stays(),
    "stop": lambda rest: os.kill(os.getpid(), signal.SIGSTOP),
}


def act(words):
    name, _, rest = words.partition(" ")
    if name == "raise":
        raise ValueError("as it was told: " + rest)
    return ACTS[name](rest) or "done"


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        parameters = config.as_dict().get("parameters", {})
        act(parameters.get("auto_complete", {}).get("string_value", ""))
        return config

    def initialize(self, args):
        parameters = json.loads(args["model_config"]).get("parameters", {})
        self.told = {name: value["string_value"] for name, value in parameters.items()}
        act(self.told.get("initialize", ""))
        again = self.told.get("again", "")
        if again:
            # What happens at every start but the first one.
            path, _, words = again.partition(" ")
            if os.path.exists(path):
                act(words)
            open(path, "w").close()

    def execute(self, requests):
        responses = []
        for request in requests:
            words = pb_utils.get_input_tensor_by_name(request, "DO").as_numpy().reshape(-1)[0].decode()
            done = np.array([act(words)], dtype=np.object_)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("DONE", done)]))
        return responses

    def finalize(self):
        act(self.told.get("finalize", ""))
