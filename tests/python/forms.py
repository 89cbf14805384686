#!/usr/bin/env python3
"""Every datatype there and back through identity models, in every form that the official client offers."""

import argparse

import ml_dtypes
import numpy as np
from tritonclient.utils import InferenceServerException

from connect import PROTOCOLS, connect, expect

NUMPY = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}
BINARY_ONLY = {"FP16", "BF16"}
INTEGERS = {name for name in NUMPY if "INT" in name}


def samples(datatype):
    """Arrays with two dimensions: limits of the type, ordinary values, no elements."""
    kind = NUMPY[datatype]
    if datatype == "BYTES":
        strings = [b"", b"plain", "gr\u00fc\u00df".encode(), b'quote " and \\ and \n', b"x" * 100_000]
        yield np.array([strings], dtype=np.object_)
        yield np.array([["text", "as str"]], dtype=np.object_)
    elif datatype == "BOOL":
        yield np.array([[True, False, True]])
    elif datatype in INTEGERS:
        limits = np.iinfo(kind)
        yield np.array([[limits.min, limits.max, 0, 1]], dtype=kind)
        yield np.arange(5000).astype(kind).reshape(2, 2500)
    else:
        yield np.array([[0.0, -0.0, 1.0, -2.5, 0.15625, np.inf, -np.inf, np.nan]], dtype=kind)
        yield np.random.default_rng(7).standard_normal((3, 777)).astype(kind)
    yield np.zeros((0, 4), dtype=kind)


def same(sent, got, datatype):
    if datatype == "BYTES":
        plain = [one.encode() if isinstance(one, str) else one for one in sent.reshape(-1)]
        returned = [one.encode() if isinstance(one, str) else one for one in got.reshape(-1)]
        return sent.shape == got.shape and plain == returned
    # Bit for bit: NaN equals itself, and zero keeps its sign. A NaN that went through JSON may change its payload.
    if sent.shape != got.shape or sent.dtype != got.dtype:
        return False
    as_is = sent.tobytes() == got.tobytes()
    if datatype in ("FP32", "FP64") and not as_is:
        return np.array_equal(sent, got, equal_nan=True) and np.array_equal(np.signbit(sent), np.signbit(got))
    return as_is


def round_trips(connection):
    forms = [(True, True), (True, False), (False, True), (False, False)] if connection.is_http else [(True, True)]
    count = 0
    for datatype in NUMPY:
        for array in samples(datatype):
            for binary_in, binary_out in forms:
                if datatype in BINARY_ONLY and not (binary_in and binary_out):
                    continue
                name = f"identity_{datatype.lower()}"
                inputs = [connection.input("INPUT0", array, datatype, binary_in)]
                result = connection.infer(name, inputs, outputs=[connection.output("OUTPUT0", binary_out)])
                got = result.as_numpy("OUTPUT0")
                if array.size == 0 and got is None:
                    continue  # the client makes no array of a JSON output without elements
                if not same(array, got, datatype):
                    raise SystemExit(f"{name} in={binary_in} out={binary_out}: sent {array!r}, got {got!r}")
                count += 1
    return count


def without_requested_outputs(connection):
    array = np.array([[1, 2]], dtype=np.int32)
    result = connection.infer("identity_int32", [connection.input("INPUT0", array, "INT32")], request_id="the id")
    expect("default output", result.as_numpy("OUTPUT0").tolist(), [[1, 2]])
    response = result.get_response()
    if connection.is_http:
        expect("id", response["id"], "the id")
        expect("response parameters", response["parameters"]["param1"], 42)
    else:
        expect("id", response.id, "the id")
        expect("response parameters", response.parameters["param1"].int64_param, 42)


def with_parameters(connection):
    array = np.array([[1]], dtype=np.int32)
    inputs = [connection.input("INPUT0", array, "INT32")]
    parameters = {"text": "x", "number": 7, "flag": True}
    result = connection.infer("identity_int32", inputs, parameters=parameters, priority=0, timeout=None)
    expect("answer with parameters", result.as_numpy("OUTPUT0").tolist(), [[1]])


def error_of(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except InferenceServerException as error:
        return error
    raise SystemExit(f"expected an error of {args} {kwargs}")


def errors(connection):
    wrong = np.array([[1, 2]], dtype=np.int64)
    inputs = [connection.input("INPUT0", wrong, "INT64")]
    error = error_of(connection.infer, "identity_int32", inputs, request_id="e1")
    text = "[request id: e1] inference input 'INPUT0' data-type is 'INT64', but model 'identity_int32' expects 'INT32'"
    expect("text", error.message(), text)
    expect("status", error.status(), "400" if connection.is_http else "StatusCode.INVALID_ARGUMENT")
    error = error_of(connection.infer, "absent", inputs)
    expect("text", error.message(), "Request for unknown model: 'absent' is not found")
    expect("status", error.status(), "404" if connection.is_http else "StatusCode.NOT_FOUND")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", choices=PROTOCOLS, required=True)
    parser.add_argument("--url", required=True)
    args = parser.parse_args()
    with connect(args.protocol, args.url) as connection:
        count = round_trips(connection)
        without_requested_outputs(connection)
        with_parameters(connection)
        errors(connection)
    print(f"{args.protocol}: {count} round trips")


if __name__ == "__main__":
    main()
