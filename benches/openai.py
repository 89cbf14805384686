#!/usr/bin/env python3
"""What OpenAI's interface costs beside its models: pieces of streams, whole answers, tokens, and what long prompts do
to other requests.

    python benches/openai.py SERVER [--tokenizer FOLDER]

SERVER is a `nereid` of a release build. The model is tests/backends/tokens.c, whose tokens cost nothing; the CPU time is
that of all threads of the server's process, in user mode and in the kernel. `--tokenizer` is a folder of a real
tokenizer with a chat template; without it the figures of tokens are left out.
"""

import argparse
import json
import os
import random
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]"
INPUTS = [("text_input", "STRING", False), ("stream", "BOOL", True), ("sampling_parameters", "STRING", True)]
INPUTS += [(f"return_{name}", "BOOL", True) for name in ("finish_reason", "num_input_tokens", "num_output_tokens")]
OUTPUTS = [("text_output", "STRING"), ("finish_reason", "STRING")]
OUTPUTS += [("num_input_tokens", "UINT32"), ("num_output_tokens", "UINT32")]
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
ECHO = """backend: "identity"
input { name: "INPUT0" data_type: TYPE_FP32 dims: 16 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 16 }
"""


def config():
    lines = ['backend: "tokens"', "max_batch_size: 0", "model_transaction_policy { decoupled: true }"]
    for name, kind, optional in INPUTS:
        lines.append(f'input {{ name: "{name}" data_type: TYPE_{kind} dims: [ 1 ] optional: {str(optional).lower()} }}')
    for name, kind in OUTPUTS:
        lines.append(f'output {{ name: "{name}" data_type: TYPE_{kind} dims: [ 1 ] }}')
    return "\n".join(lines)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def prepare(folder, tokenizer):
    library = os.path.join(folder, "backends", "tokens")
    os.makedirs(library)
    source = os.path.join(ROOT, "tests", "backends", "tokens.c")
    include = os.path.join(ROOT, "include")
    command = ["cc", "-std=c11", "-O2", "-shared", "-fPIC", "-I", include, source, "-o"]
    subprocess.run(command + [os.path.join(library, "libtriton_tokens.so"), "-lpthread"], check=True)
    for name, text in (("tokens", config()), ("echo", ECHO)):
        os.makedirs(os.path.join(folder, "models", name, "1"))
        with open(os.path.join(folder, "models", name, "config.pbtxt"), "w") as file:
            file.write(text)
    language = os.path.join(folder, "language")
    if tokenizer:
        shutil.copytree(tokenizer, language)
    else:
        os.makedirs(language)
        with open(os.path.join(language, "tokenizer_config.json"), "w") as file:
            json.dump({"chat_template": TEMPLATE}, file)
    return language


class Server:
    def __init__(self, program, folder, language, options=()):
        self.port, self.http = free_port(), free_port()
        command = [program, "serve", f"--model-repository={folder}/models", f"--openai-port={self.port}"]
        command += [f"--backend-directory={folder}/backends", f"--http-port={self.http}", "--http-address=127.0.0.1"]
        command += ["--openai-address=127.0.0.1", "--allow-grpc=false", "--metrics-port=0", "--log-info=false"]
        command += [f"--tokenizer={language}", *options]
        self.process = subprocess.Popen(command)
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port)).close()
            except OSError:
                if self.process.poll() is not None:
                    raise SystemExit("the server has ended")
                time.sleep(0.05)

    def cpu_s(self):
        """User and kernel time of the I/O threads, and of the others."""
        times = [0.0] * 4
        for task in os.listdir(f"/proc/{self.process.pid}/task"):
            with open(f"/proc/{self.process.pid}/task/{task}/stat") as file:
                name, _, rest = file.read().partition("(")[2].rpartition(")")
            at = 0 if name.startswith("shard") else 2
            for kind in (0, 1):
                times[at + kind] += int(rest.split()[11 + kind]) / TICKS_PER_S
        return times

    def end(self):
        self.process.terminate()
        self.process.wait()


def post(path, body):
    text = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    return head.encode() + text


def run(port, request, connections, rounds, end, count):
    """Sends a request on each connection, again when `end` is at the end of what came; what `count` counts."""
    selector, counted = selectors.DefaultSelector(), 0
    for _ in range(connections):
        one = socket.create_connection(("127.0.0.1", port))
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.sendall(request)
        selector.register(one, selectors.EVENT_READ, [b"", rounds])
    left = connections
    while left:
        for key, _ in selector.select():
            state = key.data
            piece = key.fileobj.recv(1 << 18)
            if not piece:
                raise SystemExit(f"a connection has ended: {state[0][-300:]!r}")
            state[0] += piece
            if end(state[0]):
                counted += count(state[0])
                state[0], state[1] = b"", state[1] - 1
                if state[1]:
                    key.fileobj.sendall(request)
                else:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
                    left -= 1
    return counted


