"""What of a request reaches its model, and what of its response the client."""

import json
import time

from wire import Ask
from tritonclient.grpc import service_pb2 as pb

IN = ("IN", "INT32", [2], [1, 2])
MORE = ("MORE", "BYTES", [1], ["more"])

# Given back by the model as the parameters of its response.
PARAMETERS = {
    "of every kind": {"text": "t", "number": -7, "flag": True, "flag off": False, "large": 9223372036854775807},
    "none": {},
    "null": None,
    "of names with blanks": {"a b": "c d", "": "empty", "é": "ü"},
    "a double": {"double": 0.5},
    "a null in it": {"null": None},
    "a list in it": {"list": [1]},
    "too large a number": {"large": 9223372036854775808},
    "a list": ["text"],
}


def ask(**more):
    inputs = more.pop("inputs", [IN])
    return Ask("echo_request", inputs, **more)


def cases(server):
    asks = {
        "bare": ask(),
        "with an id": ask(request_id='the "id" é'),
        "with both inputs": ask(inputs=[MORE, IN]),
        "with outputs": ask(outputs=["TOLD", "OUT"]),
        "with one output": ask(outputs=["TOLD"]),
        "with parameters": ask(parameters={"text": 'é "q"', "number": -3, "flag": True, "off": False}),
        "with a double": ask(parameters={"double": 0.5, "whole": 2.0}),
        "with a timeout": ask(parameters={"timeout": 1_000_000}),
        "with a priority": ask(parameters={"priority": 3}),
        "with a correlation id": ask(parameters={"sequence_id": 77}),
        "with a textual correlation id": ask(parameters={"sequence_id": "seventy"}),
        "with an empty correlation id": ask(parameters={"sequence_id": ""}),
        "with sequence flags": ask(parameters={"sequence_id": 5, "sequence_start": True, "sequence_end": True}),
        "with a start": ask(parameters={"sequence_id": 5, "sequence_start": True}),
        "with an end": ask(parameters={"sequence_id": 5, "sequence_start": False, "sequence_end": True}),
        "with headers": ask(parameters={"header": "h"}),
    }
    for name, one in asks.items():
        yield f"{name}, JSON", server.infer_json(one)
        yield f"{name}, gRPC", server.infer_grpc(one)
        yield f"{name}, stream", server.stream([one])
    for name, parameters in PARAMETERS.items():
        one = ask(parameters={"answer": json.dumps(parameters)}, outputs=["OUT"])
        yield f"response parameters {name}, JSON", server.infer_json(one)
        yield f"response parameters {name}, binary", server.infer_binary(one)
        yield f"response parameters {name}, gRPC", server.infer_grpc(one)
        yield f"response parameters {name}, stream", server.stream([one])
    unsigned = server.message_of(ask())
    unsigned.parameters["unsigned"].uint64_param = 18446744073709551615
    yield "an unsigned parameter", server.call("ModelInfer", unsigned)
    nothing = server.message_of(ask())
    nothing.parameters["nothing"].CopyFrom(pb.InferParameter())
    yield "a parameter without a value", server.call("ModelInfer", nothing)
    yield from timeouts(server)


def timeouts(server):
    """A request that may wait 1 us waits behind one that is executed, and the third one is alone again."""
    sleeping = lambda wait_ms, **more: Ask("queued", [("SLEEP_MS", "INT32", [1, 1], [wait_ms])], **more)
    first = server.stub.ModelInfer.future(server.message_of(sleeping(16000)), timeout=300)
    waiting = sleeping(0, parameters={"timeout": 1})
    # The two go over different connections, and nothing tells a client of either server what is executed now: the times
    # are those of a busy machine.
    time.sleep(4)
    yield "rejected after its time in the queue", server.infer_json(waiting)
    first.result()
    yield "with time enough", server.infer_grpc(sleeping(0, parameters={"timeout": 600_000_000}))
