"""Lets libraries that were built for a newer Linux load on this host, whose libc or libstdc++ is older.

Arguments: where a library may be written, then the libraries. Versions of the two that the host does not have are
marked, in the libraries, as ones that may be missing; the few functions that they stand for are compiled into a library
of their own, which has to be preloaded. Prints that library's path, or nothing where the host has all versions.
"""

import ctypes
import os
import struct
import subprocess
import sys

# Of GCC 12.3 and 13: the initialisation of the streams, which older ones have in each object, and the part of
# std::string::replace that is seldom taken. Of glibc 2.38: names of C23's reading of numbers, and strlcpy.
SHIM = """
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>

// Makes the streams before anything of the preloaded library's users runs.
static std::ios_base::Init streams;

extern "C" {

void _ZSt21ios_base_library_initv(void) {}

void _ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE15_M_replace_coldEPcmPKcmm(
    void* self, char* at, size_t old_len, const char* text, size_t new_len, size_t behind) {
  (void)self;
  char* copy = static_cast<char*>(malloc(new_len + 1));
  if (copy == nullptr) abort();
  memcpy(copy, text, new_len);
  memmove(at + new_len, at + old_len, behind);
  memcpy(at, copy, new_len);
  free(copy);
}

long __isoc23_strtol(const char* text, char** end, int base) { return strtol(text, end, base); }
long long __isoc23_strtoll(const char* text, char** end, int base) { return strtoll(text, end, base); }
unsigned long __isoc23_strtoul(const char* text, char** end, int base) { return strtoul(text, end, base); }
unsigned long long __isoc23_strtoull(const char* text, char** end, int base) { return strtoull(text, end, base); }

int __isoc23_sscanf(const char* text, const char* format, ...) {
  va_list values;
  va_start(values, format);
  int count = vsscanf(text, format, values);
  va_end(values);
  return count;
}

size_t strlcpy(char* to, const char* from, size_t size) noexcept {
  size_t length = strlen(from), fits = length < size ? length : size - (size > 0);
  if (size > 0) {
    memcpy(to, from, fits);
    to[fits] = 0;
  }
  return length;
}

}
"""
OLDER = ["libc.so.6", "libstdc++.so.6"]
PT_LOAD, PT_DYNAMIC = 1, 2
DT_STRTAB, DT_VERNEED, DT_VERNEEDNUM = 5, 0x6FFFFFFE, 0x6FFFFFFF
MAY_BE_MISSING = 2


class Elf:
    def __init__(self, path):
        with open(path, "rb") as file:
            self.bytes = bytearray(file.read())
        header = struct.unpack_from("<16sHHIQQQIHHHHHH", self.bytes)
        at, size, count = header[5], header[9], header[10]
        self.segments = [struct.unpack_from("<IIQQQQQQ", self.bytes, at + size * i) for i in range(count)]
        dynamic = next(segment for segment in self.segments if segment[0] == PT_DYNAMIC)
        self.tags = dict(struct.iter_unpack("<QQ", bytes(self.bytes[dynamic[2] : dynamic[2] + dynamic[5]])))

    def offset(self, address):
        for kind, _, offset, start, _, length, _, _ in self.segments:
            if kind == PT_LOAD and start <= address < start + length:
                return address - start + offset
        raise ValueError(f"no segment has the address {address:#x}")

    def text(self, at):
        start = self.offset(self.tags[DT_STRTAB]) + at
        return self.bytes[start : self.bytes.index(0, start)].decode()

    def versions(self):
        """File, version, and where its flags are, of each version that the library needs."""
        if DT_VERNEED not in self.tags:
            return
        entry = self.offset(self.tags[DT_VERNEED])
        for _ in range(self.tags[DT_VERNEEDNUM]):
            _, count, file, auxiliary, following = struct.unpack_from("<HHIII", self.bytes, entry)
            one = entry + auxiliary
            for _ in range(count):
                _, _, _, name, further = struct.unpack_from("<IHHII", self.bytes, one)
                yield self.text(file), self.text(name), one + 4
                one += further
            entry += following


def host_versions():
    """What the host's own files say."""
    for name in OLDER:
        ctypes.CDLL(name)
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "/" in line}
    found = {}
    for path in paths:
        name = os.path.basename(path)
        for wanted in OLDER:
            if name.startswith(wanted):
                with open(path, "rb") as file:
                    found[wanted] = file.read()
    return found


def fit(library, host):
    """Whether the library needs what the host does not have."""
    elf = Elf(library)
    needed = [(file, version.encode(), at) for file, version, at in elf.versions() if file in host]
    missing = [at for file, version, at in needed if b"\0" + version + b"\0" not in host[file]]
    for at in missing:
        (flags,) = struct.unpack_from("<H", elf.bytes, at)
        struct.pack_into("<H", elf.bytes, at, flags | MAY_BE_MISSING)
    if missing:
        with open(library + ".new", "wb") as file:
            file.write(elf.bytes)
        os.replace(library + ".new", library)
    return bool(missing)


def main(shim, *libraries):
    host = host_versions()
    assert len(host) == len(OLDER), sorted(host)
    # All of them, whatever the first one says.
    if any([fit(library, host) for library in libraries]):
        subprocess.run(["c++", "-O1", "-shared", "-fPIC", "-o", shim, "-x", "c++", "-"], input=SHIM.encode(), check=True)
        print(shim)


main(*sys.argv[1:])
