"""What was counted: statistics without their times, metric families with their labels and counts."""

import re
import time

from tritonclient.grpc import service_pb2 as pb

# Their samples are times, or say something about the machine.
TIMES = re.compile(r"_duration_us|_summary_us|_latency|nv_energy|nv_gpu|nv_cpu|nv_pinned_memory|_ns$")


def cases(server):
    statistics = settled(server)
    for model in statistics:
        yield f"statistics of {model['name']} {model['version']}", model
    message = server.call("ModelStatistics", pb.ModelStatisticsRequest())
    for model in message["message"]["model_stats"]:
        yield f"ModelStatistics {model['name']} {model['version']}", without_times(model)
    yield "statistics of a missing model", server.http("GET", "/v2/models/absent/stats")
    yield from page(server)


def settled(server):
    """The statistics when nothing moves any more: a model may count after its answer has gone."""
    before = None
    while True:
        found = [without_times(one) for one in server.http("GET", "/v2/models/stats")["body"]["model_stats"]]
        if found == before:
            return found
        before = found
        time.sleep(0.3)


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
