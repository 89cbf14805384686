"""Writes the models of benches/frameworks: make.py <directory> <format>...

The network of the conformance suite (tests/python/frameworks) in two sizes, small and wide, and a forest that LightGBM
trains on numbers of its own. `torch_aoti` must be the only format.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SUITE = HERE.parents[1] / "tests/python/frameworks"
sys.path[:0] = [str(SUITE), str(SUITE.parent)]

# ruff: noqa: E402
import make
import network

# Inputs, hidden numbers and outputs. As many outputs as inputs, like the model `identity` that stands beside them.
SIZES = {"small": (16, 8, 16), "wide": (256, 1024, 256)}
FEATURES, TREES, LEAVES = 32, 100, 64


def torch_aoti(directory):
    import torch_on_cpu

    torch_on_cpu.restart_with_stubs()
    import aoti_files
    import torch

    # Loops keep the number of threads that they were compiled with.
    torch.set_num_threads(1)
    rows = torch.export.Dim("rows", max=64)
    example = (torch.ones(2, network.INPUTS),)
    exported = torch.export.export(aoti_files.Network(), example, dynamic_shapes=({0: rows},))
    # Without the check a package computes a single row once.
    path = directory / "network/model.pt2"
    path.parent.mkdir(parents=True, exist_ok=True)
    configs = {"aot_inductor.check_lowerbound": False}
    torch._inductor.aoti_compile_and_package(exported, package_path=str(path), inductor_configs=configs)


def forest(directory):
    import lightgbm
    import numpy

    random = numpy.random.default_rng(1)
    rows = random.normal(size=(20000, FEATURES)).astype("float32")
    wanted = numpy.sin(rows[:, 0]) + rows[:, 1] * rows[:, 2] + random.normal(size=len(rows)) / 10
    parameters = {"objective": "regression", "num_leaves": LEAVES, "verbose": -1, "seed": 1, "num_threads": 1}
    model = lightgbm.train(parameters, lightgbm.Dataset(rows, wanted), TREES)
    directory.mkdir(parents=True, exist_ok=True)
    model.save_model(str(directory / "model.txt"))


if __name__ == "__main__":
    root = Path(sys.argv[1]).resolve()
    for name in sys.argv[2:]:
        if name == "forest":
            forest(root / "forest")
            continue
        for size, (network.INPUTS, network.HIDDEN, network.OUTPUTS) in SIZES.items():
            {"torch_aoti": torch_aoti}.get(name, getattr(make, name))(root / size / name)
