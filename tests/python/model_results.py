#!/usr/bin/env python3
"""What becomes of everything that execute may return or raise (contract/python_backend.md section 2, "execute
results")."""

import argparse

import numpy as np

from connect import expect
from model_calls import Stream, both, texts

RAISED = "Failed to process the request(s) for model 'failing_0_0', message: "
GRPC = {400: "INVALID_ARGUMENT", 404: "NOT_FOUND", 500: "INTERNAL", 501: "UNIMPLEMENTED", 503: "UNAVAILABLE"}

# How the model answers: status over HTTP, beginning of the text, what else is in it.
FAILURES = {
    "raise_value_error": (500, RAISED + 'ValueError: a "value" that is wrong: é\n\nAt:\n', ["model.py(", "execute"]),
    "raise_deep": (500, RAISED + "KeyError: 'down here'", [": deep\n", ": execute\n"]),
    "raise_odd": (500, RAISED, ["Odd: an odd one"]),
    "raise_empty": (500, RAISED + "RuntimeError: ", []),
    "raise_lines": (500, RAISED + "RuntimeError: one\ntwo", []),
    "raise_model_exception": (500, RAISED, ["TritonModelException: the model's own"]),
    "raise_chained": (500, RAISED + "RuntimeError: because of it", []),
    "raise_syntax": (500, RAISED + "SyntaxError: ", []),
    "raise_assertion": (500, RAISED + "AssertionError: not equal", []),
    "no such way": (500, RAISED + "AttributeError: ", []),
    "plain_error": (500, "without a code", []),
    "empty_error": (500, "", []),
    "error_beside_outputs": (500, "beside outputs", []),
    "nothing": (
        500,
        RAISED,
        [
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0\n"
        ],
    ),
    "too_many": (500, RAISED, ["InferenceRequest(s) size is:1, and InferenceResponse(s) size is:2\n"]),
    "a_tuple": (500, RAISED, ["Expected a list in the execute return, found type '", "tuple"]),
    "a_number": (500, RAISED, ["Expected a list in the execute return, found type '", "int"]),
    "a_response": (500, RAISED, ["Expected a list in the execute return, found type '", "InferenceResponse"]),
    "list_of_text": (
        500,
        RAISED,
        ["Expected an 'InferenceResponse' object in the execute function return list, found type '", "str"],
    ),
    "code UNKNOWN": (400, "with the code UNKNOWN", []),
    "code INTERNAL": (500, "with the code INTERNAL", []),
    "code NOT_FOUND": (404, "with the code NOT_FOUND", []),
    "code INVALID_ARG": (400, "with the code INVALID_ARG", []),
    "code UNAVAILABLE": (503, "with the code UNAVAILABLE", []),
    "code UNSUPPORTED": (501, "with the code UNSUPPORTED", []),
    "code ALREADY_EXISTS": (400, "with the code ALREADY_EXISTS", []),
    "code CANCELLED": (400, "with the code CANCELLED", []),
}
GRPC_CODES = {"code UNKNOWN": "UNKNOWN", "code ALREADY_EXISTS": "ALREADY_EXISTS", "code CANCELLED": "CANCELLED"}


def failures(client):
    for how, (status, begin, parts) in FAILURES.items():
        answer = client.infer("failing", {"HOW": texts(how)})
        if answer.error is None:
            raise SystemExit(f"{client.name}, {how}: {answer}")
        if client.name == "HTTP":
            expect(f"{how}: status", int(answer.status or status), status)
        else:
            expect(f"{how}: code", answer.status, "StatusCode." + GRPC_CODES.get(how, GRPC[status]))
        if not answer.text.startswith(begin) or any(part not in answer.text for part in parts):
            raise SystemExit(f"{client.name}, {how}: {answer.text!r} for {begin!r} with {parts}")
        # The worker goes on, and nothing of the failure is left.
        expect(f"after {how}", client.infer("failing", {"HOW": texts("fine")})["OUT"].tolist(), [7])


