#!/usr/bin/env python3
"""Reads a metrics page as an endpoint picker of the Gateway API inference extension does, with the selectors that it has
for an engine built in.

    picker.py ENGINE URL     prints what it takes as JSON; a family or a label that is missing is an error

A selector is a name, or a name with labels in braces. Of several samples the newest one counts, and of equally new ones
the last. Sizes of the key-value cache are read where `--sizes` asks for them.
"""

import json
import re
import sys
import urllib.request

SELECTORS = {
    "vllm": {
        "queued": "vllm:num_requests_waiting",
        "running": "vllm:num_requests_running",
        "used": "vllm:kv_cache_usage_perc",
        "sizes": ("vllm:cache_config_info", "block_size", "num_gpu_blocks"),
    },
    "sglang": {
        "queued": "sglang:num_queue_reqs",
        "running": "sglang:num_running_reqs",
        "used": "sglang:token_usage",
        "sizes": ("sglang:page_size", "sglang:num_pages"),
    },
    "triton": {
        "queued": "nv_trt_llm_request_metrics{request_type=waiting}",
        "running": "nv_trt_llm_request_metrics{request_type=scheduled}",
        "used": "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}",
        "sizes": (
            "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}",
            "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}",
        ),
    },
    "trtllm": {
        "queued": "trtllm_num_requests_waiting",
        "running": "trtllm_num_requests_running",
        "used": "trtllm_kv_cache_utilization",
        "sizes": ("trtllm_kv_cache_tokens_per_block", "trtllm_kv_cache_max_blocks"),
    },
}
LINE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)(?: (\d+))?$")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"(?:,|$)')


def families(text):
    """Samples by family: labels, value, time."""
    kinds, samples = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds, f"two families {name}"
            kinds[name] = kind
        elif line and not line.startswith("#"):
            found = LINE.match(line)
            assert found, f"no sample: {line}"
            name, labels, value, at = found.groups()
            samples.setdefault(name, []).append((dict(LABEL.findall(labels or "")), float(value), int(at or 0)))
    return kinds, samples


def select(page, selector):
    kinds, samples = page
    name, _, labels = selector.rstrip("}").partition("{")
    wanted = dict(pair.split("=") for pair in labels.split(",") if pair)
    if name not in kinds:
        raise LookupError(f"metric family {name!r} not found")
    assert kinds[name] == "gauge", (name, kinds[name])
    found = None
    for sample in samples[name]:
        if all(sample[0].get(label) == value for label, value in wanted.items()) and (not found or sample[2] >= found[2]):
            found = sample
    if not found:
        raise LookupError(f"no sample of {selector!r}")
    return found


def read(engine, text, wants_sizes):
    page, selectors = families(text), SELECTORS[engine]
    taken = {name: select(page, selectors[name])[1] for name in ("queued", "running", "used")}
    assert 0 <= taken["used"] <= 1, taken
    if wants_sizes:
        if engine == "vllm":
            name, *labels = selectors["sizes"]
            sample = select(page, name)[0]
            sizes = [float(sample[label]) for label in labels]
        else:
            sizes = [select(page, selector)[1] for selector in selectors["sizes"]]
        taken["sizes"] = sizes
    return taken


def main():
    engine, url, *options = sys.argv[1:]
    with urllib.request.urlopen(url, timeout=300) as answer:
        text = answer.read().decode()
    try:
        print(json.dumps(read(engine, text, "--sizes" in options)))
    except LookupError as error:
        print(json.dumps({"missing": str(error)}))


if __name__ == "__main__":
    main()
