"""Graphs and saved models of TensorFlow. Field numbers are those of graph.proto, node_def.proto, attr_value.proto,
tensor.proto, meta_graph.proto and saved_model.proto."""

import struct

import network
from fields import each, entry, field

# The names of the protocol, and the numbers of DataType.
ELEMENTS = {
    "BOOL": 10, "UINT8": 4, "UINT16": 17, "UINT32": 22, "UINT64": 23, "INT8": 6, "INT16": 5, "INT32": 3, "INT64": 9,
    "FP16": 19, "FP32": 1, "FP64": 2, "BYTES": 7,
}  # fmt: skip


def shape(dims):
    return each(2, [field(1, dim) for dim in dims])


def node(name, operator, inputs, **attributes):
    body = field(1, name) + field(2, operator) + each(3, inputs)
    return body + b"".join(entry(5, key, value) for key, value in attributes.items())


def of_type(datatype):
    return field(6, ELEMENTS[datatype])


def placeholder(name, datatype, dims):
    return node(name, "Placeholder", [], dtype=of_type(datatype), shape=field(7, shape(dims)))


def constant(name, dims, numbers):
    data = struct.pack(f"<{len(numbers)}f", *numbers)
    tensor = field(1, ELEMENTS["FP32"]) + field(2, shape(dims)) + field(4, data)
    return node(name, "Const", [], dtype=of_type("FP32"), value=field(8, tensor))


def on_floats(name, operator, inputs):
    return node(name, operator, inputs, T=of_type("FP32"))


def graph(nodes):
    # The producer is any version whose graphs need no conversion.
    return each(1, nodes) + field(4, field(1, 1000))


def saved_model(nodes, inputs, outputs):
    """`inputs` and `outputs`: names of nodes, with datatype and dimensions; the signature uses the same names."""

    def information(name, datatype, dims):
        return field(1, f"{name}:0") + field(2, ELEMENTS[datatype]) + field(3, shape(dims))

    signature = b"".join(entry(1, each_input[0], information(*each_input)) for each_input in inputs)
    signature += b"".join(entry(2, each_output[0], information(*each_output)) for each_output in outputs)
    signature += field(3, "tensorflow/serving/predict")
    meta_graph = field(1, field(4, "serve")) + field(2, graph(nodes)) + entry(5, "serving_default", signature)
    return field(1, 1) + field(2, meta_graph)


def network_parts():
    nodes = [
        placeholder("INPUT__0", "FP32", [-1, network.INPUTS]),
        *(constant(name, dims, numbers) for name, (dims, numbers) in network.tensors().items()),
        on_floats("first", "MatMul", ["INPUT__0", "first_weights"]),
        on_floats("sum", "AddV2", ["first", "biases"]),
        on_floats("hidden", "Relu", ["sum"]),
        on_floats("OUTPUT__0", "MatMul", ["hidden", "second_weights"]),
    ]
    return nodes, [("INPUT__0", "FP32", [-1, network.INPUTS])], [("OUTPUT__0", "FP32", [-1, network.OUTPUTS])]


def add_sub_parts():
    inputs = ["INPUT__0", "INPUT__1"]
    nodes = [
        *(placeholder(name, "FP32", [-1, -1]) for name in inputs),
        on_floats("OUTPUT__0", "AddV2", inputs),
        on_floats("OUTPUT__1", "Sub", inputs),
    ]
    outputs = ["OUTPUT__0", "OUTPUT__1"]
    return nodes, [(name, "FP32", [-1, -1]) for name in inputs], [(name, "FP32", [-1, -1]) for name in outputs]


def in_place_parts():
    """Zero in place of what is above it, by operations that may write to their inputs."""
    nodes = [
        placeholder("INPUT__0", "FP32", [-1, -1]),
        on_floats("negative", "Neg", ["INPUT__0"]),
        on_floats("positive", "Relu", ["negative"]),
        on_floats("OUTPUT__0", "Neg", ["positive"]),
    ]
    return nodes, [("INPUT__0", "FP32", [-1, -1])], [("OUTPUT__0", "FP32", [-1, -1])]


def types_parts(datatypes):
    """An identity for each of these datatypes, in this order."""
    nodes, inputs, outputs = [], [], []
    for at, datatype in enumerate(datatypes):
        nodes.append(placeholder(f"INPUT__{at}", datatype, [-1]))
        nodes.append(node(f"OUTPUT__{at}", "Identity", [f"INPUT__{at}"], T=of_type(datatype)))
        inputs.append((f"INPUT__{at}", datatype, [-1]))
        outputs.append((f"OUTPUT__{at}", datatype, [-1]))
    return nodes, inputs, outputs


def ragged_parts():
    """Requests of different lengths joined flat; to each element the number of all elements of the batch is added."""
    axis = field(1, ELEMENTS["INT32"]) + field(2, shape([1])) + field(4, struct.pack("<i", 0))
    nodes = [
        *(placeholder(name, "FP32", [-1]) for name in ["INPUT__0", "INPUT__1"]),
        node("axis", "Const", [], dtype=of_type("INT32"), value=field(8, axis)),
        node("total", "Sum", ["INPUT__1", "axis"], T=of_type("FP32"), Tidx=of_type("INT32"), keep_dims=field(5, 0)),
        on_floats("OUTPUT__0", "AddV2", ["INPUT__0", "total"]),
    ]
    return nodes, [(name, "FP32", [-1]) for name in ["INPUT__0", "INPUT__1"]], [("OUTPUT__0", "FP32", [-1])]
