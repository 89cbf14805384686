"""Writes the model files of the conformance suite: make.py <directory> <format>...

Each format gets a folder, in it one folder per model. `openvino` needs the package openvino, `torch_aoti` needs torch
and a C++ compiler, and must be the only format; the others need nothing but Python.
"""

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

# ruff: noqa: E402
import onnx_files
import tensorflow_files
import torchscript_files
import tree_files

INTEGERS = ["UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"]
# The datatypes of each format, in the order of the tensors of its model `types`; tests/models/frameworks/table.rs
# repeats them.
DATATYPES = {
    "onnx": ["BOOL", *INTEGERS, "FP16", "BF16", "FP32", "FP64", "BYTES"],
    "openvino": ["BOOL", *INTEGERS, "FP16", "FP32"],
    "tensorflow": ["BOOL", *INTEGERS, "FP16", "FP32", "FP64", "BYTES"],
    "torchscript": ["BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES"],
    "torch_aoti": ["BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"],
}


def put(path, contents):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(contents.encode() if isinstance(contents, str) else contents)


def onnx(directory):
    put(directory / "network/model.onnx", onnx_files.network_file())
    put(directory / "add_sub/model.onnx", onnx_files.add_sub_file())
    put(directory / "in_place/model.onnx", onnx_files.in_place_file())
    put(directory / "types/model.onnx", onnx_files.types_file(DATATYPES["onnx"]))
    put(directory / "optional/model.onnx", onnx_files.optional_file())
    put(directory / "ragged/model.onnx", onnx_files.ragged_file())


def openvino(directory):
    import openvino

    sources = {
        "network": onnx_files.network_file(),
        "add_sub": onnx_files.add_sub_file(),
        "in_place": onnx_files.in_place_file(),
        "types": onnx_files.types_file(DATATYPES["openvino"]),
    }
    for name, source in sources.items():
        put(directory / name / "source.onnx", source)
        model = openvino.Core().read_model(directory / name / "source.onnx")
        openvino.save_model(model, directory / name / "model.xml", compress_to_fp16=False)
        (directory / name / "source.onnx").unlink()


def tensorflow(directory):
    models = {
        "network": tensorflow_files.network_parts(),
        "add_sub": tensorflow_files.add_sub_parts(),
        "in_place": tensorflow_files.in_place_parts(),
        "types": tensorflow_files.types_parts(DATATYPES["tensorflow"]),
        "ragged": tensorflow_files.ragged_parts(),
    }
    for name, (nodes, inputs, outputs) in models.items():
        saved = tensorflow_files.saved_model(nodes, inputs, outputs)
        put(directory / name / "model.savedmodel/saved_model.pb", saved)
        put(directory.with_name("graphdef") / name / "model.graphdef", tensorflow_files.graph(nodes))


def torchscript(directory):
    put(directory / "network/model.pt", torchscript_files.network_file())
    put(directory / "add_sub/model.pt", torchscript_files.add_sub_file())
    put(directory / "in_place/model.pt", torchscript_files.in_place_file())
    put(directory / "types/model.pt", torchscript_files.types_file(DATATYPES["torchscript"]))
    put(directory / "ragged/model.pt", torchscript_files.ragged_file())


def torch_aoti(directory):
    sys.path.insert(0, str(HERE.parent))
    import torch_on_cpu

    torch_on_cpu.restart_with_stubs()
    import aoti_files

    aoti_files.write(directory, DATATYPES["torch_aoti"])


def fil(directory):
    put(directory / "network/xgboost.json", tree_files.xgboost("multi:softprob", tree_files.CLASSES))
    put(directory / "binary/xgboost.json", tree_files.xgboost("binary:logistic", 0))
    put(directory / "regression/xgboost.json", tree_files.xgboost("reg:squarederror", 0))
    put(directory / "lightgbm/model.txt", tree_files.lightgbm())


def python(directory):
    for source in (HERE / "models").glob("*.py"):
        (directory / source.stem).mkdir(parents=True, exist_ok=True)
        shutil.copy(source, directory / source.stem / "model.py")


if __name__ == "__main__":
    root = Path(sys.argv[1])
    for name in sys.argv[2:]:
        globals()[name](root / name)
