"""Who else runs where the shards run: other threads, interrupts, ticks, the kernel's own work, and quotas."""

import re

from .finding import DERIVED, HOST, PUBLISHED
from .host import cpus, few, listed, mask

AREA = "placement"
PER_CPU = "kernel: Documentation/admin-guide/kernel-per-CPU-kthreads.rst"


def unbound(host, finding):
    """For knobs that only matter where a shard has a core of its own."""
    return finding.absent("no core is the shards' own here (%s)" % host.io_source)


def isolated_cores(host):
    finding = host.finding("isolated-cores", AREA, "Whether the scheduler keeps other threads off the shards' cores.")
    if not host.is_pinned:
        return unbound(host, finding)
    path = "/sys/devices/system/cpu/isolated"
    text = host.read(path)
    if text is None:
        return host.missing(finding, path, "this kernel does not say")
    isolated = cpus(text) | cpus(host.read("/sys/fs/cgroup/cpuset.cpus.isolated") or "")
    cores = listed(host.io_cores)
    finding.brings("a shard is not preempted: another thread in its way costs a time slice, milliseconds", DERIVED)
    finding.by("kernel command line: isolcpus=managed_irq,domain,%s" % cores,
               "the server's unit then needs CPUAffinity= with these cores too: isolated ones are nobody's by default",
               "or without a reboot: a cgroup with cpuset.cpus.partition=isolated")
    finding.risks("nothing else can use these cores; name them to the server with --io-cores=%s" % cores)
    return finding.judged(host.io_cores <= isolated, listed(isolated) or "none", cores)


def tickless(host):
    finding = host.finding("tickless", AREA, "Whether the timer tick interrupts a shard that spins.")
    if not host.is_pinned:
        return unbound(host, finding)
    path = "/sys/devices/system/cpu/nohz_full"
    text = host.read(path)
    if text is None and not host.is_missing(path):
        return finding.unreadable(host.why(path))
    found = cpus(text or "")
    finding.brings("one interruption a second in place of 100 to 1000", PUBLISHED,
                   "kernel: Documentation/timers/no_hz.rst")
    finding.by("kernel command line: nohz_full=%s rcu_nocbs=%s" % (listed(host.io_cores), listed(host.io_cores)))
    finding.risks("every system call costs a little more for the accounting: good for shards that spin, no gain for "
                  "those that park")
    wanted = listed(host.io_cores)
    return finding.choice(listed(found) or "none", wanted) if not host.io_cores <= found else finding.judged(
        True, listed(found), wanted)


def rcu_callbacks(host):
    finding = host.finding("rcu-callbacks", AREA, "Whether the kernel frees its own memory on the shards' cores.")
    if not host.is_pinned:
        return unbound(host, finding)
    line = host.read("/proc/cmdline")
    if line is None:
        return host.missing(finding, "/proc/cmdline", "there is no command line")
    words = dict(word.partition("=")[::2] for word in line.split())
    nohz = cpus(host.read("/sys/devices/system/cpu/nohz_full") or "")
    found = cpus(words.get("rcu_nocbs", "")) | nohz
    found |= host.online if words.get("rcu_nocbs") == "all" else set()
    finding.brings("callbacks run in threads on other cores", PUBLISHED, PER_CPU)
    finding.by("kernel command line: rcu_nocbs=%s" % listed(host.io_cores))
    finding.risks("the threads that take over need a core with time to spare")
    return finding.judged(host.io_cores <= found, listed(found) or "none", listed(host.io_cores))


