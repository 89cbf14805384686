"""Compiles the AOTInductor packages that tests of the server load, with the torch of this environment.

usage: aoti_packages.py DIRECTORY [NAME ...]

Each package is DIRECTORY/<name>.pt2; one that exists is kept. Packages are native code for the CPU of this host, so they
are compiled where they are used. This needs g++.
"""

import os
import sys

import torch_on_cpu

torch_on_cpu.restart_with_stubs()

import torch

BATCH = torch.export.Dim("batch", min=1, max=8)


class Add(torch.nn.Module):
    """Sum and difference of two rows of 16, or a row of any length."""

    def forward(self, a, b):
        return a + b, a - b


class Single(torch.nn.Module):
    def forward(self, a):
        return a * 2


class Names(torch.nn.Module):
    """Every kind of argument and result that has a name."""

    def forward(self, a, b, o, *, kw1):
        return {"AAA": a + b, "ZZZ": a - b, "BBB": (a * 2, b * 3), "CCC": [o["o2"], o["o1"] * 5], "DDD": kw1 * 7}


class Types(torch.nn.Module):
    """Each type of element: twice the value, or its negation."""

    def forward(self, flag, u8, i8, i16, i32, i64, f16, bf16, f32, f64):
        return (~flag, u8 + u8, i8 + i8, i16 + i16, i32 + i32, i64 + i64, f16 + f16, bf16 + bf16, f32 + f32, f64 + f64)


class Sequence(torch.nn.Module):
    """The sum of a sequence's values: the state counts unless START is 1, and nothing counts unless READY is 1."""

    def forward(self, value, start, ready, corrid, state):
        total = (value + state * (1 - start)) * ready
        return total, total + corrid.to(torch.int32), total.clone()


class Views(torch.nn.Module):
    """Results that are not contiguous, that are an input, and that have no dimensions."""

    def forward(self, a):
        return a.t(), a, a.sum()


class Increment(torch.nn.Module):
    """It adds the second input to the first one in place, and doubles the second one in place."""

    def forward(self, a, b):
        a.add_(b)
        b.mul_(2)
        return a + 0, b + 0


class Ragged(torch.nn.Module):
    """The sum of each request's `counts` values, which end before the positions `ends`."""

    def forward(self, values, ends, counts):
        places = torch.arange(values.shape[0]).unsqueeze(0)
        is_own = (places < ends.unsqueeze(1)) & (places >= (ends - counts.to(torch.int32)).unsqueeze(1))
        return torch.where(is_own, values.unsqueeze(0), 0.0).sum(1, keepdim=True), counts.unsqueeze(1) * 10


class Linear(torch.nn.Module):
    """It has weights: 16 inputs, 4 outputs."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 4)
        with torch.no_grad():
            self.layer.weight.copy_(torch.arange(64, dtype=torch.float32).reshape(4, 16) / 64)
            self.layer.bias.copy_(torch.arange(4, dtype=torch.float32))

    def forward(self, x):
        return self.layer(x)


def rows(count=2, width=16, dtype=torch.float32):
    return torch.ones(count, width, dtype=dtype)


def exported_add():
    return torch.export.export(Add(), (rows(), rows()), dynamic_shapes=({0: BATCH}, {0: BATCH}))


def exported_single():
    return torch.export.export(Single(), (rows(),), dynamic_shapes=({0: BATCH},))


def exported_variable():
    length = torch.export.Dim("length", min=1, max=1024)
    shapes = ({0: BATCH, 1: length}, {0: BATCH, 1: length})
    return torch.export.export(Add(), (rows(), rows()), dynamic_shapes=shapes)


def exported_names():
    shapes = {"a": {0: BATCH}, "b": {0: BATCH}, "o": {"o1": {0: BATCH}, "o2": {0: BATCH}}, "kw1": {0: BATCH}}
    arguments = (rows(), rows(), {"o1": rows(), "o2": rows()})
    return torch.export.export(Names(), arguments, {"kw1": rows()}, dynamic_shapes=shapes)


def exported_types():
    types = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
    types += [torch.float16, torch.bfloat16, torch.float32, torch.float64]
    arguments = (rows(width=4) > 0, *(rows(width=4, dtype=dtype) for dtype in types))
    return torch.export.export(Types(), arguments, dynamic_shapes=tuple({0: BATCH} for _ in arguments))


def exported_sequence():
    integers = lambda dtype=torch.int32: rows(width=1, dtype=dtype)
    arguments = (integers(), integers(), integers(), integers(torch.int64), integers())
    return torch.export.export(Sequence(), arguments, dynamic_shapes=tuple({0: BATCH} for _ in arguments))


def exported_views():
    return torch.export.export(Views(), (rows(3, 5),))


def exported_increment():
    return torch.export.export(Increment(), (rows(), rows()), dynamic_shapes=({0: BATCH}, {0: BATCH}))


def exported_ragged():
    elements = torch.export.Dim("elements", min=1, max=1024)
    arguments = (torch.ones(6), torch.tensor([2, 6], dtype=torch.int32), torch.tensor([2.0, 4.0]))
    return torch.export.export(Ragged(), arguments, dynamic_shapes=({0: elements}, {0: BATCH}, {0: BATCH}))


def exported_linear():
    return torch.export.export(Linear(), (rows(),), dynamic_shapes=({0: BATCH},))


OUTSIDE = {"aot_inductor.package_constants_in_so": False}
# Name: the exported program, and how it is compiled. `None`: it is saved without being compiled.
PACKAGES = {
    "add": (exported_add, {}),
    # The same for a batch of one, which torch otherwise leaves out.
    "lowest": (exported_add, {"aot_inductor.check_lowerbound": False}),
    "single": (exported_single, {}),
    "variable": (exported_variable, {}),
    "names": (exported_names, {}),
    "types": (exported_types, {}),
    "sequence": (exported_sequence, {}),
    "views": (exported_views, {}),
    "increment": (exported_increment, {"aot_inductor.check_lowerbound": False}),
    "ragged": (exported_ragged, {"aot_inductor.check_lowerbound": False}),
    "weights": (exported_linear, {}),
    "weights_mapped": (exported_linear, {"aot_inductor.force_mmap_weights": True}),
    "weights_blob": (exported_linear, OUTSIDE | {"aot_inductor.package_constants_on_disk_format": "binary_blob"}),
    "weights_pickled": (exported_linear, OUTSIDE | {"aot_inductor.package_constants_on_disk_format": "pickle_weights"}),
    "weights_absent": (exported_linear, OUTSIDE),
    "exported": (exported_add, None),
}


def make(directory, name):
    program, options = PACKAGES[name]
    path = os.path.join(os.path.abspath(directory), f"{name}.pt2")
    if os.path.exists(path):
        return
    # The writer names the folder in the archive after the file, so the temporary name is that of a folder.
    folder = os.path.join(os.path.abspath(directory), f"{name}.part")
    os.makedirs(folder, exist_ok=True)
    part = os.path.join(folder, "model.pt2")
    if options is None:
        torch.export.save(program(), part)
    else:
        torch._inductor.aoti_compile_and_package(program(), package_path=part, inductor_configs=options)
    os.replace(part, path)
    os.rmdir(folder)


if __name__ == "__main__":
    for wanted in sys.argv[2:] or PACKAGES:
        make(sys.argv[1], wanted)
        print(wanted, flush=True)