def fine(client):
    for how, names, values in [
        ("fine", ["OUT"], [7]),
        ("prints", ["OUT"], [7]),
        ("turned_around", ["OUT"], [5, 3, 1]),
        ("no_elements", ["OUT"], []),
        ("no_outputs", [], None),
        # What was not asked for is left out.
        ("other_output", [], None),
    ]:
        answer = client.infer("failing", {"HOW": texts(how)}, outputs=["OUT"])
        expect(f"{how}: outputs", answer.names(), names)
        if values is not None:
            expect(f"{how}: values", answer["OUT"].tolist(), values)
    for wanted in (["SUMS"], ["OUT"], ["OUT", "AGAIN"]):
        arrays = {"HOW": texts("twice"), "DATA": np.arange(20_000, dtype=np.uint8)}
        answer = client.infer("holder", arrays, outputs=wanted)
        expect(f"outputs of {wanted}", answer.names(), sorted(name for name in wanted if name != "SUMS"))


def three(client, *ways):
    """Answers of three requests that are executed together."""
    waiting = [client.start("mixed", {"HOW": texts(way, shape=(1, 1))}) for way in ways]
    return [wait() for wait in waiting]


def mixed(client):
    for ways, expected in [
        (("respond", "respond", "respond"), ["returned"] * 3),
        (("respond", "send", "send_later"), ["returned", "sent", "sent later"]),
        (("send", "send_in_two", "send_later"), ["sent", "sent in two", "sent later"]),
        (("send_by_another", "end_later", "respond"), ["sent by another", "ended later", "returned"]),
    ]:
        for _ in range(10):
            answers = three(client, *ways)
            expect(f"{ways}", [answer["TEXT"][0][0].decode() for answer in answers], expected)
    # An error is one request's own.
    answers = three(client, "respond", "complain", "send")
    expect("the others", [answers[at]["TEXT"][0][0] for at in (0, 2)], [b"returned", b"sent"])
    expect("the error", answers[1].text, "complained")
    # What is wrong fails the batch, but for those who have their answer.
    prefix = "Failed to process the request(s) for model 'mixed_0_0', message: "
    for ways, has_answer, text in [
        (("respond", "text", "send"), 2, "Expected an 'InferenceResponse' object in the execute function return list"),
        (("respond", "raises", "send"), None, "ValueError: raised in the middle"),
        (("respond", "raises", "send_by_another"), None, "ValueError: raised in the middle"),
        (("both", "respond", "respond"), 0, "Non-decoupled model cannot send more than one response."),
    ]:
        answers = three(client, *ways)
        for at, answer in enumerate(answers):
            if at == has_answer or (ways[at].startswith("send") and answer.error is None):
                answer["TEXT"]
            elif not (answer.text or "").startswith(prefix) or text not in answer.text:
                raise SystemExit(f"{client.name}, {ways}, {at}: {answer}")
    expect("misuse", three(client, "misuse", "respond", "respond")[0]["TEXT"][0][0], b"the only one")


def coroutines(client):
    def double(value):
        return client.start("coroutines", {"VALUE": np.array([[value]], dtype=np.int32)})

    for value in range(5):
        waiting = [double(value), double(value + 10)]
        expect("doubled", sorted(int(wait()["DOUBLED"][0][0]) for wait in waiting), [2 * value, 2 * value + 20])
    waiting = [double(-1), double(3)]
    for wait in waiting:
        answer = wait()
        if "ValueError: a coroutine raised" not in (answer.text or ""):
            raise SystemExit(f"{client.name}: {answer}")
    waiting = [double(-2), double(3)]
    for wait in waiting:
        answer = wait()
        if "SystemExit: 2" not in (answer.text or ""):
            raise SystemExit(f"{client.name}: {answer}")
    # Tasks that execute leaves behind send their responses after it has returned; the next batch needs no help of
    # theirs, nor they of it.
    for value in (-100, -1000, -110):
        waiting = [double(value), double(value - 1)]
        expect("doubled later", sorted(int(wait()["DOUBLED"][0][0]) for wait in waiting), [2 * value - 2, 2 * value])
    waiting = [double(1), double(2)]
    expect("doubled after all", sorted(int(wait()["DOUBLED"][0][0]) for wait in waiting), [2, 4])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("http")
    parser.add_argument("grpc")
    arguments = parser.parse_args()
    for client in both(arguments.http, arguments.grpc):
        failures(client)
        fine(client)
        mixed(client)
        coroutines(client)


if __name__ == "__main__":
    main()
