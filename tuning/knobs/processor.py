"""The processor: how fast it runs, how deep it sleeps, what shares a core, and what a look at the clock costs."""

import time

from .finding import DERIVED, HOST, MEASURED, PUBLISHED
from .host import cpus, few, listed

CPU = "/sys/devices/system/cpu/cpu%d/"
AREA = "processor"
# Microseconds to wake from an idle state that a server of microseconds can live with.
EXIT_US_MAX = 10


def of_cores(host):
    """The cores that matter: those of the shards, or all where nothing is bound."""
    return sorted(host.io_cores & host.online or host.online)


def governor(host):
    finding = host.finding("governor", AREA, "How the frequency of a core is chosen.")
    paths = {core: CPU % core + "cpufreq/scaling_governor" for core in sorted(host.online)}
    values = {core: host.read(path) for core, path in paths.items()}
    known = {core: value for core, value in values.items() if value}
    if not known:
        return host.missing(finding, paths[min(paths)], "no frequencies to choose: a virtual machine, or firmware does")
    now = [host.number(CPU % core + "cpufreq/scaling_cur_freq") for core in known]
    top = [host.number(CPU % core + "cpufreq/cpuinfo_max_freq") for core in known]
    pairs = [(a, b) for a, b in zip(now, top) if a and b]
    ratio = ("the cores ran at %d %% of their highest frequency when they were looked at"
             % (100 * sum(a for a, _ in pairs) // sum(b for _, b in pairs)) if pairs else "")
    finding.brings(ratio or "the frequency does not fall between requests", HOST if ratio else DERIVED,
                   "scaling_cur_freq, cpuinfo_max_freq")
    wrong = [core for core, value in known.items() if value != "performance"]
    finding.by("cpupower frequency-set -g performance", writes=[(paths[core], "performance") for core in wrong])
    finding.risks("more power and heat at rest")
    return finding.judged(not wrong, few(sorted(set(known.values()))), "performance")


def energy_preference(host):
    finding = host.finding("energy-preference", AREA, "What the processor prefers where it chooses frequencies itself.")
    paths = {core: CPU % core + "cpufreq/energy_performance_preference" for core in sorted(host.online)}
    known = {core: value for core, value in ((core, host.read(path)) for core, path in paths.items()) if value}
    if not known:
        return host.missing(finding, paths[min(paths)], "this processor or driver has no such preference")
    wrong = [core for core, value in known.items() if value not in ("performance", "0")]
    finding.by(writes=[(paths[core], "performance") for core in wrong])
    finding.brings("the processor leaves lower frequencies sooner after a pause").risks("more power and heat")
    return finding.judged(not wrong, few(sorted(set(known.values()))), "performance")


def turbo(host):
    finding = host.finding("turbo", AREA, "Whether cores may run above their base frequency.")
    off, boost = "/sys/devices/system/cpu/intel_pstate/no_turbo", "/sys/devices/system/cpu/cpufreq/boost"
    no_turbo, boosted = host.number(off), host.number(boost)
    if no_turbo is None and boosted is None:
        return host.missing(finding, off if not host.is_missing(off) else boost, "this host does not say")
    base, top = host.number(CPU % 0 + "cpufreq/base_frequency"), host.number(CPU % 0 + "cpufreq/cpuinfo_max_freq")
    if base and top:
        finding.brings("up to %d %% more frequency" % (100 * top // base - 100), HOST, "base_frequency, cpuinfo_max_freq")
    is_on = no_turbo == 0 if no_turbo is not None else boosted == 1
    finding.by(writes=[] if is_on else [(off, "0") if no_turbo is not None else (boost, "1")])
    finding.risks("frequencies vary with temperature and with what neighbouring cores do")
    return finding.judged(is_on, "on" if is_on else "off", "on")


def idle_states(host):
    finding = host.finding("idle-states", AREA, "How long a core that sleeps takes to wake (C-states).")
    held = dma_latency(host)
    deep, seen, writes, refused = {}, False, [], None
    for core in of_cores(host):
        base = CPU % core + "cpuidle"
        for state in host.names(base):
            latency = host.number("%s/%s/latency" % (base, state))
            disabled = host.number("%s/%s/disable" % (base, state))
            if latency is None or disabled is None:
                refused = refused or "%s/%s" % (base, state)
                continue
            seen = True
            if latency > EXIT_US_MAX and disabled == 0:
                deep[host.read("%s/%s/name" % (base, state)) or state] = latency
                writes.append(("%s/%s/disable" % (base, state), "1"))
    if not seen:
        base = CPU % of_cores(host)[0] + "cpuidle"
        if refused:
            return finding.unreadable("%s: latency and disable are not shown" % refused)
        return host.missing(finding, base, "no idle states: a virtual machine, or idle=poll")
    if held is not None and held <= EXIT_US_MAX:
        return finding.judged(True, "/dev/cpu_dma_latency is held at %d us" % held)
    worst = max(deep.values(), default=0)
    finding.brings("up to %d us less until a parked core runs, for each wake" % worst, HOST, "cpuidle/state*/latency")
    finding.by("or for all cores, as long as a program holds it open: /dev/cpu_dma_latency, tuned's latency-performance",
               writes=writes)
    finding.risks("more power; less room for the turbo of neighbouring cores")
    shown = few("%s %d us" % (name, latency) for name, latency in deep.items())
    return finding.judged(not deep, shown or "none deeper than %d us" % EXIT_US_MAX, "at most %d us" % EXIT_US_MAX)


def dma_latency(host):
    """Microseconds that somebody holds /dev/cpu_dma_latency at; None where root alone may look."""
    try:
        with open(host.path("/dev/cpu_dma_latency"), "rb") as file:
            return int.from_bytes(file.read(4), "little")
    except OSError:
        return None


def smt(host):
    finding = host.finding("siblings", AREA, "Whether another thread runs on the same core as a shard (SMT).")
    path = CPU % of_cores(host)[0] + "topology/thread_siblings_list"
    text = host.read(path)
    if text is None:
        return host.missing(finding, path, "this host does not say which cores are siblings")
    shared = {}
    for core in of_cores(host):
        siblings = cpus(host.read(CPU % core + "topology/thread_siblings_list") or "") & host.online - {core}
        if siblings:
            shared[core] = siblings
    if not host.is_pinned and shared:
        return finding.choice("on; nothing is bound to a core")
    finding.brings("a shard has its core's caches and execution units to itself")
    finding.by(*["give the siblings nothing to do (--io-cores without them, isolated), or take them off:"],
               writes=[("/sys/devices/system/cpu/cpu%d/online" % core, "0")
                       for core in sorted(set().union(*shared.values()) - host.io_cores if shared else ())])
    finding.risks("that many cores less for models", careful=True)
    isolated = cpus(host.read("/sys/devices/system/cpu/isolated") or "")
    busy = {core: siblings for core, siblings in shared.items() if siblings - isolated or siblings & host.io_cores}
    found = few("%d shares with %s" % (core, listed(siblings)) for core, siblings in busy.items())
    return finding.judged(not busy, found or "no shard shares its core", "siblings offline or isolated")


def clocksource(host):
    finding = host.finding("clocksource", AREA, "What the time is read from; the server reads it several times a request.")
    path = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
    current = host.read(path)
    if current is None:
        return host.missing(finding, path, "this host does not say")
    fast = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page")
    if host.root == "/":
        finding.brings("a look at the clock takes %d ns here, with the call of it in Python" % clock_ns(), MEASURED,
                       "by this program, now")
    else:
        finding.brings("a slow one is a system call and a read of a device for each look", DERIVED)
    available = (host.read(path.replace("current", "available")) or "").split()
    better = [name for name in fast if name in available]
    finding.by("kernel command line: tsc=reliable, where the processor's counter is known to be steady",
               writes=[(path, better[0])] if current not in fast and better else [])
    finding.risks("a counter that is not steady makes time jump: the kernel left it for a reason", careful=True)
    return finding.judged(current in fast, current, " or ".join(fast[:2]))


def clock_ns():
    """The least of several averages."""
    best = 1 << 30
    for _ in range(5):
        start = time.perf_counter_ns()
        for _ in range(2000):
            time.perf_counter_ns()
        best = min(best, (time.perf_counter_ns() - start) // 2000)
    return best


def mitigations(host):
    finding = host.finding("mitigations", AREA, "What each system call pays against attacks on the processor.")
    base = "/sys/devices/system/cpu/vulnerabilities"
    values = {name: host.read("%s/%s" % (base, name)) or "" for name in host.names(base)}
    if not values:
        return host.missing(finding, base, "this kernel does not say")
    active = [name for name, value in values.items() if value.startswith("Mitigation")]
    finding.brings("system calls are most of what a small request costs, so this host pays with each",
                   PUBLISHED, "kernel: Documentation/admin-guide/hw-vuln; how much differs by processor")
    finding.by("kernel command line: mitigations=off")
    finding.risks("programs on this host, and who talks to them, may read what they should not", careful=True)
    return finding.choice("%d of %d vulnerabilities are mitigated" % (len(active), len(values)),
                          "off, where nothing on the host runs foreign code")


KNOBS = (governor, energy_preference, turbo, idle_states, smt, clocksource, mitigations)
