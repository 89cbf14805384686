"""Tensors of all types in all forms: JSON, binary and mixed over HTTP; raw and typed contents over gRPC; streams."""

import json

from wire import NUMPY, Ask, raw

TEXTS = ["", "plain", "grüß", 'a "quote", a \\ and a \n', "x" * 300]
VALUES = {
    "BOOL": [True, False, True],
    "UINT8": [0, 255, 7],
    "UINT16": [0, 65535, 7],
    "UINT32": [0, 4294967295, 7],
    "UINT64": [0, 18446744073709551615, 7],
    "INT8": [-128, 127, 0],
    "INT16": [-32768, 32767, 0],
    "INT32": [-2147483648, 2147483647, 0],
    "INT64": [-9223372036854775808, 9223372036854775807, 0],
    "FP16": [0.0, -1.5, 65504.0],
    "BF16": [0, 0x3F80, 0xC2C8],
    "FP32": [0.0, -1.5, 3.0e38],
    "FP64": [0.0, -1.5, 1.0e300],
    "BYTES": TEXTS,
}
LEFT = ("INPUT0", "FP32", [4], [1.0, 2.0, 3.0, 4.0])
RIGHT = ("INPUT1", "FP32", [4], [10.0, 20.0, 30.0, 40.0])


def every_way(server, name, ask, grpc_typed=True):
    yield f"{name}, JSON", server.infer_json(ask)
    yield f"{name}, binary", server.infer_binary(ask)
    yield f"{name}, binary in, JSON out", server.infer_binary(ask, binary_output=False)
    yield f"{name}, raw contents", server.infer_grpc(ask)
    if grpc_typed:
        yield f"{name}, typed contents", server.infer_grpc(ask, typed=True)
    yield f"{name}, stream", server.stream([ask])


def cases(server):
    yield from every_way(server, "add_sub", Ask("add_sub", [LEFT, RIGHT], request_id="one"))
    yield from every_way(server, "chain of two", Ask("chain", [LEFT, RIGHT]))
    yield from every_way(server, "by version", Ask("add_sub", [LEFT, RIGHT], version="1"))
    yield from every_way(server, "by a missing version", Ask("add_sub", [LEFT, RIGHT], version="3"))
    for datatype in [*NUMPY, "BYTES"]:
        values = VALUES[datatype]
        for model, shape in [("identity", [len(values)]), ("identity_batched", [1, len(values)])]:
            ask = Ask(model, [("IN_" + datatype, datatype, shape, values)], request_id=datatype)
            yield from every_way(server, f"{model} {datatype}", ask)
        empty = Ask("identity", [("IN_" + datatype, datatype, [0], [])])
        yield from every_way(server, f"no elements of {datatype}", empty)
    rows = Ask("identity_batched", [("IN_INT32", "INT32", [3, 2], [1, 2, 3, 4, 5, 6])])
    yield from every_way(server, "three rows", rows)
    yield from every_way(server, "nine rows", Ask("identity_batched", [("IN_INT8", "INT8", [9, 1], [7] * 9)]))
    several = [("IN_INT32", "INT32", [2], [1, 2]), ("IN_BYTES", "BYTES", [1], ["b"]), ("IN_FP64", "FP64", [1], [0.5])]
    yield from every_way(server, "several types", Ask("identity", several))
    large = Ask("identity", [("IN_INT32", "INT32", [150_000], list(range(150_000)))])
    yield "588 KiB, binary", shortened(server.infer_binary(large))
    yield "588 KiB, raw contents", shortened(server.infer_grpc(large))
    yield from outputs(server)
    yield from mixed(server)
    yield from strings(server)
    yield from classes(server)
    yield from together(server)


def shortened(answer):
    """The digest of a long text."""
    import hashlib

    text = json.dumps(answer, sort_keys=True)
    return {"length": len(text), "digest": hashlib.sha256(text.encode()).hexdigest()}


