"""Sequences: their controls, their correlation ids, their errors, and requests that go round."""

from measured import settled
from wire import Ask


def step(model, value, sequence, start=False, end=False, **more):
    parameters = {"sequence_id": sequence, "sequence_start": start, "sequence_end": end}
    return Ask(model, [("IN", "INT32", [1, 1], [value])], parameters=parameters, **more)


def cases(server):
    for model, ids in [("sequence", [7, 8]), ("sequence_oldest", [7, 8]), ("sequence_texts", ["seven", "eight"])]:
        one, other = ids
        for number, ask in enumerate(
            [
                step(model, 1, one, start=True),
                step(model, 10, other, start=True),
                step(model, 2, one),
                step(model, 20, other, end=True),
                step(model, 3, one, end=True),
                step(model, 4, one),
                step(model, 5, one, start=True, end=True),
            ]
        ):
            yield f"{model} {number}", server.infer_grpc(ask)
            # Until here no slot became free.
            if number == 2:
                yield f"batches of {model}", settled(server, model)["batch_stats"]
        yield f"{model} over HTTP", server.infer_json(step(model, 1, one, start=True, end=True))
        yield f"{model} on a stream", server.stream([step(model, 1, one, True), step(model, 2, one, False, True)])
        without = Ask(model, [("IN", "INT32", [1, 1], [1])])
        yield f"{model} without an id", server.infer_json(without)
    yield "a text where numbers are the rule", server.infer_grpc(step("sequence", 1, "seven", True, True))
    yield "a number where texts are the rule", server.infer_grpc(step("sequence_texts", 1, 7, True, True))
    for rounds in [0, 1, 4]:
        ask = Ask("iterative_alone", [("ROUNDS", "INT32", [1, 1], [rounds])], parameters={"sequence_id": 40 + rounds})
        ask.parameters["sequence_start"] = True
        yield f"{rounds} rounds", server.infer_grpc(ask)
        ask = Ask("iterative_alone", [("ROUNDS", "INT32", [1, 1], [rounds])])
        yield f"{rounds} rounds without an id", server.infer_grpc(ask)
