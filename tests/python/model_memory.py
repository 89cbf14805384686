#!/usr/bin/env python3
"""What happens where a model of 16 MiB holds more, and that nothing is left of what it gave back."""

import argparse
import subprocess

import numpy as np

from connect import expect
from model_calls import both, run, Stream, texts

MIB = 1 << 20


def ask(client, how, data=None, outputs=("OUT",)):
    arrays = {"HOW": texts(how)}
    if data is not None:
        arrays["DATA"] = data
    return client.infer("holder", arrays, outputs=list(outputs))


def sizes(client):
    """One size after the other, each for itself within the bound."""
    for _ in range(2):
        for size in (1, 2, 3, 5, 7, 4, 9, 12, 15, 1, 14, 6):
            array = np.full(size * MIB, size, dtype=np.uint8)
            got = ask(client, "twice", array)["OUT"]
            expect(f"{size} MiB", (len(got), int(got[0]), int(got[-1])), (size * MIB, size + 1, size + 1))
            got = ask(client, "same", array)["OUT"]
            expect(f"{size} MiB", (len(got), int(got[0]), int(got[-1])), (size * MIB, size, size))


def too_much(client):
    kept = 0
    while True:
        answer = ask(client, "keep", np.full(3 * MIB, 1, dtype=np.uint8), outputs=["SUMS"])
        if answer.error is not None:
            break
        kept += 1
        if kept > 5:
            raise SystemExit("nothing bounds what a model keeps")
    if "has no memory for" not in answer.text or "'shm-max-byte-size'" not in answer.text:
        raise SystemExit(f"inputs: {answer}")
    if kept < 3:
        raise SystemExit(f"it could keep {kept} only")
    # What is small needs none of it, and what was kept is whole.
    expect("kept", ask(client, "sums", outputs=["SUMS"])["SUMS"].tolist(), [3 * MIB] * kept)
    expect("forgotten", ask(client, "forget", outputs=["SUMS"])["SUMS"].tolist(), [])
    expect("again", ask(client, "keep", np.full(12 * MIB, 1, np.uint8), outputs=["SUMS"])["SUMS"].tolist(), [12 * MIB])
    ask(client, "forget", outputs=["SUMS"])
    answer = ask(client, "large", np.full(20, 7, dtype=np.uint8))
    text = "Failed to process the request(s) for model instance 'holder_0_0', message: Failed to increase the shared "
    if not (answer.text or "").startswith(text + "memory pool size to "):
        raise SystemExit(f"outputs: {answer}")
    for size in (5, 11, 15, 2):
        got = ask(client, "large", np.full(size, 7, dtype=np.uint8))["OUT"]
        expect("after it", (len(got), int(got.min()), int(got.max())), (size * MIB, 7, 7))


def resident_kib(pid):
    with open(f"/proc/{pid}/status") as status:
        return sum(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def flat(client, processes):
    """Many large requests leave no more than a few."""
    array = np.arange(300_000, dtype=np.uint32).view(np.uint8)

    def run(count):
        for number in range(count):
            how = ("same", "twice", "views", "written")[number % 4]
            ask(client, how, array[: len(array) - number % 7 * 50_000])

    run(100)
    before = [resident_kib(pid) for pid in processes]
    run(1000)
    after = [resident_kib(pid) for pid in processes]
    for pid, first, then in zip(processes, before, after):
        if then > first + 24 * 1024:
            raise SystemExit(f"process {pid} grew from {first} to {then} KiB")


def shared_files(processes):
    """What they have of /dev/shm, which may be as small as it likes."""
    found = []
    for pid in processes:
        with open(f"/proc/{pid}/maps") as maps:
            found += [line for line in maps if "/dev/shm" in line]
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("http")
    parser.add_argument("grpc")
    parser.add_argument("pid", type=int)
    arguments = parser.parse_args()
    children = subprocess.run(["pgrep", "-P", str(arguments.pid)], stdout=subprocess.PIPE).stdout.split()
    processes = [arguments.pid] + [int(child) for child in children]
    expect("workers", len(children), 2)
    for client in both(arguments.http, arguments.grpc):
        sizes(client)
        too_much(client)
        flat(client, processes)
    # Responses that nobody reads are bounded, too: the model waits, or is told.
    stream = Stream(arguments.grpc)
    arrays = {"HOW": texts("flood"), "COUNT": np.array([200], dtype=np.int32)}
    expect("flood", len(stream.all("stream", arrays)), 200)
    stream.stop()
    expect("/dev/shm", shared_files(processes), [])


if __name__ == "__main__":
    run(main)
