"""Requests that fail: by what they are, and by what the model makes of them."""

from wire import Ask

from forms import LEFT, RIGHT, every_way

WAYS = [
    "fine",
    "raise_value_error",
    "raise_deep",
    "raise_odd",
    "raise_empty",
    "raise_lines",
    "raise_model_exception",
    "raise_chained",
    "raise_syntax",
    "raise_assertion",
    "plain_error",
    "empty_error",
    "error_beside_outputs",
    "nothing",
    "too_many",
    "list_of_text",
    "a_tuple",
    "a_number",
    "a_response",
    "no_outputs",
    "other_output",
    "other_type",
    "other_shape",
    "no_elements",
    "scalar",
    "same_output_twice",
    "turned_around",
    "prints",
    "no such way",
]
CODES = ["UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED"]


def cases(server):
    for how in WAYS + [f"code {code}" for code in CODES]:
        ask = Ask("failing", [("HOW", "BYTES", [1], [how])], request_id="f")
        yield f"{how}, HTTP", server.infer_json(ask)
        yield f"{how}, gRPC", server.infer_grpc(ask)
        yield f"{how}, stream", server.stream([ask])
    yield "it serves on", server.infer_json(Ask("failing", [("HOW", "BYTES", [1], ["fine"])]))
    for name, inputs in {
        "no inputs": [],
        "one input": [LEFT],
        "a third input": [LEFT, RIGHT, ("INPUT2", "FP32", [1], [1.0])],
        "an input twice": [LEFT, LEFT],
        "another name": [LEFT, ("INPUT9", "FP32", [4], [1.0] * 4)],
        "another type": [LEFT, ("INPUT1", "INT32", [4], [1] * 4)],
        "another shape": [LEFT, ("INPUT1", "FP32", [5], [1.0] * 5)],
        "another rank": [LEFT, ("INPUT1", "FP32", [2, 2], [1.0] * 4)],
        "no such type": [LEFT, ("INPUT1", "FLOAT", [4], [1.0] * 4)],
    }.items():
        ask = Ask("add_sub", inputs)
        yield f"{name}, JSON", server.infer_json(ask)
        if name != "no such type":
            yield f"{name}, raw contents", server.infer_grpc(ask)
            yield f"{name}, stream", server.stream([ask])
    # Of a model whose inputs are all optional.
    yield from every_way(server, "nothing at all", Ask("identity", []))
    yield from every_way(server, "an unknown model", Ask("absent", [LEFT]))
    yield from every_way(server, "a model that is not loaded", Ask("life", [("IN", "INT32", [1], [1])]))
