"""Reads a metrics page with the parser of Prometheus' own client and prints what it found as JSON: the families with
their kinds, and all samples. Fails where the page breaks a rule of the format that the parser does not check."""

import json
import math
import sys
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

with urllib.request.urlopen(sys.argv[1], timeout=300) as answer:
    assert answer.headers["Content-Type"].startswith("text/plain"), answer.headers["Content-Type"]
    text = answer.read().decode()

# The parser puts "_total" behind the names of all counters.
kinds = {}
for line in text.splitlines():
    if line.startswith("# TYPE "):
        _, _, name, kind = line.split(" ")
        kinds[name] = kind


def written(name):
    short = name.removesuffix("_total")
    return short if kinds.get(short) == "counter" else name


families, samples, series = {}, [], set()
for family in text_string_to_metric_families(text):
    assert family.name not in families, f"{family.name} comes twice"
    assert family.documentation, f"{family.name} has no help"
    assert family.samples, f"{family.name} has no samples"
    families[family.name] = family.type
    buckets = {}
    for sample in family.samples:
        key = (sample.name, tuple(sorted(sample.labels.items())))
        assert key not in series, f"{key} comes twice"
        series.add(key)
        value = "NaN" if math.isnan(sample.value) else sample.value
        samples.append([written(sample.name), sample.labels, value])
        rest = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        if sample.name.endswith("_bucket"):
            buckets.setdefault(rest, []).append((float(sample.labels["le"]), sample.value))
        if family.type == "histogram" and sample.name.endswith("_count"):
            buckets.setdefault(rest, []).insert(0, ("count", sample.value))
    for rest, found in buckets.items():
        (name, count), *bounds = found
        assert name == "count", (family.name, rest)
        assert [bound for bound, _ in bounds] == sorted({bound for bound, _ in bounds}), (family.name, bounds)
        assert [part for _, part in bounds] == sorted(part for _, part in bounds), (family.name, bounds)
        assert bounds[-1] == (math.inf, count), (family.name, bounds, count)

assert len(kinds) == len(families), (sorted(kinds), sorted(families))
print(json.dumps({"families": kinds, "samples": samples}))
