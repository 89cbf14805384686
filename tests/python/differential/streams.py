"""Streams of decoupled models: their responses, their order, their flags, their end."""

from wire import Ask

from forms import LEFT, RIGHT


def counted(count, how=None, model="decoupled", **more):
    inputs = [("COUNT", "INT32", [1], [count])]
    if how is not None:
        inputs.append(("HOW", "BYTES", [1], [how]))
    return Ask(model, inputs, **more)


def cases(server):
    for how in ["plain", "together", "thread", "thread together", "errors", "bare", "raise", "value"]:
        for count in [0, 1, 3]:
            one = counted(count, how, request_id=f"{how} {count}")
            yield f"{how} {count}, with the end", server.stream([one])
            yield f"{how} {count}", server.stream([one], want_final=False)
    yield "128 responses", server.stream([counted(128)])
    for count in [0, 1, 5]:
        yield f"async {count}", server.stream([counted(count, model="decoupled_async", request_id="a")])
    yield "one output", server.stream([counted(2, outputs=["OUT"])])
    yield "an output that is not made", server.stream([counted(2, "bare", outputs=["OUT"])])
    one = counted(2)
    one.inputs[0] = ("COUNT", "INT64", [1], [2])
    yield "refused", server.stream([one])
    yield "one after the other", server.stream([counted(2), counted(0), counted(1, "thread", request_id="third")])
    mixed = [Ask("add_sub", [LEFT, RIGHT], request_id="first"), counted(2, request_id="second"), Ask("absent", [LEFT])]
    yield "several models", server.stream(mixed)
    yield "by a unary call", server.infer_grpc(counted(2))
    yield "by HTTP", server.infer_json(counted(2))
    yield "classes", server.stream([counted(2, outputs=[("OUT", {"classification": 1})])])
    yield "a plain model with the end", server.stream([Ask("add_sub", [LEFT, RIGHT], request_id="plain")])
    yield "a plain model", server.stream([Ask("add_sub", [LEFT, RIGHT], request_id="plain")], want_final=False)
