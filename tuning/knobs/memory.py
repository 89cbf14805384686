"""Memory: pages, nodes, what moves or merges pages behind the server's back, and what may be locked."""

import re

from .finding import DERIVED, MEASURED, PUBLISHED
from .host import chosen, cpus, few, listed, natural

AREA = "memory"
# What glommio refuses to start below (docs/engines.md), and what leaves room for every shard's rings.
MEMLOCK_MIN = 512 << 10
MEMLOCK_WANTED = 64 << 20
# Descriptors of a shard's connections; the server closes new ones beyond it.
NOFILE_WANTED = 65_536 + 1024


def huge_pages(host):
    finding = host.finding("huge-pages", AREA, "Whether memory comes in pages of 2 MiB by itself (THP).")
    base = "/sys/kernel/mm/transparent_hugepage/"
    enabled, defrag = host.read(base + "enabled"), host.read(base + "defrag")
    if enabled is None:
        return host.missing(finding, base + "enabled", "this kernel has none")
    enabled, defrag = chosen(enabled), chosen(defrag or "")
    finding.brings("always: see docs/tuning.md for what large tensors gain and what a server at rest takes more; "
                   "defrag=always: a fault may wait for memory to be put together, milliseconds", MEASURED,
                   "docs/tuning.md; kernel: Documentation/admin-guide/mm/transhuge.rst for defrag")
    writes = [] if enabled in ("madvise", "always") else [(base + "enabled", "madvise")]
    writes += [(base + "defrag", "defer+madvise")] if defrag == "always" else []
    finding.by(writes=writes).risks("with always, a small server takes more memory")
    found = "enabled=%s, defrag=%s" % (enabled, defrag or "?")
    return finding.judged(not writes, found, "enabled=madvise or always, defrag not always")


def reserved_huge_pages(host):
    finding = host.finding("reserved-huge-pages", AREA, "Huge pages that are set aside for programs that ask for them.")
    path = host.sysctl("vm.nr_hugepages")
    value = host.number(path)
    if value is None:
        return host.missing(finding, path, "this kernel has none")
    finding.brings("the server asks for none; clients' shared memory and runtimes may")
    finding.by("sysctl -w vm.nr_hugepages=COUNT", "kernel command line: hugepages=COUNT")
    finding.risks("what is reserved is lost to everything else")
    return finding.choice("%d reserved" % value, "none for the server itself")


def numa_balancing(host):
    finding = host.finding("numa-balancing", AREA, "Whether the kernel takes pages away to see who uses them.")
    path = host.sysctl("kernel.numa_balancing")
    value = host.number(path)
    if value is None:
        return host.missing(finding, path, "this kernel does not balance nodes")
    nodes = [name for name in host.names("/sys/devices/system/node") if re.fullmatch(r"node\d+", name)]
    finding.brings("no faults that only ask where memory is used; threads and memory are placed by the server anyway",
                   PUBLISHED, "kernel: Documentation/admin-guide/sysctl/kernel.rst, numa_balancing")
    finding.by("sysctl -w kernel.numa_balancing=0", writes=[] if value == 0 or len(nodes) < 2 else [(path, "0")])
    finding.risks("programs that place nothing by themselves lose")
    found = "kernel.numa_balancing=%d, %d nodes" % (value, max(1, len(nodes)))
    return finding.judged(value == 0 or len(nodes) < 2, found, "0")


def nodes(host):
    finding = host.finding("numa-nodes", AREA, "Whether network, GPUs and the shards' cores lie on one node.")
    found = {}
    for name in host.names("/sys/devices/system/node"):
        if re.fullmatch(r"node\d+", name):
            found[int(name[4:])] = cpus(host.read("/sys/devices/system/node/%s/cpulist" % name) or "")
    if len(found) < 2:
        return finding.absent("one node")
    devices = {name: host.number("/sys/class/net/%s/device/numa_node" % name) for name in host.interfaces()}
    for address in host.names("/sys/bus/pci/devices"):
        base = "/sys/bus/pci/devices/" + address
        # Display controllers and 3D accelerators.
        if (host.read(base + "/class") or "").startswith(("0x0300", "0x0302", "0x0380")):
            devices["GPU " + address] = host.number(base + "/numa_node")
    devices = {name: node for name, node in devices.items() if node is not None and node >= 0}
    ours = {node for node, cores in found.items() if cores & host.io_cores}
    finding.brings("received bytes are in the cache or memory beside the core that reads them", DERIVED)
    near = sorted(set(devices.values()))
    near_cores = listed(found.get(near[0], set())) if near else ""
    finding.by("--io-cores with cores of the network's node%s; --host-policy for instances" % (
        " (%s)" % near_cores if near_cores else ""))
    finding.risks("the other nodes' cores are for models that do not mind")
    if not host.is_pinned or not devices:
        return finding.choice("%d nodes; devices: %s" % (len(found), few(devices) or "none that say their node"))
    far = ["%s on node %d" % device for device in sorted(devices.items(), key=lambda it: natural(it[0]))
           if device[1] not in ours]
    shown = "shards on node %s; %s" % (few(sorted(ours)), few(far) or "devices beside them")
    return finding.judged(not far and len(ours) == 1, shown, "one node")


