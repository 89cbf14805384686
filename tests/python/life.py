#!/usr/bin/env python3
"""Loading, unloading and overriding models as the official client does it.

Expects a server in explicit mode whose repository has the models `m` (version 1, parameter generation = disk) and
`failing`, none of them loaded.
"""

import argparse
import json
import time

import numpy as np
from tritonclient.utils import InferenceServerException

from connect import PROTOCOLS, connect, expect

CONFIG = {
    "backend": "copycat",
    "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
    "instance_group": [{"kind": "KIND_CPU", "count": 1}],
    "parameters": {"generation": {"string_value": "override"}},
}


def rows(connection, model):
    index = connection.get_model_repository_index() if connection.is_http else connection.get_model_repository_index(
        as_json=True).get("models", [])
    found = [row for row in index if row["name"] == model]
    return sorted((row.get("version", ""), row.get("state", ""), row.get("reason", "")) for row in found)


def config_of(connection, model):
    if connection.is_http:
        return connection.get_model_config(model)
    return connection.get_model_config(model, as_json=True)["config"]


def generation(connection, model):
    return config_of(connection, model)["parameters"]["generation"]["string_value"]


def infer(connection, model):
    array = np.array([3, 1, 4], dtype=np.int32)
    result = connection.infer(model, [connection.input("INPUT0", array, "INT32")])
    expect("tensor", result.as_numpy("OUTPUT0").tolist(), [3, 1, 4])


def fails(what, text, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except InferenceServerException as error:
        expect(what, error.message(), text)
        return error.status()
    raise SystemExit(f"{what}: expected a failure")


def is_ready(connection, model):
    """Over gRPC a model without any version is an error of the lookup."""
    try:
        return connection.is_model_ready(model)
    except InferenceServerException as error:
        expect("lookup", error.status(), "StatusCode.NOT_FOUND")
        return False


def wait_for(what, holds):
    deadline = time.monotonic() + 300
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} never comes")
        time.sleep(0.005)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", choices=PROTOCOLS, required=True)
    parser.add_argument("--url", required=True)
    args = parser.parse_args()
    with connect(args.protocol, args.url) as connection:
        expect("ready", connection.is_server_ready(), True)
        connection.unload_model("m")
        expect("rows", rows(connection, "m"), [("", "", "")])
        connection.load_model("m")
        expect("rows", rows(connection, "m"), [("1", "READY", "")])
        expect("generation", generation(connection, "m"), "disk")
        infer(connection, "m")

        connection.load_model("m", config=json.dumps(CONFIG))
        expect("generation", generation(connection, "m"), "override")
        infer(connection, "m")
        connection.load_model("m")
        expect("generation after a plain load", generation(connection, "m"), "override")

        connection.load_model("m", config=json.dumps(CONFIG), files={"file:8/weights.bin": b"\x00\x01weights"})
        expect("model of files", rows(connection, "m")[-1], ("8", "READY", ""))
        infer(connection, "m")
        connection.load_model("m")
        expect("generation after files", generation(connection, "m"), "disk")

        refused = "failed to load 'absent', failed to poll from model repository"
        status = fails("absent", refused, connection.load_model, "absent")
        expect("status", status, "500" if connection.is_http else "StatusCode.INTERNAL")
        text = "load failed for model 'failing': version 1 is at UNAVAILABLE state: Invalid argument: as told;\n"
        status = fails("failing", text, connection.load_model, "failing")
        expect("status", status, "400" if connection.is_http else "StatusCode.INVALID_ARGUMENT")
        expect("reason", rows(connection, "failing"), [("1", "UNAVAILABLE", "Invalid argument: as told")])

        connection.unload_model("m")
        wait_for("the end of m", lambda: ("1", "UNAVAILABLE", "unloaded") in rows(connection, "m"))
        expect("model ready", is_ready(connection, "m"), False)
        connection.unload_model("absent")
        connection.unload_model("m", unload_dependents=True)
    print(f"{args.protocol}: ok")


if __name__ == "__main__":
    main()
