"""Lets the torch of the index run on hosts without CUDA.

Its Python module needs cuDNN, cuBLAS and ten other libraries: gigabytes of code that is never called on a CPU. This
module links an empty library for each of these names, and one library, loaded before all others, that defines the
functions that torch refers to. It needs gcc, nm and readelf.
"""

import glob
import os
import subprocess
import sys
import sysconfig

PREFIXES = ("cu", "Cu", "nccl", "nvshmem", "nvrtc")
FOLDER = os.path.join(sys.prefix, "cuda-stubs")
FUNCTIONS = os.path.join(FOLDER, "libcuda_functions.so")


def restart_with_stubs():
    """Makes the stubs, unless they exist, and starts this program again with them, unless it has them."""
    if os.environ.get("LD_PRELOAD") == FUNCTIONS:
        return
    if not os.path.exists(FUNCTIONS):
        make_stubs()
    environment = dict(os.environ, LD_PRELOAD=FUNCTIONS, LD_LIBRARY_PATH=FOLDER)
    # Processes that import torch for the compiler inherit it.
    os.execve(sys.executable, [sys.executable, "-B", *sys.argv], environment)


def make_stubs():
    packages = sysconfig.get_paths()["purelib"]
    libraries = [path for path in glob.glob(f"{packages}/torch/lib/*.so*") if os.path.isfile(path)]
    real = glob.glob(f"{packages}/nvidia/**/*.so*", recursive=True)
    known = {os.path.basename(path) for path in libraries + real}
    needed = {name for path in libraries for name in needed_by(path)}
    defined = {name for path in libraries + real for name in symbols("--defined-only", path)}
    wanted = {name for path in libraries for name in symbols("--undefined-only", path)} - defined
    os.makedirs(FOLDER, exist_ok=True)
    for name in needed - known:
        if name.startswith(("libcu", "libnccl", "libnv")):
            link(os.path.join(FOLDER, name), name, "")
    labels = "".join(f".globl {name}\n.type {name},@function\n{name}:\n" for name in sorted(wanted) if is_cuda(name))
    link(FUNCTIONS, "libcuda_functions.so", f".text\n{labels}xorl %eax,%eax\nret\n")


def is_cuda(name):
    return name.startswith(PREFIXES)


def needed_by(path):
    lines = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split("[")[1].rstrip("]") for line in lines if "(NEEDED)" in line]


def symbols(which, path):
    lines = subprocess.run(["nm", "-D", which, path], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split()[-1].split("@")[0] for line in lines]


def link(path, name, source):
    part = f"{path}.{os.getpid()}"
    command = ["gcc", "-shared", "-nostdlib", f"-Wl,-soname,{name}", "-x", "assembler", "-", "-o", part]
    subprocess.run(command, input=source, text=True, check=True)
    os.replace(part, path)
