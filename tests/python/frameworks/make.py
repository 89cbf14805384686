"""Writes the model files of the conformance suite: make.py <directory> <format>...

Each format gets a folder, in it one folder per model. Nothing but Python is needed.
"""

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

# ruff: noqa: E402
import onnx_files

INTEGERS = ["UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"]
# The datatypes of each format, in the order of the tensors of its model `types`; tests/models/frameworks/table.rs
# repeats them.
DATATYPES = {
    "onnx": ["BOOL", *INTEGERS, "FP16", "BF16", "FP32", "FP64", "BYTES"],
}


def put(path, contents):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(contents.encode() if isinstance(contents, str) else contents)


def onnx(directory):
    put(directory / "network/model.onnx", onnx_files.network_file())
    put(directory / "add_sub/model.onnx", onnx_files.add_sub_file())
    put(directory / "types/model.onnx", onnx_files.types_file(DATATYPES["onnx"]))
    put(directory / "optional/model.onnx", onnx_files.optional_file())
    put(directory / "ragged/model.onnx", onnx_files.ragged_file())


def python(directory):
    for source in (HERE / "models").glob("*.py"):
        (directory / source.stem).mkdir(parents=True, exist_ok=True)
        shutil.copy(source, directory / source.stem / "model.py")


if __name__ == "__main__":
    root = Path(sys.argv[1])
    for name in sys.argv[2:]:
        globals()[name](root / name)
