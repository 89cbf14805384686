"""Programs and libraries as they are shipped: without debug information, which goes into files of its own."""

import os
import pathlib
import re
import shutil
import struct
import subprocess

# The architectures by the number in an ELF header: the names of Linux, of Debian and of OCI, Rust's target, and the
# prefix of a compiler for it.
MACHINES = {
    62: ("x86_64", "amd64", "amd64", "x86_64-unknown-linux-gnu", "x86_64-linux-gnu-"),
    183: ("aarch64", "arm64", "arm64", "aarch64-unknown-linux-gnu", "aarch64-linux-gnu-"),
}
NUMBERS = {names[0]: number for number, names in MACHINES.items()}

# The first GCC whose libstdc++ has a version of its symbols: GLIBCXX_3.4.<n>.
LIBSTDCXX = {21: "5", 22: "6", 23: "7", 24: "7", 25: "8", 26: "9", 27: "9", 28: "9.3", 29: "11", 30: "12"}
LIBSTDCXX |= {31: "13.1", 32: "13.2", 33: "14"}


class BinaryError(Exception):
    """A file that cannot be shipped, with the next step."""


class Architecture:
    def __init__(self, number):
        self.linux, self.debian, self.oci, self.triple, self.prefix = MACHINES[number]

    @staticmethod
    def named(name):
        if name not in NUMBERS:
            raise BinaryError(f"no architecture {name}: {' and '.join(NUMBERS)} are known")
        return Architecture(NUMBERS[name])

    @staticmethod
    def of(path):
        """The architecture that a program or library is for."""
        with open(path, "rb") as file:
            header = file.read(20)
        if header[:6] != b"\x7fELF\x02\x01":
            raise BinaryError(f"{path} is no 64-bit ELF file")
        number = struct.unpack_from("<H", header, 18)[0]
        if number not in MACHINES:
            raise BinaryError(f"{path} is for machine {number}; x86_64 and aarch64 are known")
        return Architecture(number)

    def tool(self, name):
        """A program of binutils that knows the architecture; None if there is none."""
        if os.uname().machine == self.linux and shutil.which(name):
            return shutil.which(name)
        return shutil.which(self.prefix + name)


def versions(name, paths):
    """The numbers behind `name` in the versions of symbols that these files need."""
    found = (re.findall(name + rb"\.(\d+)\0", pathlib.Path(path).read_bytes()) for path in paths)
    return [int(number) for numbers in found for number in numbers]


def oldest_glibc(paths):
    """The minor version of the oldest glibc 2 that has all functions of these files; 17 is the oldest that counts."""
    return max([17, *versions(rb"GLIBC_2", paths)])


def oldest_libstdcxx(paths):
    """The version of the oldest libstdc++ that has all symbols of these files, as Debian numbers it."""
    newest = max([21, *versions(rb"GLIBCXX_3\.4", paths)])
    if newest not in LIBSTDCXX:
        raise BinaryError(f"GLIBCXX_3.4.{newest} is of a newer GCC than LIBSTDCXX in {__file__} has: extend it")
    return LIBSTDCXX[newest]


def build_id(path, architecture):
    """The identifier that the linker gave the file, in hexadecimal; None if it gave none."""
    readelf = architecture.tool("readelf")
    if not readelf:
        return None
    notes = subprocess.run([readelf, "--notes", "--wide", str(path)], capture_output=True, text=True, check=True).stdout
    found = re.search(r"Build ID: ([0-9a-f]{8,})", notes)
    return found and found[1]


def split(source, folder):
    """Writes `source` without its debug information into `folder`, and the information beside it as `<name>.debug`.

    Returns both paths. Names of functions stay in the program, so that the backtrace of a panic has them; file names
    and lines are in the second file, which gdb and the backtrace of a panic find by the link in the first one.
    """
    architecture = Architecture.of(source)
    objcopy = architecture.tool("objcopy")
    if not objcopy:
        needed = f"binutils, or {architecture.prefix}objcopy of a cross compiler"
        raise BinaryError(f"no objcopy for {architecture.linux}: install {needed}")
    folder.mkdir(parents=True, exist_ok=True)
    shipped, debug = folder / source.name, folder / f"{source.name}.debug"
    run = lambda *words: subprocess.run([objcopy, *map(str, words)], check=True)
    run("--only-keep-debug", "--compress-debug-sections=zlib", source, debug)
    shipped.unlink(missing_ok=True)
    # The link holds a checksum of the file of that name.
    run("--strip-debug", f"--add-gnu-debuglink={debug}", source, shipped)
    shipped.chmod(0o755)
    debug.chmod(0o644)
    return shipped, debug