def page_merging(host):
    finding = host.finding("page-merging", AREA, "Whether the kernel looks for equal pages to merge (KSM).")
    path = "/sys/kernel/mm/ksm/run"
    value = host.number(path)
    if value is None:
        return host.missing(finding, path, "this kernel does not merge")
    finding.brings("no thread that reads all memory, no fault when a merged page is written", PUBLISHED,
                   "kernel: Documentation/admin-guide/mm/ksm.rst")
    finding.by(writes=[(path, "0")] if value == 1 else []).risks("virtual machines on this host share less")
    return finding.judged(value != 1, "runs" if value == 1 else "does not run", "does not run")


def swap(host):
    finding = host.finding("swap", AREA, "Whether the server's pages may be written to a disk.")
    text, path = host.read("/proc/swaps"), host.sysctl("vm.swappiness")
    if text is None:
        return host.missing(finding, "/proc/swaps", "this kernel does not swap")
    places, swappiness = [line.split()[0] for line in text.splitlines()[1:]], host.number(path)
    finding.brings("the first request after a pause does not wait for a disk", DERIVED)
    finding.by("swapoff -a, or MemorySwapMax=0 in the unit",
               writes=[(path, "1")] if places and (swappiness or 0) > 10 else [])
    finding.risks("too little memory ends processes instead")
    found = few(places) + ", vm.swappiness=%s" % swappiness if places else "none"
    return finding.judged(not places or (swappiness is not None and swappiness <= 10), found,
                          "none, or vm.swappiness at most 10")


def zone_reclaim(host):
    finding = host.finding("zone-reclaim", AREA, "Whether a full node is cleaned up before another one is asked.")
    path = host.sysctl("vm.zone_reclaim_mode")
    value = host.number(path)
    if value is None:
        return host.missing(finding, path, "one node, or no such kernel")
    finding.brings("an allocation does not wait for pages to be written", PUBLISHED,
                   "kernel: Documentation/admin-guide/sysctl/vm.rst, zone_reclaim_mode")
    finding.by("sysctl -w vm.zone_reclaim_mode=0", writes=[] if value == 0 else [(path, "0")])
    finding.risks("memory may lie on a farther node")
    return finding.judged(value == 0, "vm.zone_reclaim_mode=%d" % value, "0")


def limit(host, name):
    """A soft limit of the server, or of this program where none is looked at: (value or None for none, problem)."""
    path = "/proc/%s/limits" % (host.pid or "self")
    text = host.read(path)
    if text is None:
        return None, host.why(path)
    match = re.search(r"^%s\s+(\S+)" % re.escape(name), text, re.M)
    if not match:
        return None, "%s does not tell of it" % path
    if match[1] == "unlimited":
        return float("inf"), None
    return (int(match[1]), None) if match[1].isdigit() else (None, "%s: %r" % (path, match[1]))


def whose(host):
    return "of process %d" % host.pid if host.pid else "of this shell, as the server would inherit it"


def memory_lock(host):
    finding = host.finding("memory-lock", AREA, "How much memory may be locked, which rings of io_uring need.")
    value, problem = limit(host, "Max locked memory")
    if problem:
        return finding.unreadable(problem)
    finding.brings("below %d KiB the server falls back to epoll (docs/engines.md)" % (MEMLOCK_MIN >> 10), DERIVED)
    finding.by("LimitMEMLOCK=infinity in the unit, ulimit -l unlimited, --ulimit memlock=-1 of Docker")
    finding.risks("a faulty program could lock more")
    shown = "unlimited" if value == float("inf") else "%d KiB" % (value >> 10)
    return finding.judged(value >= MEMLOCK_WANTED, "%s %s" % (shown, whose(host)), "%d MiB" % (MEMLOCK_WANTED >> 20))


def open_files(host):
    finding = host.finding("open-files", AREA, "How many connections may be open.")
    value, problem = limit(host, "Max open files")
    if problem:
        return finding.unreadable(problem)
    finding.brings("beyond it nobody is accepted", DERIVED)
    finding.by("LimitNOFILE=1048576 in the unit, ulimit -n").risks("none")
    return finding.judged(value >= NOFILE_WANTED, "%s %s" % (value, whose(host)), "%d for each shard" % NOFILE_WANTED)


KNOBS = (huge_pages, reserved_huge_pages, numa_balancing, nodes, page_merging, swap, zone_reclaim, memory_lock,
         open_files)
