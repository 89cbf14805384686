"""Writes the models of the OpenVINO tests: openvino_models.py FOLDER"""

import os
import sys

import flatbuffers
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


def with_an_extension():
    """Needs the operation of tests/backends/openvino_extension.cc."""
    x = parameter("x", [-1, 2])
    save("triple", [named(op.relu(x), "y")], [x])
    path = os.path.join(FOLDER, "triple.xml")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace('type="ReLU" version="opset1"', 'type="Triple" version="nereid_test"'))


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


def paddle_model():
    """PaddlePaddle's format by its field numbers: its own library has 190 MB."""
    integer_attribute, float_type, dense, feeds, fetches = 0, 5, 7, 9, 10
    inputs, outputs = ["INPUT0", "INPUT1"], ["OUTPUT0", "OUTPUT1"]
    tensor = field(1, float_type) + field(2, -1) + field(2, 16)
    variable = lambda name, of_type: field(3, field(1, name) + field(2, of_type))
    argument = lambda tag, name, value: field(tag, field(1, name) + field(2, value))

    def operation(kind, arguments, output, attribute, number):
        given = b"".join(argument(1, name, value) for name, value in arguments) + argument(2, "Out", output)
        return field(4, given + field(3, kind) + field(4, field(1, attribute) + field(2, integer_attribute) + field(3, number)))

    block = field(1, 0) + field(2, -1) + variable("feed", field(1, feeds)) + variable("fetch", field(1, fetches))
    for name in inputs + outputs:
        block += variable(name, field(1, dense) + field(3, field(1, tensor)))
    for at, name in enumerate(inputs):
        block += operation("feed", [("X", "feed")], name, "col", at)
    for kind, name in zip(["elementwise_add", "elementwise_sub"], outputs):
        block += operation(kind, zip("XY", inputs), name, "axis", -1)
    for at, name in enumerate(outputs):
        block += operation("fetch", [("X", name)], "fetch", "col", at)
    with open(os.path.join(FOLDER, "add_sub.pdmodel"), "wb") as file:
        file.write(field(1, block) + field(4, field(1, 0)))


def tensorflow_lite_model():
    """TensorFlow Lite's format by the numbers of its fields (schema.fbs, version 3)."""
    builder = flatbuffers.Builder()
    add = {
        "offset": builder.PrependUOffsetTRelativeSlot,
        "int32": builder.PrependInt32Slot,
        "uint32": builder.PrependUint32Slot,
        "int8": builder.PrependInt8Slot,
    }

    def table(*fields):
        builder.StartObject(9)
        for number, kind, value in fields:
            add[kind](number, value, 0)
        return builder.EndObject()

    def vector(values, prepend):
        builder.StartVector(4, len(values), 4)
        for value in reversed(values):
            prepend(value)
        return builder.EndVector()

    numbers = lambda values: vector(values, builder.PrependInt32)
    tables = lambda values: vector(values, builder.PrependUOffsetTRelative)

    def tensor(name):
        # FP32; 1 row in its shape, any number in its signature.
        text, shape, signature = builder.CreateString(name), numbers([1, 16]), numbers([-1, 16])
        return table((0, "offset", shape), (3, "offset", text), (7, "offset", signature))

    def operator(at, options):
        inputs, outputs, of_kind = numbers([0, 1]), numbers([2 + at]), table()
        fields = [(0, "uint32", at), (1, "offset", inputs), (2, "offset", outputs)]
        return table(*fields, (3, "int8", options), (4, "offset", of_kind))

    add_code, sub_code, add_options, sub_options = 0, 41, 11, 28
    tensors = tables([tensor(name) for name in ["INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1"]])
    inputs, outputs = numbers([0, 1]), numbers([2, 3])
    operators = tables([operator(at, options) for at, options in enumerate([add_options, sub_options])])
    graph = table((0, "offset", tensors), (1, "offset", inputs), (2, "offset", outputs), (3, "offset", operators))
    graphs, buffers = tables([graph]), tables([table()])
    codes = tables([table((0, "int8", code), (2, "int32", 1), (3, "int32", code)) for code in [add_code, sub_code]])
    fields = [(0, "uint32", 3), (1, "offset", codes), (2, "offset", graphs), (4, "offset", buffers)]
    builder.Finish(table(*fields), file_identifier=b"TFL3")
    with open(os.path.join(FOLDER, "add_sub.tflite"), "wb") as file:
        file.write(builder.Output())


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
    for other in ["add_sub.onnx", "add_sub.pdmodel", "add_sub.tflite"]:
        whole = read(other)
        write("cut" + other[7:], whole[: len(whole) // 2])
    write("unknown_operation.xml", text.replace(b'type="MatMul"', b'type="Frobnicate"'))
    write("unknown_operation.bin", read("matmul.bin"))


intermediate_representations()
with_an_extension()
onnx_model()
saved_model()
paddle_model()
tensorflow_lite_model()
broken()
