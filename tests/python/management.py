#!/usr/bin/env python3
"""Health, metadata, configuration, statistics and index as the official client reads them."""

import argparse

import numpy as np
from tritonclient.utils import InferenceServerException

from connect import PROTOCOLS, connect, expect


def as_dict(connection, method, *args, **kwargs):
    if not connection.is_http:
        kwargs["as_json"] = True
    return getattr(connection, method)(*args, **kwargs)


NOT_OFFERED = ("501", "StatusCode.UNIMPLEMENTED")
NOT_NOW = ("503", "StatusCode.UNAVAILABLE")


def refused(what, call, *args, statuses=NOT_OFFERED, **kwargs):
    try:
        answer = call(*args, **kwargs)
    except InferenceServerException as error:
        status = error.status()
        if status not in statuses:
            raise SystemExit(f"{what}: expected one of {statuses}, got {status}: {error.message()}")
        return
    raise SystemExit(f"{what}: not offered, and still answered {answer!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", choices=PROTOCOLS, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--refusals", action="store_true", help="check what this server refuses")
    args = parser.parse_args()
    with connect(args.protocol, args.url) as connection:
        expect("live", connection.is_server_live(), True)
        expect("ready", connection.is_server_ready(), True)
        expect("model ready", connection.is_model_ready("batch_int32"), True)
        expect("version ready", connection.is_model_ready("batch_int32", "1"), True)

        metadata = as_dict(connection, "get_server_metadata")
        expect("name", metadata["name"], "triton")
        if "binary_tensor_data" not in metadata["extensions"]:
            raise SystemExit(f"extensions: {metadata['extensions']}")
        metadata = as_dict(connection, "get_model_metadata", "batch_int32")
        expect("versions", metadata["versions"], ["1"])
        shape = [int(size) for size in metadata["inputs"][0]["shape"]]
        expect("shape", shape, [-1, -1])

        config = as_dict(connection, "get_model_config", "batch_int32")
        config = config if connection.is_http else config["config"]
        got = (config["name"], config["backend"], config["max_batch_size"])
        expect("configuration", got, ("batch_int32", "identity", 8))

        array = np.array([[1], [2], [3]], dtype=np.int32)
        for _ in range(4):
            connection.infer("batch_int32", [connection.input("INPUT0", array, "INT32")])
        statistics = as_dict(connection, "get_inference_statistics", "batch_int32")
        model = statistics["model_stats"][0]
        expect("inference_count", int(model["inference_count"]), 12)
        expect("execution_count", int(model["execution_count"]), 4)
        expect("successes", int(model["inference_stats"]["success"]["count"]), 4)

        index = as_dict(connection, "get_model_repository_index")
        models = index if connection.is_http else index["models"]
        states = {model["name"]: model["state"] for model in models}
        expect("state", states["batch_int32"], "READY")
        expect("models", len(models), 28)

        if args.refusals:
            refused("load", connection.load_model, "batch_int32", statuses=NOT_NOW)
            refused("unload", connection.unload_model, "batch_int32", statuses=NOT_NOW)
    print(f"{args.protocol}: ok")


if __name__ == "__main__":
    main()
