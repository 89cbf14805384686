"""A running server: where its threads may run, who takes their cores, what waits at its sockets. Needs its id."""

import re

from .finding import DERIVED, HOST
from .host import cpus, few, listed

AREA = "server"


def threads(host):
    if host.pid is None:
        return None
    finding = host.finding("threads", AREA, "Whether the server's shards have cores to themselves.")
    tasks = host.tasks()
    if not tasks:
        return finding.unreadable(host.why("/proc/%d/task" % host.pid))
    shards, others = {}, {}
    for tid, name in tasks:
        status = host.status("/proc/%d/task/%s/status" % (host.pid, tid))
        allowed = cpus(status.get("Cpus_allowed_list", ""))
        (shards if name.startswith("shard-") else others).setdefault(name, set()).update(allowed)
    found = "%d threads; shards on %s" % (len(tasks), few("%s: %s" % (n, listed(c)) for n, c in shards.items()) or "?")
    bound = [name for name, cores in shards.items() if len(cores) == 1]
    if not bound:
        return finding.choice(found + " (not bound: fewer than 4 cores, or all of them for I/O)", "--io-cores=LIST")
    mixed = [name for name, cores in others.items() if cores & host.io_cores]
    finding.brings("nobody of the server itself is in a shard's way", DERIVED)
    finding.by("--io-cores=LIST, and CPUAffinity= with more cores than those").risks("fewer cores for models")
    shown = found + ("; also there: " + few(mixed) if mixed else "")
    return finding.judged(len(bound) == len(shards) and not mixed_workers(mixed), shown, "one core each, nobody else")


def mixed_workers(names):
    """Threads that work for requests; control threads sleep and may lie anywhere."""
    idle = ("nereid", "log", "control", "signals", "host-poller", "tls", "model-poll", "home")
    return [name for name in names if not name.startswith(idle)]


def preemptions(host):
    if host.pid is None:
        return None
    finding = host.finding("preemptions", AREA, "How often a shard had to make room for another thread.")
    took, gave = {}, {}
    for tid, name in host.tasks():
        if name.startswith("shard-"):
            status = host.status("/proc/%d/task/%s/status" % (host.pid, tid))
            numbers = [status.get(key, "") for key in ("nonvoluntary_ctxt_switches", "voluntary_ctxt_switches")]
            if all(number.isdigit() for number in numbers):
                took[name] = took.get(name, 0) + int(numbers[0])
                gave[name] = gave.get(name, 0) + int(numbers[1])
    if not took:
        return finding.unreadable("no shard tells of its changes")
    finding.brings("each is a pause of a time slice for all connections of the shard", HOST, "/proc/PID/task/*/status")
    finding.by("isolated-cores, above; Nice= or CPUSchedulingPolicy= in the unit").risks("others wait instead")
    found = few("%s: %d of %d changes" % (name, took[name], took[name] + gave[name]) for name in took)
    share = sum(took.values()) / max(1, sum(took.values()) + sum(gave.values()))
    return finding.judged(sum(took.values()) < 100 or share < 0.01, found, "less than 1 %")


def sockets(host):
    if host.pid is None:
        return None
    finding = host.finding("sockets", AREA, "What waits at the server's ports.")
    base = "/proc/%d/fd" % host.pid
    inodes = {match[1] for match in (re.fullmatch(r"socket:\[(\d+)\]", host.link("%s/%s" % (base, fd)) or "")
                                     for fd in host.names(base)) if match}
    if not inodes:
        return finding.unreadable(host.why(base) if base in host.reasons else "%s shows no sockets" % base)
    listening, connected, waiting = [], 0, 0
    for table in ("tcp", "tcp6"):
        for line in (host.read("/proc/%d/net/%s" % (host.pid, table)) or "").splitlines()[1:]:
            words = line.split()
            if len(words) < 10 or words[9] not in inodes:
                continue
            if words[3] == "0A":
                listening.append(str(int(words[1].rsplit(":", 1)[1], 16)))
                waiting += int(words[4].split(":")[1], 16)
            elif words[3] == "01":
                connected += 1
    overflows = netstat(host, "ListenOverflows")
    finding.brings("a connection that finds the queue full comes a second later", DERIVED, "RFC 6298")
    finding.by("net.core.somaxconn, under `accept-queue`; more shards with --io-cores").risks("none")
    found = "listens at %s; %d connections, %d wait to be accepted; the host's queues overflowed %s times" % (
        few(listening) or "no TCP port", connected, waiting, "?" if overflows is None else overflows)
    return finding.judged(not overflows and waiting < 1024, found, "no overflow")


def netstat(host, name):
    """A counter of /proc/net/netstat: names in one line, numbers in the next."""
    lines = (host.read("/proc/%d/net/netstat" % host.pid) or "").splitlines()
    for names, numbers in zip(lines[::2], lines[1::2]):
        row = dict(zip(names.split(), numbers.split()))
        if name in row and row[name].isdigit():
            return int(row[name])
    return None


def resident(host):
    if host.pid is None:
        return None
    finding = host.finding("server-memory", AREA, "Whether all of the server is in memory.")
    status = host.status("/proc/%d/status" % host.pid)
    if "VmRSS" not in status:
        return finding.unreadable(host.why("/proc/%d/status" % host.pid))
    swapped = re.match(r"(\d+)", status.get("VmSwap", "0"))
    swapped = int(swapped[1]) if swapped else 0
    finding.brings("no wait for a disk", DERIVED).by("MemorySwapMax=0 in the unit; swap, above").risks("see swap")
    return finding.judged(swapped == 0, "%s resident, %d kB on a disk" % (status["VmRSS"], swapped), "nothing on a disk")


KNOBS = (threads, preemptions, sockets, resident)
