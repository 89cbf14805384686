"""Packages of AOTInductor, compiled by PyTorch, which needs a C++ compiler."""

import network
import torch

DATATYPES = {
    "BOOL": torch.bool, "UINT8": torch.uint8, "INT8": torch.int8, "INT16": torch.int16, "INT32": torch.int32,
    "INT64": torch.int64, "FP16": torch.float16, "FP32": torch.float32, "FP64": torch.float64,
}  # fmt: skip


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name, (dims, numbers) in network.tensors().items():
            self.register_buffer(name, torch.tensor(numbers).reshape(dims))

    def forward(self, given):
        return torch.relu(given @ self.first_weights + self.biases) @ self.second_weights


class AddSub(torch.nn.Module):
    def forward(self, first, second):
        return first + second, first - second


class InPlace(torch.nn.Module):
    """Zero in place of what is above it, written to the input."""

    def forward(self, given):
        given.clamp_(max=0)
        return given.clone()


class Types(torch.nn.Module):
    def forward(self, *tensors):
        # An output must not be the input itself.
        return tuple(tensor.clone() for tensor in tensors)


def compiled(path, module, example, dynamic_shapes):
    path.parent.mkdir(parents=True, exist_ok=True)
    exported = torch.export.export(module, example, dynamic_shapes=dynamic_shapes)
    torch._inductor.aoti_compile_and_package(exported, package_path=str(path.resolve()))


def write(directory, datatypes):
    rows, columns = torch.export.Dim("rows", max=64), torch.export.Dim("columns", max=64)
    compiled(directory / "network/model.pt2", Network(), (torch.ones(2, network.INPUTS),), ({0: rows},))
    both = {0: rows, 1: columns}
    compiled(directory / "add_sub/model.pt2", AddSub(), (torch.ones(2, 3), torch.ones(2, 3)), (both, both))
    compiled(directory / "in_place/model.pt2", InPlace(), (torch.ones(2, 3),), (both,))
    tensors = tuple(torch.ones(3).to(DATATYPES[datatype]) for datatype in datatypes)
    compiled(directory / "types/model.pt2", Types(), tensors, None)
