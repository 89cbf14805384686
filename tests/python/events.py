"""Reads answers in events with the HTTP clients that Python programs use: http.client and urllib3."""

import argparse
import http.client
import json

import urllib3

parser = argparse.ArgumentParser()
parser.add_argument("--url", required=True)
url = parser.parse_args().url


def events(lines):
    """Yields the events of a stream of lines as soon as each is complete."""
    data = []
    for line in lines:
        line = line.rstrip(b"\r\n")
        if line.startswith(b"data: "):
            data.append(line[len(b"data: "):])
        elif not line and data:
            yield json.loads(b"\n".join(data))
            data = []
    assert not data, data


repeat = {"IN": [3, 1, 2], "DELAY": [0, 20, 20], "WAIT": 0, "id": "r"}
connection = http.client.HTTPConnection(url)

# Twice, for the connection is to be of use again.
for _ in range(2):
    connection.request("POST", "/v2/models/repeat/generate_stream", json.dumps(repeat))
    response = connection.getresponse()
    assert response.status == 200 and response.headers.get_content_type() == "text/event-stream"
    found = list(events(response))
    assert [event["OUT"] for event in found] == [3, 1, 2], found
    assert [event["IDX"] for event in found] == [0, 1, 2] and found[0]["id"] == "r"

# The first event is there before the last one is made.
connection.request(
    "POST", "/v2/models/repeat/generate_stream", json.dumps({"IN": [1, 2], "DELAY": [0, 300], "WAIT": 0})
)
response = connection.getresponse()
stream = events(response)
first = next(stream)
assert first["OUT"] == 1
assert [event["OUT"] for event in stream] == [2]

connection.request("POST", "/v2/models/plain/generate", json.dumps({"INPUT0": [1, 2]}))
response = connection.getresponse()
assert response.headers.get_content_type() == "application/json"
assert json.load(response)["OUTPUT0"] == [1, 2]

tensors = {
    "inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [4]}],
    "parameters": {"triton_enable_empty_final_response": True},
}
pool = urllib3.PoolManager()
response = pool.request(
    "POST",
    f"http://{url}/v2/models/square/infer",
    json=tensors,
    headers={"Accept": "text/event-stream"},
    preload_content=False,
)
assert response.status == 200
found = list(events(response))
assert [event["parameters"]["triton_final_response"] for event in found] == [False] * 4 + [True], found
assert all(event["outputs"][0]["data"] == [4] for event in found[:4])
response.release_conn()
print("events: fine")
