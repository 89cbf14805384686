"""Load clients that are not ours, for benches/side_by_side: wrk, h2load and Triton's perf_analyzer.

Each asks the model for 16 FP32 there and back (h2load also for an image), as fast as it can, and its own report gives
rate and latency. What the server used is read from /proc, and the requests that it executed from its statistics, before
and behind the run.
"""

import csv
import glob
import http.client
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess

VALUES = struct.pack("<16f", *range(16))
IMAGE_SHAPE = (1, 3, 224, 224)
IMAGE_VALUES = bytes(4 * 3 * 224 * 224)
# Of each of these clients.
IN_FLIGHT_MAX = 64
WRK = """wrk.method = "POST"
wrk.headers["Content-Type"] = "application/octet-stream"
wrk.headers["Inference-Header-Content-Length"] = "{length}"
local file = io.open("{body}", "rb")
wrk.body = file:read("*a")
file:close()
"""


def varint(number):
    """A number as protobuf writes it."""
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def field(number, content):
    """A length-delimited field of protobuf."""
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def grpc_body(model, shape=(16,), values=VALUES):
    """A framed ModelInferRequest."""
    tensor = field(1, b"INPUT0") + field(2, b"FP32") + field(3, b"".join(map(varint, shape)))
    message = field(1, model.encode()) + field(5, tensor) + field(7, values)
    return b"\0" + struct.pack(">I", len(message)) + message


def http_body():
    """The body of POST …/infer and the length of its JSON."""
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [16], "parameters": {"binary_data_size": len(VALUES)}}
    output = {"name": "OUTPUT0", "parameters": {"binary_data": True}}
    text = json.dumps({"inputs": [tensor], "outputs": [output]}).encode()
    return text + VALUES, len(text)


def perf_analyzer(target):
    """Triton's load client, as the tests unpack it; None where they have not."""
    found = glob.glob(str(target / "perf-analyzer-*/tritonclient-*/data/bin/perf_analyzer"))
    return found[0] if found else None


def words_of(tool, server, model, directory, seconds, target):
    """The command line, and its environment; None if the tool is not here."""
    body = directory / f"{tool}.body"
    at = f"127.0.0.1:{server.http}"
    if tool == "perf_analyzer-http" or tool == "perf_analyzer-grpc":
        program, protocol = perf_analyzer(target), tool.rpartition("-")[2]
        if not program:
            return None
        # Stable enough whatever comes, so that each run measures three windows.
        words = [program, "-m", model, "-i", protocol, "-u", f"127.0.0.1:{getattr(server, protocol)}", "--shape",
                 "INPUT0:16", "--concurrency-range", "16", "-p", str(int(seconds * 1000 / 3)), "-r", "3", "-s", "999",
                 "-f", str(directory / "report.csv")]
        return words, {"LD_LIBRARY_PATH": str(pathlib.Path(program).parents[3])}
    if not shutil.which(tool.partition("-")[0]):
        return None
    if tool == "wrk":
        content, length = http_body()
        body.write_bytes(content)
        script = directory / "wrk.lua"
        script.write_text(WRK.format(length=length, body=body))
        return ["wrk", "-t", "1", "-c", "64", "-d", f"{max(round(seconds), 1)}s", "--latency", "-s", str(script),
                f"http://{at}/v2/models/{model}/infer"], {}
    is_image = tool == "h2load-588k"
    body.write_bytes(grpc_body(model, IMAGE_SHAPE, IMAGE_VALUES) if is_image else grpc_body(model))
    return ["h2load", "-t", "1", "-c", "4", "-m", "1" if is_image else "16", "-D", str(max(round(seconds), 1)), "-d",
            str(body), "-H", "content-type: application/grpc", "-H", "te: trailers",
            f"http://127.0.0.1:{server.grpc}/inference.GRPCInferenceService/ModelInfer"], {}


def in_us(text):
    """A time as these tools write it."""
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s)", text).groups()
    return float(number) * {"us": 1, "ms": 1e3, "s": 1e6}[unit]


def parse_output(tool, output, directory):
    """Answers a second, median and 99th percentile in µs (None where the tool does not report them), bad answers."""
    if tool == "wrk":
        bad = re.search(r"Non-2xx or 3xx responses: (\d+)", output)
        quantile = {name: in_us(value) for name, value in re.findall(r"^ +(50|99)% +(\S+)$", output, re.M)}
        rate = float(re.search(r"Requests/sec: +([\d.]+)", output)[1])
        return rate, quantile["50"], quantile["99"], int(bad[1]) if bad else 0
    if tool.startswith("h2load"):
        failed, errored = re.search(r"(\d+) failed, (\d+) errored", output).groups()
        return float(re.search(r"([\d.]+) req/s", output)[1]), None, None, int(failed) + int(errored)
    with open(directory / "report.csv", newline="") as file:
        row = next(csv.DictReader(file))
    return float(row["Inferences/Second"]), float(row["p50 latency"]), float(row["p99 latency"]), 0


def executed(server, model):
    """Requests that succeeded and that failed, by the server's own statistics."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http, timeout=60)
    connection.request("GET", f"/v2/models/{model}/stats")
    counts = json.loads(connection.getresponse().read())["model_stats"][0]["inference_stats"]
    connection.close()
    return counts["success"]["count"], counts["fail"]["count"]


def used_ns(pid):
    """CPU time of each kind of thread."""
    used = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            name, spent = (task / "comm").read_text().strip(), int((task / "schedstat").read_text().split()[0])
        except OSError:
            continue
        kind = re.sub(r"[-_:#/]*\d*$", "", name)
        used[kind] = used.get(kind, 0) + spent
    return used


def measure(tool, server, model, core, seconds, directory, target):
    """One run: its figures, as the load of side_by_side reports them; None without the tool, a text if it failed."""
    command = words_of(tool, server, model, directory, seconds, target)
    if command is None:
        return None
    words, environment = command
    before, cpu_before = executed(server, model), used_ns(server.process.pid)
    done = subprocess.run(["taskset", "-c", str(core), *words], capture_output=True, text=True,
                          env={**os.environ, **environment})
    after, cpu_after = executed(server, model), used_ns(server.process.pid)
    if done.returncode:
        return f"{tool}: {done.stdout[-1000:]}{done.stderr[-1000:]}"
    # Requests under way when a tool ends are cancelled, and that is no error.
    requests, failures = after[0] - before[0], max(after[1] - before[1] - IN_FLIGHT_MAX, 0)
    rate, p50_us, p99_us, bad = parse_output(tool, done.stdout, directory)
    threads_ns = {kind: ns - cpu_before.get(kind, 0) for kind, ns in cpu_after.items()}
    # What a tool calls an answer must have been executed: a status in trailers is not looked at by all of them.
    missing = max(round(rate * seconds * 0.9) - requests, 0)
    return {"requests": requests, "responses": requests, "seconds": requests / max(rate, 1e-9), "p50_us": p50_us,
            "p99_us": p99_us, "cpu_ns": sum(threads_ns.values()), "threads_ns": threads_ns,
            "errors": failures + bad + missing, "first_error": f"{failures} failed, {bad} bad, {missing} not executed"}