def outputs(server):
    for names in [["OUTPUT0"], ["OUTPUT1"], ["OUTPUT1", "OUTPUT0"], ["OUTPUT0", "OUTPUT0"], ["OUTPUT9"], [""]]:
        ask = Ask("add_sub", [LEFT, RIGHT], outputs=names)
        yield from every_way(server, f"outputs {names}", ask, grpc_typed=False)
    half = Ask("add_sub", [LEFT, RIGHT], outputs=[("OUTPUT0", {"binary_data": True}), "OUTPUT1"])
    yield "one output binary", server.infer_json(half)
    for names in [["OUT_INT32"], ["OUT_FP32"], ["OUT_INT32", "OUT_FP32"]]:
        ask = Ask("identity", [("IN_INT32", "INT32", [1], [5])], outputs=names)
        yield from every_way(server, f"of the identity {names}", ask, grpc_typed=False)


def mixed(server):
    """One input in the header, the other behind it."""
    data = raw("FP32", RIGHT[3])
    head = {
        "inputs": [
            {"name": "INPUT0", "datatype": "FP32", "shape": [4], "data": LEFT[3]},
            {"name": "INPUT1", "datatype": "FP32", "shape": [4], "parameters": {"binary_data_size": len(data)}},
        ],
        "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}, {"name": "OUTPUT1"}],
    }
    text = json.dumps(head).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    yield "mixed", server.http("POST", "/v2/models/add_sub/infer", text + data, headers)
    yield "mixed, cut short", server.http("POST", "/v2/models/add_sub/infer", text + data[:-1], headers)
    yield "mixed, too long", server.http("POST", "/v2/models/add_sub/infer", text + data + b"x", headers)


def strings(server):
    ask = Ask("strings", [("TEXT", "BYTES", [2, 2], ["ab", "", "ccc", "d" * 1000])])
    yield from every_way(server, "strings refused for their shape", ask)
    ask = Ask("strings", [("TEXT", "BYTES", [4], ["ab", "", "ccc", "d" * 1000])])
    yield from every_way(server, "strings", ask)
    many = Ask("strings", [("TEXT", "BYTES", [1000], [f"number {number}" for number in range(1000)])])
    yield "a thousand strings", server.infer_grpc(many)
    not_text = Ask("strings", [("TEXT", "BYTES", [2], [b"\xff\xfe", b"\x00"])])
    yield "strings that are no text, binary", server.infer_binary(not_text)
    yield "strings that are no text, raw contents", server.infer_grpc(not_text)
    yield from every_way(server, "ensemble", Ask("pipeline", [("TEXT", "BYTES", [3], ["ab", "", "ccc"])]))
    yield "ensemble, one output", server.infer_grpc(Ask("pipeline", [("TEXT", "BYTES", [1], ["ab"])], outputs=["TWICE"]))


def classes(server):
    scores = ("IN", "FP32", [2, 4], [0.1, 0.9, 0.5, 0.3, 4.0, 3.0, 2.0, 1.0])
    for count in [1, 3, 9]:
        ask = Ask("labelled", [scores], outputs=[("OUT", {"classification": count})])
        yield from every_way(server, f"{count} classes", ask, grpc_typed=False)
    ask = Ask("add_sub", [LEFT, RIGHT], outputs=[("OUTPUT0", {"classification": 2}), "OUTPUT1"])
    yield from every_way(server, "classes without labels", ask, grpc_typed=False)


def together(server):
    """Three requests that are one execution; the model says so. They wait for each other."""
    asks = [Ask("together", [("IN", "INT32", [1, 2], [number, 1])]) for number in range(3)]
    calls = [server.stub.ModelInfer.future(server.message_of(ask), timeout=300) for ask in asks]
    from wire import readable

    yield "three together", [readable(call.result()) for call in calls]
    ask = Ask("together", [("IN", "INT32", [3, 2], [1, 2, 3, 4, 5, 6])])
    yield "three rows of one", server.infer_grpc(ask)
