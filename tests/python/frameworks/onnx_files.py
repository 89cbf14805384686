"""ONNX files. Field numbers are those of onnx.proto."""

import struct

import network
from fields import each, field

# The names of the protocol, and the numbers of TensorProto.DataType.
ELEMENTS = {
    "BOOL": 9, "UINT8": 2, "UINT16": 4, "UINT32": 12, "UINT64": 13, "INT8": 3, "INT16": 5, "INT32": 6, "INT64": 7,
    "FP16": 10, "BF16": 16, "FP32": 1, "FP64": 11, "BYTES": 8,
}  # fmt: skip


def tensor_type(datatype, dims):
    shape = each(1, [field(1, dim) if isinstance(dim, int) else field(2, dim) for dim in dims])
    return field(1, field(1, ELEMENTS[datatype]) + field(2, shape))


def value(name, datatype, dims):
    return field(1, name) + field(2, tensor_type(datatype, dims))


def node(operator, inputs, outputs):
    return each(1, inputs) + each(2, outputs) + field(3, outputs[0] + "_node") + field(4, operator)


def constant(name, dims, numbers):
    data = struct.pack(f"<{len(numbers)}f", *numbers)
    return each(1, dims) + field(2, ELEMENTS["FP32"]) + field(8, name) + field(9, data)


def model(nodes, inputs, outputs, constants=()):
    """`inputs` and `outputs`: names, with datatype and dimensions."""
    graph = each(1, nodes) + field(2, "graph") + each(5, constants)
    graph += each(11, [value(*each_input) for each_input in inputs])
    graph += each(12, [value(*each_output) for each_output in outputs])
    return field(1, 8) + field(2, "nereid") + field(7, graph) + field(8, field(1, "") + field(2, 17))


def network_file():
    return model(
        [
            node("MatMul", ["INPUT__0", "first_weights"], ["first"]),
            node("Add", ["first", "biases"], ["sum"]),
            node("Relu", ["sum"], ["hidden"]),
            node("MatMul", ["hidden", "second_weights"], ["OUTPUT__0"]),
        ],
        [("INPUT__0", "FP32", ["batch", network.INPUTS])],
        [("OUTPUT__0", "FP32", ["batch", network.OUTPUTS])],
        [constant(name, dims, numbers) for name, (dims, numbers) in network.tensors().items()],
    )


def add_sub_file():
    dims = ["batch", "columns"]
    inputs = ["INPUT__0", "INPUT__1"]
    return model(
        [node("Add", inputs, ["OUTPUT__0"]), node("Sub", inputs, ["OUTPUT__1"])],
        [(name, "FP32", dims) for name in inputs],
        [(name, "FP32", dims) for name in ["OUTPUT__0", "OUTPUT__1"]],
    )


def in_place_file():
    """Zero in place of what is above it, by operators that may write to their inputs."""
    names = ["INPUT__0", "negative", "positive", "OUTPUT__0"]
    operators = ["Neg", "Relu", "Neg"]
    return model(
        [node(operator, [source], [target]) for operator, source, target in zip(operators, names, names[1:])],
        [("INPUT__0", "FP32", ["batch", "columns"])],
        [("OUTPUT__0", "FP32", ["batch", "columns"])],
    )


def types_file(datatypes):
    """An identity for each of these datatypes, in this order."""
    numbered = list(enumerate(datatypes))
    return model(
        [node("Identity", [f"INPUT__{at}"], [f"OUTPUT__{at}"]) for at, _ in numbered],
        [(f"INPUT__{at}", datatype, [f"n{at}"]) for at, datatype in numbered],
        [(f"OUTPUT__{at}", datatype, [f"n{at}"]) for at, datatype in numbered],
    )


def optional_file():
    """INPUT__1 is 10 and 20 if it is left out."""
    return model(
        [node("Add", ["INPUT__0", "INPUT__1"], ["OUTPUT__0"])],
        [(name, "FP32", [2]) for name in ["INPUT__0", "INPUT__1"]],
        [("OUTPUT__0", "FP32", [2])],
        [constant("INPUT__1", [2], [10.0, 20.0])],
    )


def ragged_file():
    """Requests of different lengths joined flat; to each element the number of all elements of the batch is added."""
    return model(
        [node("ReduceSum", ["INPUT__1"], ["total"]), node("Add", ["INPUT__0", "total"], ["OUTPUT__0"])],
        [("INPUT__0", "FP32", ["n"]), ("INPUT__1", "FP32", ["requests"])],
        [("OUTPUT__0", "FP32", ["n"])],
    )
