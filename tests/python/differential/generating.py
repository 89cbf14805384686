"""The extension `generate`: JSON in, one JSON or events out."""

import json

BODIES = {
    "once": {"text_input": "hello"},
    "with an id": {"id": "g", "text_input": "hello"},
    "five times": {"text_input": "again", "REPEAT": 5},
    "none": {"text_input": "never", "REPEAT": 0},
    "failing": {"text_input": "fail", "REPEAT": 3},
    "a flag": {"text_input": "hello", "stream": True},
    "parameters": {"text_input": "hello", "parameters": {"temperature": 1, "word": "w"}},
    "unknown keys": {"text_input": "hello", "colour": "green"},
    "a list": {"text_input": ["hello"]},
    "two": {"text_input": ["hello", "twice"]},
    "a number for a text": {"text_input": 7},
    "a text for a number": {"text_input": "hello", "REPEAT": "x"},
    "no text": {"REPEAT": 1},
    "an object": {"text_input": {}},
    "null": {"text_input": None},
}


def cases(server):
    for model in ["generator", "add_sub", "strings", "absent"]:
        for name, body in BODIES.items():
            if model == "absent" and name != "once":
                continue
            if model == "strings":
                body = {key.replace("text_input", "TEXT"): value for key, value in body.items()}
            for verb in ["generate", "generate_stream"]:
                answer = server.http("POST", f"/v2/models/{model}/{verb}", body)
                if isinstance(answer["body"], str):
                    answer["body"] = events(answer["body"])
                yield f"{verb} {name} of {model}", answer
    yield "generate of nonsense", server.http("POST", "/v2/models/generator/generate", b"{")
    yield "generate of nothing", server.http("POST", "/v2/models/generator/generate", b"")
    yield "generate by GET", server.http("GET", "/v2/models/generator/generate")
    yield "generate_stream by version", server.http(
        "POST", "/v2/models/generator/versions/1/generate_stream", {"text_input": "v"}
    )


def events(text):
    """The events of a stream, their data parsed."""
    found = []
    for event in text.split("\n\n"):
        if event.startswith("data: "):
            try:
                found.append(json.loads(event[len("data: ") :]))
                continue
            except ValueError:
                pass
        found.append(event)
    return found
