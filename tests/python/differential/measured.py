"""What was counted: statistics without their times, metric families with their labels and counts."""

import re
import time

from tritonclient.grpc import service_pb2 as pb

# Their samples are times, or say something about the machine.
TIMES = re.compile(r"_duration_us|_summary_us|_latency|nv_energy|nv_gpu|nv_cpu|nv_pinned_memory|_ns$")
# A slot of theirs becomes free behind the answer that ends its sequence. A client that begins the next sequence upon that
# answer may come first: then it has another slot, and its batch has a row for the slot that is not free yet. Both servers
# do so on a busy machine.
SLOTS = ["sequence", "sequence_texts"]


def cases(server):
    for model in settled(server):
        yield f"statistics of {model['name']} {model['version']}", without_sizes(model)
    message = server.call("ModelStatistics", pb.ModelStatisticsRequest())
    for model in message["message"]["model_stats"]:
        yield f"ModelStatistics {model['name']} {model['version']}", without_sizes(without_times(model))
    yield "statistics of a missing model", server.http("GET", "/v2/models/absent/stats")
    yield from page(server)


def settled(server, model=None):
    """The statistics when nothing moves any more: a model may count after its answer has gone."""
    path = f"/v2/models/{model}/stats" if model else "/v2/models/stats"
    before, equal = None, 0
    # Not for a moment, in which a busy machine may run no server.
    while equal < 3:
        if before is not None:
            time.sleep(0.3)
        found = [without_times(one) for one in server.http("GET", path)["body"]["model_stats"]]
        equal = equal + 1 if found == before else 0
        before = found
    return found[0] if model else found


def without_sizes(model):
    """The executions of a model with slots, whatever rows their batches had."""
    if model["name"] not in SLOTS or "batch_stats" not in model:
        return model
    executions = {}
    for batch in model["batch_stats"]:
        for part, times in batch.items():
            if part != "batch_size":
                executions[part] = executions.get(part, 0) + int(times["count"])
    return {**model, "batch_stats": executions}


def without_times(value):
    if isinstance(value, dict):
        return {key: without_times(one) for key, one in value.items() if key not in ("ns", "last_inference")}
    if isinstance(value, list):
        return [without_times(one) for one in value]
    return value


def page(server):
    status, headers, data = server.exchange("GET", "/metrics", address=server.metrics_address)
    yield "metrics answer", {"status": status, "type": headers.get("content-type")}
    families, samples = {}, {}
    for line in data.decode().splitlines():
        if line.startswith("#"):
            _, what, name, text = (line.split(" ", 3) + [""])[:4]
            families.setdefault(name, {})[what] = text
            continue
        sample, value = line.rsplit(" ", 1)
        name, _, labels = sample.partition("{")
        labels = ",".join(sorted(re.findall(r'\w+="(?:[^"\\]|\\.)*"', labels)))
        samples.setdefault(name, {})[labels] = "" if TIMES.search(name) else float(value)
    for name, family in families.items():
        yield f"family {name}", family
    for name, found in samples.items():
        yield f"samples of {name}", found
