#!/usr/bin/env python3
"""Whether `nereid tune` finds what an exhaustive sweep finds, and in what part of the time.

    cargo build --release
    benches/tune.py target/release/nereid [--rows digits,encoder,pipeline,sums] [--minilm DIR]

Tunes each model over the same space three times: exhaustively, with `--search=auto`, and with `--search=quick` (Model
Analyzer's climb). Then all configurations that were found, and the present one, are measured by `nereid perf` in turns,
independently of the searches, each in a server of its own. Prints a table in Markdown. `--minilm` is the directory that
examples/minilm/make_minilm.py has written; without it, rows `encoder` and `pipeline` are left out. The server finds ONNX
Runtime as usual, and Python models the first `python3` of the PATH, which needs numpy.
"""

import argparse
import collections
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
PATIENCE_S = 300
# How often a load is measured whose client was the limit.
TRIES = 5

# Not varied: it would double each space.
FLAG = "--run-to-completion=declared"
SUMS = """backend: "python"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }, { name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }, { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 16 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""

Row = collections.namedtuple("Row", "name model sources fields inputs p99_ms budget_s")
Found = collections.namedtuple("Found", "search changes flag seconds points concurrency")

ROWS = [
    Row("digits", "digits", [ROOT / "model_repository/digits"],
        {"instances": "1,2,4", "max_batch_size": "16,32,64", "max_queue_delay_microseconds": "off,0,200",
         "intra_op_thread_count": "1,2"}, [], 20, 30),
    Row("sums", "sums", [ROOT / "benches/python_side/models/sums"],
        {"instances": "1,2,3,4", "max_batch_size": "8,16,32,64", "max_queue_delay_microseconds": "off,0,200,1000"},
        [], 20, 30),
    Row("encoder", "minilm_encoder", ["minilm_encoder"],
        {"instances": "1,2", "max_batch_size": "8,16,32", "max_queue_delay_microseconds": "off,0,2000",
         "intra_op_thread_count": "1,2"}, ["--shape=input_ids:16", "--shape=attention_mask:16", "--input-data=zero"],
        500, 30),
    Row("pipeline", "minilm", ["minilm", "minilm_tokenize", "minilm_encoder", "minilm_pool"],
        {"minilm_encoder/instances": "1,2", "minilm_encoder/max_queue_delay_microseconds": "off,0,2000",
         "minilm_encoder/max_batch_size": "32", "minilm_encoder/intra_op_thread_count": "1,2",
         "minilm_tokenize/instances": "1,2", "minilm_pool/instances": "1,2", "minilm_tokenize/max_batch_size": "32",
         "minilm_pool/max_batch_size": "32", "minilm_tokenize/max_queue_delay_microseconds": "off",
         "minilm_pool/max_queue_delay_microseconds": "off"},
        [], 500, 30),
]
# Time enough for every configuration at the longest slices; a sweep ends when all are measured.
SWEEP_S = 1200


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--rows", default=",".join(row.name for row in ROWS))
    parser.add_argument("--minilm", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--keep", type=pathlib.Path, help="a directory for the reports of all searches")
    return parser.parse_args()


def tuned(given, row, repository, search, budget_s):
    """One search."""
    words = [given.binary, "tune", row.model, f"--model-repository={repository}", f"--search={search}", "--json",
             f"--budget={budget_s}", f"--slo=p99={row.p99_ms}", *row.inputs,
             *[f"--set={field}={values}" for field, values in row.fields.items()]]
    if given.keep:
        words.append(f"--report={given.keep}/{row.name}-{search}")
    words += ["--set=run_to_completion=declared", "--", FLAG]
    began = time.monotonic()
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    seconds = time.monotonic() - began
    if done.returncode not in (0, 3, 4):
        sys.exit(f"{row.name}, {search}: exit code {done.returncode}\n{done.stderr[-4000:]}")
    report = json.loads(done.stdout)
    best = report["best"] if report["verdict"] == "better" and report["best"] is not None else report["baseline"]
    point = next((point for point in report["points"] if point["number"] == best), None)
    if point is None:
        point = report["points"][0]
    print(f"{row.name}, {search}: {seconds:.1f} s, {len(report['points'])} points, {report['verdict']}, "
          f"{point['changes']} at {point['load']}, gain {report['gain']}", file=sys.stderr, flush=True)
    return Found(search, point["changes"], report["server_flag"], seconds, len(report["points"]),
                 point["concurrency"]), report["choices"]


class Server:
    """A server whose configurations are changed by load requests."""

    def __init__(self, binary, repository, flag):
        taken = [socket.socket() for _ in range(2)]
        for one in taken:
            one.bind(("127.0.0.1", 0))
        self.http, grpc = (one.getsockname()[1] for one in taken)
        for one in taken:
            one.close()
        words = [binary, f"--model-repository={repository}", f"--http-port={self.http}", f"--grpc-port={grpc}",
                 "--allow-metrics=false", "--model-control-mode=explicit", "--load-model=*", "--http-address=127.0.0.1",
                 "--grpc-address=127.0.0.1", flag or FLAG]
        self.log = tempfile.TemporaryFile()
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        self.process = subprocess.Popen([str(word) for word in words], stdout=self.log, stderr=self.log, env=environment)
        began = time.monotonic()
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() - began > PATIENCE_S:
                self.log.seek(0)
                sys.exit(f"the server does not get ready:\n{self.log.read().decode(errors='replace')[-3000:]}")
            time.sleep(0.01)

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=PATIENCE_S)
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()

    def is_ready(self):
        try:
            return self.ask("GET", "/v2/health/ready")[0] == 200
        except OSError:
            return False

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE_S)


def changed(config, changes):
    """The configuration with the values of a candidate."""
    for field, value in changes.items():
        if field == "instances":
            config["instance_group"][0]["count"] = int(value)
        elif field == "max_batch_size":
            config["max_batch_size"] = int(value)
            config.get("dynamic_batching", {}).pop("preferred_batch_size", None)
        elif field == "max_queue_delay_microseconds":
            config.pop("dynamic_batching", None)
            if value != "off":
                config["dynamic_batching"] = {"max_queue_delay_microseconds": int(value)}
        elif field == "intra_op_thread_count" and value != "default":
            config.setdefault("parameters", {})[field] = {"string_value": value}
    # What follows from the model; the server completes it again.
    for field in ("version_policy", "optimization"):
        config.pop(field, None)
    return config


def measured(given, row, repository, all_found):
    """Requests a second and p99 of each configuration, in turns."""
    figures = collections.defaultdict(list)
    for _ in range(given.rounds):
        for found in all_found:
            server = Server(given.binary, repository, found.flag)
            by_model = collections.defaultdict(dict)
            for field, value in found.changes.items():
                model, _, name = field.rpartition("/")
                by_model[model or row.model][name] = value
            for model, changes in by_model.items():
                config = changed(json.loads(server.ask("GET", f"/v2/models/{model}/config")[1]), changes)
                body = json.dumps({"parameters": {"config": json.dumps(config)}})
                status, text = server.ask("POST", f"/v2/repository/models/{model}/load", body)
                if status != 200:
                    sys.exit(f"{model}: {found.changes}: {text!r}")
            report = repository.parent / "perf.json"
            words = [given.binary, "perf", "-m", row.model, "-u", f"127.0.0.1:{server.http}",
                     f"--concurrency-range={found.concurrency}", "--measurement-interval=1000", "--max-trials=4",
                     f"--json={report}", *row.inputs]
            for _ in range(TRIES):
                report.unlink(missing_ok=True)
                done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
                try:
                    figure = json.loads(report.read_text())
                except (OSError, ValueError):
                    sys.exit(f"{row.name}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
                if not figure["points"][0]["void"]:
                    break
            else:
                sys.exit(f"{row.name}: the client was the limit {TRIES} times: run it on cores that nothing else uses")
            server.stop()
            figures[found.search].append(figure)
    return figures


def figures_of(report):
    """Requests a second, and the p99 in ms."""
    point = report["points"][0]
    return point["inferences_per_s"], point["latency"]["percentiles_us"]["p99"] / 1e3


def show(row, choices, all_found, figures):
    exhaustive = next(found for found in all_found if found.search == "exhaustive")
    reference = statistics.median(figures_of(one)[0] for one in figures["exhaustive"])
    for found in all_found:
        rates = [figures_of(one)[0] for one in figures[found.search]]
        p99 = statistics.median(figures_of(one)[1] for one in figures[found.search])
        rate = statistics.median(rates)
        changes = ", ".join(f"{field} {value}" for field, value in found.changes.items()) or "as it is"
        took = f"{found.seconds:.0f}" if found.seconds else "–"
        share = f"{exhaustive.seconds / found.seconds:.1f}" if found.seconds else "–"
        points = f"{found.points} of {choices}" if found.points else "–"
        print(f"| {row.name} | {found.search} | {took} | {share} | {points} | {changes} | {found.concurrency} | "
              f"{rate:.0f} ({min(rates):.0f}–{max(rates):.0f}) | {rate / reference:.3f} | {p99:.1f} |", flush=True)


def main():
    given = arguments()
    print("| model | search | seconds | exhaustive ÷ this | points, of so many configurations | found | in flight | "
          "requests/s (min–max) | ÷ exhaustive's | p99, ms |\n|---|---|---|---|---|---|---|---|---|---|")
    for row in ROWS:
        if row.name not in given.rows.split(","):
            continue
        sources = [source if isinstance(source, pathlib.Path) else given.minilm and given.minilm / source
                   for source in row.sources]
        if not all(sources):
            print(f"{row.name} is left out: --minilm is not given", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as made:
            repository = pathlib.Path(made) / "repository"
            for source in sources:
                shutil.copytree(source, repository / source.name)
            if row.name == "sums":
                (repository / "sums/config.pbtxt").write_text(SUMS)
            exhaustive, choices = tuned(given, row, repository, "exhaustive", SWEEP_S)
            auto, _ = tuned(given, row, repository, "auto", row.budget_s)
            quick, _ = tuned(given, row, repository, "quick", row.budget_s)
            present = Found("none", {}, None, 0, 0, exhaustive.concurrency)
            all_found = [present, exhaustive, auto, quick]
            show(row, choices, all_found, measured(given, row, repository, all_found))


if __name__ == "__main__":
    main()
