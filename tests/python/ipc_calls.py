"""Calls models over the shared-memory ring at the path of the first argument. With a second argument it goes on until it
is killed."""

import array
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python" / "ipc"))

import nereid_ipc


def numbers(count, start=0):
    return array.array("i", range(start, start + count))


def go_on_for_ever(client):
    message = nereid_ipc.encode_infer_request("plain", {"INPUT0": ("INT32", [2000], numbers(2000))})
    print("calling", flush=True)
    while True:
        for _ in range(200):
            client.begin("ModelInfer", message)
        ends = 0
        while ends < 150:
            ends += client.next()[1] == "end"


def main():
    client = nereid_ipc.Client(sys.argv[1])
    if len(sys.argv) > 2:
        go_on_for_ever(client)
    # From an empty tensor to one that does not fit the ring.
    for count in (0, 1, 3, 5_000, 300_000):
        values = numbers(count)
        outputs = client.infer("plain", {"INPUT0": ("INT32", [count], values)}, id="x")
        output = outputs["OUTPUT0"]
        assert (output.datatype, output.shape) == ("INT32", [count]), outputs
        assert bytes(output.data) == values.tobytes()
    assert client.call("ServerLive", b"") == b"\x08\x01"
    # Errors.
    for model, code, text in (
        ("absent", 5, "Request for unknown model: 'absent' is not found"),
        ("repeat", 12, "ModelInfer RPC doesn't support models with decoupled transaction policy"),
    ):
        try:
            client.infer(model, {"INPUT0": ("INT32", [1], numbers(1))})
            raise AssertionError(model)
        except nereid_ipc.StatusError as error:
            assert (error.code, error.text) == (code, text), error
    # Many at a time.
    open_calls = {}
    for start in range(500):
        message = nereid_ipc.encode_infer_request("plain", {"INPUT0": ("INT32", [100], numbers(100, start))})
        open_calls[client.begin("ModelInfer", message)] = numbers(100, start).tobytes()
    while open_calls:
        call, kind, value = client.next(60)
        if kind == "message":
            output = nereid_ipc.decode_infer_response(value)["OUTPUT0"]
            assert bytes(output.data) == open_calls[call]
        else:
            assert value is None, value
            del open_calls[call]
    # Several responses on a stream.
    inputs = {
        "IN": ("INT32", [3], array.array("i", [7, -8, 9])),
        "DELAY": ("UINT32", [3], array.array("I", [0, 0, 0])),
        "WAIT": ("UINT32", [1], array.array("I", [0])),
    }
    this = client.begin("ModelStreamInfer", nereid_ipc.encode_infer_request("repeat", inputs))
    kinds = []
    while not kinds or kinds[-1] != "end":
        call, kind, value = client.next(60)
        assert call == this and (kind == "message" or value is None), value
        kinds.append(kind)
    assert kinds == ["message"] * 3 + ["end"], kinds
    # Cancelled calls.
    client.cancel(client.begin("ModelInfer", message))
    # Tensors in the arena.
    values = numbers(10_000).tobytes()
    client.arena[64 : 64 + len(values)] = values
    place = nereid_ipc.place_in_arena(client, 64, len(values))
    to = nereid_ipc.place_in_arena(client, 65_536, len(values))
    outputs = client.infer("plain", {"INPUT0": ("INT32", [10_000], place)}, [("OUTPUT0", to)])
    assert len(outputs["OUTPUT0"].data) == 0
    assert client.arena[65_536 : 65_536 + len(values)] == values
    client.close()
    print("done")


main()
