"""A host as its /proc and /sys show it, under any root, so that tests can make one up.

Nothing here raises: what cannot be read is None, and `why` says what stood in the way.
"""

import os
import re

from .finding import Finding

# The server's own rule for its cores: src/shard/placement.rs.
PIN_FROM = 4
CORES_PER_SHARD = 4


class Host:
    def __init__(self, root="/", cores=None, pid=None):
        self.root, self.pid = root, pid
        self.reasons = {}
        self.online = cpus(self.read("/sys/devices/system/cpu/online") or "") or set(range(os.cpu_count() or 1))
        self.given = cores
        # The cores of the shards, and whether threads are bound to them at all.
        self.io_cores, self.is_pinned, self.io_source = self._io_cores()

    def finding(self, knob, area, what):
        return Finding(knob, area, what)

    def path(self, path):
        return path if self.root == "/" else os.path.join(self.root, path.lstrip("/"))

    def read(self, path):
        try:
            with open(self.path(path), "rb") as file:
                return file.read(1 << 20).decode("utf-8", "replace").strip()
        except OSError as error:
            self.reasons[path] = error
            return None

    def number(self, path):
        text = self.read(path)
        try:
            return None if text is None else int(text.split()[0], 0)
        except (ValueError, IndexError):
            self.reasons[path] = ValueError("%r is no number" % text[:40])
            return None

    def names(self, path):
        try:
            return sorted(os.listdir(self.path(path)), key=natural)
        except OSError as error:
            self.reasons[path] = error
            return []

    def exists(self, path):
        return os.path.exists(self.path(path))

    def link(self, path):
        try:
            return os.readlink(self.path(path))
        except OSError:
            return None

    def is_missing(self, path):
        """Whether there is no such file, rather than one that is not shown."""
        return isinstance(self.reasons.get(path), (FileNotFoundError, NotADirectoryError))

    def why(self, path):
        error = self.reasons.get(path)
        return "%s: %s" % (path, getattr(error, "strerror", None) or error or "empty")

    def missing(self, finding, path, absent):
        """The finding of a knob whose file could not be read."""
        return finding.absent(absent) if self.is_missing(path) else finding.unreadable(self.why(path))

    def sysctl(self, name):
        return "/proc/sys/" + name.replace(".", "/")

    def interfaces(self):
        """Network interfaces with hardware behind them."""
        return [name for name in self.names("/sys/class/net") if self.exists("/sys/class/net/%s/device" % name)]

    def tasks(self):
        """Thread ids and names of the server that is looked at."""
        if self.pid is None:
            return []
        base = "/proc/%d/task" % self.pid
        return [(tid, self.read("%s/%s/comm" % (base, tid)) or "?") for tid in self.names(base)]

    def status(self, path):
        """A file of /proc with a name and a colon in each line."""
        lines = (self.read(path) or "").splitlines()
        return {name: rest.strip() for name, colon, rest in (line.partition(":") for line in lines) if colon}

    def others(self):
        """Online cores that no shard has: where everything else should be."""
        return self.online - self.io_cores

    def _io_cores(self):
        if self.given:
            return set(self.given), True, "--cores"
        bound = set()
        for tid, name in self.tasks():
            if name.startswith("shard-"):
                allowed = cpus(self.status("/proc/%d/task/%s/status" % (self.pid, tid)).get("Cpus_allowed_list", ""))
                bound |= allowed if len(allowed) == 1 else set()
        if bound:
            return bound, True, "the shards of process %d" % self.pid
        if self.pid is not None:
            return set(), False, "process %d, whose shards are bound to no core" % self.pid
        if len(self.online) < PIN_FROM:
            return set(), False, "fewer than %d cores: the server binds nothing" % PIN_FROM
        count = max(1, len(self.online) // CORES_PER_SHARD)
        return set(sorted(self.online)[:count]), True, "the server's default, a quarter of the cores"


def cpus(text):
    """The set that a list like 0-3,8 names; empty for what is none."""
    found = set()
    for part in text.replace("\n", ",").split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?(?::\d+/\d+)?\s*", part)
        if match:
            first, last = int(match[1]), int(match[2] or match[1])
            if first <= last < 1 << 16:
                found |= set(range(first, last + 1))
    return found


def listed(cores):
    """The list that names a set: 0-3,8."""
    parts, cores = [], sorted(cores)
    while cores:
        run = 1
        while run < len(cores) and cores[run] == cores[0] + run:
            run += 1
        parts.append("%d" % cores[0] if run == 1 else "%d-%d" % (cores[0], cores[run - 1]))
        cores = cores[run:]
    return ",".join(parts)


def mask(cores):
    """The hexadecimal mask of a set, in groups of 32 bits as the kernel writes them."""
    bits = sum(1 << core for core in cores)
    groups = []
    while bits or not groups:
        groups.append("%x" % (bits & 0xFFFFFFFF))
        bits >>= 32
    return ",".join([groups[-1]] + ["%08x" % int(group, 16) for group in reversed(groups[:-1])])


def chosen(text):
    """The word in brackets of a list of choices, or the text itself."""
    match = re.search(r"\[([^]]+)\]", text)
    return match[1] if match else text.strip()


def natural(name):
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def few(items, most=4):
    """The first few, and how many more there are."""
    items = [str(item) for item in items]
    return ", ".join(items[:most]) + (" and %d more" % (len(items) - most) if len(items) > most else "")
