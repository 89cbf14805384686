"""Writes the models of the OpenVINO tests: openvino_models.py FOLDER"""

import os
import sys

import numpy as np
import onnx
import openvino as ov
import openvino.opset13 as op
from onnx import TensorProto, helper

FOLDER = sys.argv[1]


def parameter(name, shape, dtype=np.float32):
    made = op.parameter(ov.PartialShape(shape), dtype, name)
    made.output(0).set_names({name})
    return made


def named(node, name):
    node.output(0).set_names({name})
    return op.result(node)


def save(file, results, parameters, layout=None):
    model = ov.Model(results, parameters, file)
    if layout:
        for tensor in model.get_parameters() + model.get_results():
            tensor.set_layout(ov.Layout(layout))
    ov.save_model(model, os.path.join(FOLDER, file + ".xml"), compress_to_fp16=False)


def add_sub(file, shape, dtype=np.float32, layout=None):
    a, b = parameter("INPUT0", shape, dtype), parameter("INPUT1", shape, dtype)
    if dtype == ov.Type.boolean:
        outputs = [op.logical_and(a, b), op.logical_xor(a, b)]
    else:
        outputs = [op.add(a, b), op.subtract(a, b)]
    results = [named(node, f"OUTPUT{at}") for at, node in enumerate(outputs)]
    save(file, results, [a, b], layout)


def intermediate_representations():
    add_sub("add_sub", [-1, 16])
    add_sub("layout", [-1, 16], layout="N...")
    add_sub("fixed", [1, 4], np.int32)
    add_sub("fixed_layout", [1, 4], np.int32, layout="NH")
    add_sub("open", [-1, -1])
    add_sub("any_rank", "...")
    for dtype in ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "f64", "boolean"]:
        add_sub(dtype, [-1, 16], getattr(ov.Type, dtype))

    # Weights are in model.bin.
    x = parameter("x", [-1, 8])
    weights = np.arange(32, dtype=np.float32).reshape(8, 4)
    save("matmul", [named(op.add(op.matmul(x, op.constant(weights), False, False), np.float32(1)), "y")], [x])

    image = parameter("image", [-1, 1, -1, -1])
    ones = op.constant(np.ones((1, 1, 3, 3), dtype=np.float32))
    save("convolution", [named(op.convolution(image, ones, [1, 1], [1, 1], [1, 1], [1, 1]), "sums")], [image])

    # Adds a different number to each of four rows: only a batch of four fits.
    x = parameter("x", [4, 2])
    offsets = np.array([[100], [200], [300], [400]], dtype=np.float32)
    save("four_rows", [named(op.add(x, op.constant(offsets)), "y")], [x])
    # One row, however many there are.
    x = parameter("x", [-1, 2])
    save("one_row", [named(op.reduce_sum(x, np.int64(0), True), "y")], [x])
    # Other numbers of rows than the input has.
    x = parameter("x", [-1, 2])
    save("twice", [named(op.concat([x, x], 0), "y")], [x])
    x = parameter("x", [-1, 2])
    nonzero = op.squeeze(op.convert(op.non_zero(op.reduce_sum(x, np.int64(1), False)), "i64"), np.int64(0))
    save("nonzero_rows", [named(op.gather(x, nonzero, np.int64(0)), "y")], [x])

    x, shape = parameter("x", [-1]), parameter("shape", [2], np.int64)
    save("reshaping", [named(op.relu(op.reshape(x, shape, False)), "y")], [x, shape])

    x = parameter("x", [])
    save("scalar", [named(op.relu(x), "y")], [x])

    x, start, state = parameter("x", [-1, 1]), parameter("START", [-1, 1]), parameter("state", [-1, 1])
    total = op.add(op.multiply(state, op.subtract(np.float32(1), start)), x)
    total = named(total, "total")
    save("accumulator", [total], [x, start, state])

    # Takes long enough for two instances to overlap.
    x = parameter("x", [-1, 64])
    node = x
    random = np.random.default_rng(0)
    for _ in range(24):
        node = op.relu(op.matmul(node, op.constant(random.normal(0, 0.17, (64, 64)).astype(np.float32)), False, False))
    save("deep", [named(node, "y")], [x])


def onnx_model():
    tensors = lambda names: [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 16]) for name in names]
    nodes = [helper.make_node(kind, ["INPUT0", "INPUT1"], [name]) for kind, name in [("Add", "OUTPUT0"), ("Sub", "OUTPUT1")]]
    graph = helper.make_graph(nodes, "add_sub", tensors(["INPUT0", "INPUT1"]), tensors(["OUTPUT0", "OUTPUT1"]))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.save(model, os.path.join(FOLDER, "add_sub.onnx"))


def varint(number):
    number &= (1 << 64) - 1
    out = b""
    while True:
        out += bytes([number & 127 | (128 if number > 127 else 0)])
        number >>= 7
        if not number:
            return out


def field(tag, value):
    """A field of a protobuf message: a number, or a text or message of known length."""
    if isinstance(value, int):
        return varint(tag << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(tag << 3 | 2) + varint(len(value)) + value


def saved_model():
    """TensorFlow's format by its field numbers: its own library has 300 MB."""
    float_type = 1
    shape = field(2, field(1, -1)) + field(2, field(1, 16))
    entry = lambda key, value: field(1, key) + field(2, value)
    of_type = field(5, entry("dtype", field(6, float_type))) + field(5, entry("shape", field(7, shape)))
    node = lambda name, kind, inputs, attributes: field(
        1, field(1, name) + field(2, kind) + b"".join(field(3, one) for one in inputs) + attributes
    )
    operands, of_operands = ["INPUT0", "INPUT1"], field(5, entry("T", field(6, float_type)))
    graph = node("INPUT0", "Placeholder", [], of_type) + node("INPUT1", "Placeholder", [], of_type)
    graph += node("sum", "AddV2", operands, of_operands) + node("difference", "Sub", operands, of_operands)
    tensor = lambda name: field(1, name) + field(2, float_type) + field(3, shape)
    signature = b"".join(field(1, entry(name, tensor(name + ":0"))) for name in operands)
    for name, made in [("OUTPUT0", "sum:0"), ("OUTPUT1", "difference:0")]:
        signature += field(2, entry(name, tensor(made)))
    signature += field(3, "tensorflow/serving/predict")
    meta = field(1, field(4, "serve")) + field(2, graph + field(4, field(1, 1087))) + field(5, entry("serving_default", signature))
    folder = os.path.join(FOLDER, "add_sub.saved_model")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "saved_model.pb"), "wb") as file:
        file.write(field(1, 1) + field(2, meta))


def broken():
    """Files that cannot be loaded."""
    read = lambda name: open(os.path.join(FOLDER, name), "rb").read()

    def write(name, content):
        with open(os.path.join(FOLDER, name), "wb") as file:
            file.write(content)

    text = read("matmul.xml")
    write("no_weights.xml", text)
    write("short_weights.xml", text)
    write("short_weights.bin", read("matmul.bin")[:20])
    write("cut.xml", text[: len(text) // 2])
    write("garbage.xml", bytes(range(256)) * 8)
    write("empty.xml", b"")
    write("onnx_inside.xml", read("add_sub.onnx"))
    write("unknown_operation.xml", text.replace(b'type="MatMul"', b'type="Frobnicate"'))
    write("unknown_operation.bin", read("matmul.bin"))


intermediate_representations()
onnx_model()
saved_model()
broken()
