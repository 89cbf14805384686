#!/usr/bin/env python3
"""What models see of requests, and which requests they see together."""

import argparse
import json

import numpy as np

from connect import expect
from model_calls import both, run, Stream, texts

# The largest that each client can name.
MOST = {"HTTP": (1 << 64) - 1, "gRPC": (1 << 63) - 1}


def facts(client):
    def told(**more):
        outputs = more.pop("outputs", None)
        answer = client.infer("echo_request", {"IN": np.array([1, 2], dtype=np.int32)}, outputs=outputs, **more)
        return json.loads(answer["TOLD"][0]), answer

    plain, answer = told()
    expect("correlation", plain["correlation_id"], ["int", 0])
    expect("the rest", [plain[key] for key in ("id", "flags", "timeout", "parameters")], ["", 0, 0, {}])
    expect("all outputs", plain["requested_outputs"], ["OUT", "TOLD"])
    expect("inputs", plain["inputs"], [["IN", "int32", [2], True]])
    expect("not cancelled, no trace", [plain["cancelled"], plain["trace"][1]], [False, None])
    told_id, answer = told(request_id="a name, é", outputs=["TOLD"])
    expect("id", told_id["id"], "a name, é")
    expect("the response's id", answer.result.get_response()["id"] if client.name == "HTTP" else
           answer.result.get_response().id, "a name, é")
    expect("requested", (told_id["requested_outputs"], answer.names()), (["TOLD"], ["TOLD"]))
    for correlation, seen in [
        (1, ["int", 1]),
        (MOST[client.name], ["int", MOST[client.name]]),
        ("a text", ["str", "a text"]),
    ]:
        for flags, start, end in [(0, False, False), (1, True, False), (2, False, True), (3, True, True)]:
            got, _ = told(sequence_id=correlation, sequence_start=start, sequence_end=end)
            expect("correlation and flags", (got["correlation_id"], got["flags"]), (seen, flags))
    expect("timeout", told(timeout=1234567)[0]["timeout"], 1234567)
    parameters = {"flag": True, "number": -(1 << 62), "text": "é\"\\", "half": 0.5}
    if client.name == "gRPC":
        # Its client knows no doubles.
        del parameters["half"]
    expect("parameters", told(parameters=parameters)[0]["parameters"], parameters)
    answered = {"yes": True, "no": False, "number": 1 << 40, "text": "é"}
    response = told(parameters={"answer": json.dumps(answered)})[1].result.get_response()
    if client.name == "HTTP":
        expect("response's parameters", response["parameters"], answered)
    else:
        values = response.parameters.items()
        got = {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in values}
        expect("response's parameters", got, answered)


def messages(client):
    """What gRPC's messages can say and its client cannot."""
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name="echo_request")
    request.parameters["fine"].int64_param = 1
    made = request.inputs.add(name="IN", datatype="INT32", shape=[1])
    made.contents.int_contents.append(1)
    request.parameters["half"].double_param = 0.25
    answer = client.client._client_stub.ModelInfer(request)
    told = [json.loads(raw[4:]) for raw in answer.raw_output_contents if raw[4:5] == b"{"]
    expect("a double", told[0]["parameters"], {"fine": 1, "half": 0.25})


def together(client):
    def start(rows, width):
        return client.start("together", {"IN": np.full((rows, width), rows, dtype=np.int32)})

    for rows in ((1, 1, 1), (2, 1)):
        waiting = [start(count, 5) for count in rows]
        for count, answer in zip(rows, [wait() for wait in waiting]):
            expect("values", answer["OUT"].tolist(), [[count + 1] * 5] * count)
            expect("requests", answer["REQUESTS"].reshape(-1).tolist(), [len(rows)] * count)
            expect("its own shape", answer["SHAPE"].tolist(), [[count, 5]] * count)
    answer = client.infer("together", {"IN": np.zeros((9, 5), dtype=np.int32)})
    if "batch-size must be <= 8" not in (answer.text or ""):
        raise SystemExit(f"too many rows: {answer}")


def ragged(client):
    """Requests of different shapes are executed together, and each keeps its own; batch inputs are for backends that
    join requests into one tensor, which Python's does not."""

    def start(rows, length, height):
        shapes = {"LIST": (rows, length), "GRID": (rows, height, 2), "SAME": (rows, 3)}
        arrays = {name: np.full(shape, rows, dtype=np.int32) for name, shape in shapes.items()}
        told = {"requests": 3, "shapes": {name: list(shape) for name, shape in shapes.items()}}
        return client.start("ragged", arrays), told, rows * (length + 2 * height + 3)

    waiting = [start(1, 4, 1), start(2, 1, 3), start(1, 0, 2)]
    for wait, told, total in waiting:
        answer, rows = wait(), told["shapes"]["LIST"][0]
        expect("the request as its model saw it", [json.loads(text) for text in answer["TOLD"].reshape(-1)], [told] * rows)
        expect("its own numbers", answer["SUM"].tolist(), [[total]] * rows)


def sequences(client):
    for model in ("sequence", "sequence_oldest", "sequence_texts"):
        ids = ("first", "é2") if model.endswith("texts") else (7, MOST[client.name])
        sums = dict.fromkeys(ids, 0)
        for step in range(4):
            for place, correlation in enumerate(ids):
                value = step * 10 + place
                answer = client.infer(
                    model,
                    {"IN": np.array([[value, 1]], dtype=np.int32)},
                    sequence_id=correlation,
                    sequence_start=step == 0,
                    sequence_end=step == 3,
                )
                sums[correlation] += value + 1
                expect(f"{model}: sum", int(answer["SUM"][0][0]), sums[correlation])
                told = json.loads(answer["TOLD"][0][0])
                flags = (1 if step == 0 else 0) | (2 if step == 3 else 0)
                expect(f"{model}: id and flags", (told["correlation_id"], told["flags"]), (correlation, flags))
                controls = {"START": [float(step == 0)], "END": [int(step == 3)], "READY": [True]}
                controls["CORRID"] = [correlation]
                expect(f"{model}: controls", told["controls"], controls)


def iterative(client, stream):
    for rounds in (0, 1, 5):
        answer = client.infer("iterative", {"ROUNDS": np.array([[rounds]], dtype=np.int32)})
        expect("rounds", answer["SEEN"].tolist(), [[rounds + 1]])
    waiting = [client.start("iterative", {"ROUNDS": np.array([[rounds]], dtype=np.int32)}) for rounds in range(6)]
    expect("at once", [int(wait()["SEEN"][0][0]) for wait in waiting], [1, 2, 3, 4, 5, 6])
    for rounds in (1, 2, 9):
        answers = stream.all("rounds", {"ROUNDS": np.array([[rounds]], dtype=np.int32)})
        expect("one a round", [int(answer["ROUND"][0][0]) for answer in answers], list(range(rounds)))


def not_to_be_put_back(client):
    """A model without iterative sequences may not ask for it."""
    answer = client.infer("puts_back", {"ROUNDS": np.array([1], dtype=np.int32)})
    text = "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured"
    if text not in (answer.text or ""):
        raise SystemExit(f"{client.name}: {answer}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("http")
    parser.add_argument("grpc")
    arguments = parser.parse_args()
    stream = Stream(arguments.grpc)
    clients = both(arguments.http, arguments.grpc)
    for client in clients:
        facts(client)
        together(client)
        ragged(client)
        sequences(client)
        iterative(client, stream)
        not_to_be_put_back(client)
    messages(clients[1])
    stream.stop()


if __name__ == "__main__":
    run(main)