def ended(data):
    return data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def whole(data):
    head, found, body = data.partition(b"\r\n\r\n")
    if not found:
        return False
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    return len(body) >= length


def per(server, what, work):
    """CPU per counted thing in microseconds, user and kernel: of the I/O threads, and of all others, which are those of
    the model and of the interface; the median of three."""
    figures = []
    for _ in range(3):
        before = server.cpu_s()
        counted = work()
        after = server.cpu_s()
        figures.append([(after[at] - before[at]) * 1e6 / counted for at in range(4)])
    figures = [statistics.median(one[at] for one in figures) for at in range(4)]
    io, others = (f"{figures[at]:6.2f} + {figures[at + 1]:.2f}" for at in (0, 2))
    print(f"{what:58} I/O {io} us, others {others} us", flush=True)


def chat(content, **more):
    return {"model": "tokens", "messages": [{"role": "user", "content": content}], **more}


def streams(server):
    def work(connections, tokens, rounds):
        request = post("/v1/chat/completions", chat("Hello", stream=True, max_tokens=tokens))
        return run(server.port, request, connections, rounds, ended, lambda data: data.count(b"data: {"))

    per(server, "a piece of a stream, 64 streams of 1,000", lambda: work(64, 1000, 10))
    per(server, "a piece of a stream, 1 stream of 1,000", lambda: work(1, 1000, 300))
    request = post("/v1/chat/completions", chat("Hello", max_tokens=100))
    def one():
        return run(server.port, request, 16, 2000, whole, lambda _: 1)

    per(server, "a chat of 100 tokens in one piece, 16 connections", one)
    request = post("/v1/completions", {"model": "tokens", "prompt": "Hello", "max_tokens": 100})
    per(server, "a completion of 100 tokens in one piece, 16 connections", one)


def prompt(words, seed):
    """A conversation of so many words, none of whose messages comes again."""
    dice = random.Random(seed)
    syllables = [first + second for first in "bdfglmnprst" for second in "aeiou"]
    turns = []
    for at in range(0, words, 100):
        text = " ".join("".join(dice.choices(syllables, k=dice.randint(1, 3))) for _ in range(100))
        turns.append({"role": "user" if at // 100 % 2 == 0 else "assistant", "content": text})
    return turns


def tokens(server):
    for words in (400, 4_000, 24_000):
        times = {"new": [], "with a known beginning": []}
        for round_number in range(5):
            turns = prompt(words, words + round_number)
            times["new"].append(asked(server, turns))
            turns.append({"role": "user", "content": f"question {round_number}"})
            taken, count = asked(server, turns)
            times["with a known beginning"].append((taken, count))
        for name, all_taken in times.items():
            taken, count = statistics.median_low(all_taken)
            print(f"/tokenize of {count:,} tokens, {name:24} {taken * 1e3:8.2f} ms")


def asked(server, turns):
    """Seconds of the answer, and its tokens."""
    request = post("/tokenize", {"model": "tokens", "messages": turns})
    one = socket.create_connection(("127.0.0.1", server.port))
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    began = time.perf_counter()
    one.sendall(request)
    data = b""
    while not whole(data):
        data += one.recv(1 << 18)
    taken = time.perf_counter() - began
    return taken, json.loads(data.partition(b"\r\n\r\n")[2])["count"]


def beside(server):
    body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [16], "data": [1.5] * 16}]}
    request = post("/v2/models/echo/infer", body)

    def latencies(seconds):
        one = socket.create_connection(("127.0.0.1", server.http))
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        taken, until = [], time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.perf_counter()
            one.sendall(request)
            data = b""
            while not whole(data):
                data += one.recv(1 << 16)
            taken.append(time.perf_counter() - began)
            time.sleep(0.001)
        return statistics.quantiles(taken, n=100)

    over = threading.Event()

    def load():
        long = post("/v1/chat/completions", {"model": "tokens", "messages": prompt(24_000, 5), "max_tokens": 1})
        while not over.is_set():
            run(server.port, long, 1, 1, whole, lambda _: 1)
            time.sleep(0.2)

    for _ in range(3):
        quiet = latencies(4)
        over.clear()
        thread = threading.Thread(target=load)
        thread.start()
        busy = latencies(4)
        over.set()
        thread.join()
        p50, p99 = (f"{quiet[at] * 1e6:.0f} -> {busy[at] * 1e6:.0f} us" for at in (49, 98))
        print(f"an inference beside long prompts: p50 {p50}, p99 {p99}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server")
    parser.add_argument("--tokenizer")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        language = prepare(folder, given.tokenizer)
        server = Server(given.server, folder, language)
        try:
            streams(server)
            if given.tokenizer:
                tokens(server)
            beside(server)
        finally:
            server.end()


if __name__ == "__main__":
    sys.exit(main())