def interrupts(host):
    finding = host.finding("interrupts", AREA, "Whether devices interrupt the shards' cores.")
    if not host.is_pinned:
        return unbound(host, finding)
    if not host.names("/proc/irq"):
        return host.missing(finding, "/proc/irq", "this host does not show its interrupts")
    names, counts = counted(host)
    here, writes, refused = [], [], 0
    others = listed(host.others())
    for irq in (name for name in host.names("/proc/irq") if name.isdigit()):
        base = "/proc/irq/" + irq
        allowed = host.read(base + "/smp_affinity_list")
        if allowed is None:
            refused += 1
            continue
        effective = cpus(host.read(base + "/effective_affinity_list") or "") or cpus(allowed)
        came = sum(count for core, count in counts.get(irq, {}).items() if core in host.io_cores)
        if effective & host.io_cores and (came or irq in names):
            here.append("%s %s (%d)" % (irq, names.get(irq, "?"), came))
        if cpus(allowed) & host.io_cores and others and irq in names:
            writes.append((base + "/smp_affinity_list", others))
    finding.brings("each takes a shard a few microseconds, and its caches", PUBLISHED,
                   "Cai, Karsten: Kernel vs. User-Level Networking, SIGMETRICS 2024: up to 45 % more requests "
                   "where interrupts are kept from the application")
    finding.by("keep it so with irqbalance off, or with IRQBALANCE_BANNED_CPULIST=%s" % listed(host.io_cores),
               writes=writes)
    finding.risks("the other cores do the network's work and wake the shard: with few connections and a core to spare "
                  "for it that is faster, else measure; the kernel refuses managed interrupts (isolcpus=managed_irq)")
    if refused and not here:
        return finding.unreadable("%d interrupts do not show their cores" % refused)
    return finding.judged(not here, few(here) or "none on " + listed(host.io_cores), "on " + (others or "other cores"))


def counted(host):
    """What each interrupt is called, and how often it came to each core."""
    lines = (host.read("/proc/interrupts") or "").splitlines()
    cores = [int(core) for core in re.findall(r"CPU(\d+)", lines[0])] if lines else []
    names, counts = {}, {}
    for line in lines[1:]:
        words = line.split()
        if words and words[0].rstrip(":").isdigit():
            irq, numbers = words[0].rstrip(":"), words[1:1 + len(cores)]
            counts[irq] = {core: int(number) for core, number in zip(cores, numbers) if number.isdigit()}
            names[irq] = words[-1]
    return names, counts


def irqbalance(host):
    finding = host.finding("irqbalance", AREA, "Whether a daemon moves interrupts back onto the shards' cores.")
    if not host.is_pinned:
        return unbound(host, finding)
    pids = [pid for pid in host.names("/proc") if pid.isdigit() and host.read("/proc/%s/comm" % pid) == "irqbalance"]
    finding.by("systemctl disable --now irqbalance",
               "or IRQBALANCE_BANNED_CPULIST=%s in /etc/default/irqbalance" % listed(host.io_cores))
    finding.brings("what is set under `interrupts` stays", DERIVED)
    finding.risks("without it somebody has to spread the interrupts of the other cores")
    if not pids:
        return finding.judged(True, "does not run")
    files = ("/etc/default/irqbalance", "/etc/sysconfig/irqbalance")
    text = "\n".join(host.read(path) or "" for path in files)
    banned = re.search(r"^\s*(?:export\s+)?IRQBALANCE_BANNED_CPULIST=[\"']?([0-9,-]+)", text, re.M)
    banned = cpus(banned[1]) if banned else set()
    return finding.judged(host.io_cores <= banned, "runs, banned from %s" % (listed(banned) or "no core"),
                          "banned from " + listed(host.io_cores))


def quota(host):
    finding = host.finding("cpu-quota", AREA, "Whether a control group stops the server when its time is used up.")
    groups = host.read("/proc/%s/cgroup" % (host.pid or "self"))
    if groups is None:
        return host.missing(finding, "/proc/%s/cgroup" % (host.pid or "self"), "no control groups")
    finding.brings("a quota that is reached stops every thread for the rest of its 100 ms", PUBLISHED,
                   "kernel: Documentation/scheduler/sched-bwc.rst")
    finding.by("CPUQuota= in the unit, --cpus of a container, or limits.cpu of a pod: none, and cores by affinity")
    finding.risks("neighbours are protected by affinity alone")
    limits, throttled, looked = [], 0, False
    for line in groups.splitlines():
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        for at in parents(path):
            base = "/sys/fs/cgroup" + ("/cpu" if controllers else "") + at
            limit, looked_now = limited(host, base)
            looked |= looked_now
            if limit:
                limits.append("%.1f cores (%s)" % (limit, at or "/"))
                stat = dict(line.split() for line in (host.read(base + "/cpu.stat") or "").splitlines() if " " in line)
                throttled += int(stat.get("nr_throttled", 0))
    if limits:
        return finding.judged(False, "%s, stopped %d times" % (few(limits), throttled), "no quota")
    return finding.judged(True, "no quota") if looked else finding.absent("no control group limits CPU time")


