"""The official server, and the C library that benches run in it and in ours.

It is Triton 2.51 as the wheel nvidia-pytriton 0.7.0 brings it; the tests unpack it into target/
(tests/support/original.rs)."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
WHEEL = TARGET / "original-nvidia_pytriton-0.7.0"
# The backend of models that `build_copied` is for.
COPIED = "copied"


def run(words, **more):
    """A step of the preparation, which must work."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **more)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def program(wheel):
    """The server of an unpacked wheel."""
    return pathlib.Path(wheel, "pytriton/tritonserver/bin/tritonserver")


def libraries(server):
    """The folder of the libraries that the wheel brings for its server."""
    return server.parents[3] / "nvidia_pytriton.libs"


def build_copied(backends):
    """Builds the examples' C identity as the backend `copied` of the folder `backends`."""
    library = backends / COPIED / f"libtriton_{COPIED}.so"
    library.parent.mkdir(parents=True)
    run(["cc", "-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread", "-I", ROOT / "include",
         "-o", library, ROOT / "examples/backends/identity/identity.c"])