def limited(host, base):
    """Cores' worth of a group's quota, if it has one; and whether it says anything."""
    text = host.read(base + "/cpu.max")
    if text is not None:
        amount, period = (text.split() + ["100000"])[:2]
        return (None if amount == "max" else int(amount) / int(period)), True
    amount, period = host.number(base + "/cpu.cfs_quota_us"), host.number(base + "/cpu.cfs_period_us")
    if amount is None or not period:
        return None, False
    return (amount / period if amount > 0 else None), True


def parents(path):
    """A group and those that it lies in, outermost first."""
    words = [word for word in path.split("/") if word]
    return [""] + ["/" + "/".join(words[:count + 1]) for count in range(len(words))]


def workqueues(host):
    finding = host.finding("workqueues", AREA, "Where the kernel's unbound work may run.")
    if not host.is_pinned:
        return unbound(host, finding)
    path = "/sys/devices/virtual/workqueue/cpumask"
    text = host.read(path)
    if text is None:
        return host.missing(finding, path, "this kernel does not say")
    try:
        bits = int(text.replace(",", ""), 16)
    except ValueError:
        return finding.unreadable("%s: %r is no mask" % (path, text[:40]))
    allowed = {core for core in host.online if bits >> core & 1}
    finding.brings("writing back, crypto and drivers do their work elsewhere", PUBLISHED, PER_CPU)
    finding.by(writes=[(path, mask(host.others()))] if host.others() else [])
    finding.risks("that work has fewer cores")
    return finding.judged(not allowed & host.io_cores, listed(allowed), listed(host.others()))


def watchdogs(host):
    finding = host.finding("watchdogs", AREA, "Whether every core is interrupted to see that it is alive.")
    path = host.sysctl("kernel.nmi_watchdog")
    value = host.number(path)
    if value is None:
        return host.missing(finding, path, "this kernel has none")
    finding.brings("no interrupt and no thread's wake every few seconds on each core; one performance counter more",
                   PUBLISHED, "kernel: Documentation/admin-guide/lockup-watchdogs.rst")
    finding.by("sysctl -w kernel.nmi_watchdog=0", writes=[] if value == 0 else [(path, "0")])
    finding.risks("a core that hangs in the kernel is not told of")
    return finding.judged(value == 0, "kernel.nmi_watchdog=%d" % value, "0")


def timer_migration(host):
    finding = host.finding("timer-migration", AREA, "Whether timers of idle cores are handed to others.")
    path = host.sysctl("kernel.timer_migration")
    value = host.number(path)
    if value is None:
        return host.missing(finding, path, "this kernel does not move timers")
    if not host.is_pinned:
        return finding.choice("kernel.timer_migration=%d" % value, "0 where shards have cores of their own")
    finding.brings("deadlines of a parked shard expire on its own core: no wake from another one", DERIVED)
    finding.by("sysctl -w kernel.timer_migration=0", writes=[] if value == 0 else [(path, "0")])
    finding.risks("idle cores wake for their own timers: more power")
    return finding.judged(value == 0, "kernel.timer_migration=%d" % value, "0")


def statistics_interval(host):
    finding = host.finding("statistics-interval", AREA, "How often every core folds its counters of memory.")
    path = host.sysctl("vm.stat_interval")
    value = host.number(path)
    if value is None:
        return host.missing(finding, path, "this kernel has no such interval")
    finding.brings("one interruption a second less on each core", PUBLISHED, PER_CPU)
    finding.by("sysctl -w vm.stat_interval=10", writes=[] if value >= 10 else [(path, "10")])
    finding.risks("/proc/vmstat is older")
    return finding.judged(value >= 10, "%d s" % value, "10 s or more")


KNOBS = (isolated_cores, tickless, rcu_callbacks, interrupts, irqbalance, quota, workqueues, watchdogs, timer_migration,
         statistics_interval)
