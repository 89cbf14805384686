"""The kernel: whether io_uring is there, how threads are scheduled, what the console and a hypervisor take."""

import os
import re

from .finding import DERIVED, HOST, MEASURED, PUBLISHED

AREA = "kernel"
# What the io_uring engine needs (docs/engines.md).
KERNEL_MIN = (6, 1)


def io_uring(host):
    finding = host.finding("io-uring", AREA, "Whether the faster of the two I/O engines can run.")
    release = host.read(host.sysctl("kernel.osrelease")) or (os.uname().release if host.root == "/" else None)
    match = re.match(r"(\d+)\.(\d+)", release or "")
    if not match:
        return finding.unreadable(host.why(host.sysctl("kernel.osrelease")))
    version = (int(match[1]), int(match[2]))
    path = host.sysctl("kernel.io_uring_disabled")
    disabled = host.number(path)
    if disabled is None and not host.is_missing(path):
        return finding.unreadable(host.why(path))
    finding.brings("about as fast as epoll for many connections in tests on loopback, fewer system calls for few busy "
                   "ones", MEASURED, "docs/tuning.md, --io-engine")
    finding.by("sysctl -w kernel.io_uring_disabled=0", "in containers: a seccomp profile that allows its three calls",
               writes=[(path, "0")] if disabled else [])
    finding.risks("io_uring is a large part of the kernel to reach for programs that are broken into", careful=True)
    found = "Linux %s, kernel.io_uring_disabled=%s" % (release, "absent" if disabled is None else disabled)
    return finding.judged(version >= KERNEL_MIN and not disabled, found, "Linux 6.1 or later, 0")


def groups_of_threads(host):
    finding = host.finding("autogroup", AREA, "Whether sessions, rather than threads, share the cores fairly.")
    path = host.sysctl("kernel.sched_autogroup_enabled")
    value = host.number(path)
    if value is None:
        return host.missing(finding, path, "this kernel does not group sessions")
    finding.brings("nice values of the server count against other sessions' threads", PUBLISHED, "sched(7)")
    finding.by("sysctl -w kernel.sched_autogroup_enabled=0", writes=[] if value == 0 else [(path, "0")])
    finding.risks("none on a server; a desktop feels a build")
    return finding.judged(value == 0, "kernel.sched_autogroup_enabled=%d" % value, "0")


def slice_length(host):
    finding = host.finding("scheduler-slice", AREA, "How long a thread may run before another one of its core may.")
    path = "/sys/kernel/debug/sched/base_slice_ns"
    value = host.number(path)
    if value is None:
        return host.missing(finding, path, "this kernel does not say")
    finding.brings("where shards and models share cores: a shorter wait for either, more changes between them")
    finding.by(writes=[(path, "1000000")] if value > 1_000_000 else [])
    finding.risks("throughput of models that compute for long", careful=True)
    return finding.choice("%d us" % (value // 1000), "1000 us where cores are shared")


def console(host):
    finding = host.finding("console", AREA, "Which kernel messages are written to the console, by whoever caused them.")
    path = host.sysctl("kernel.printk")
    text = host.read(path)
    if text is None:
        return host.missing(finding, path, "this kernel does not say")
    words = text.split()
    level = int(words[0]) if words and words[0].isdigit() else None
    if level is None:
        return finding.unreadable("%s: %r" % (path, text[:40]))
    finding.brings("a line of 80 characters takes 7 ms on a serial console of 115,200 baud", DERIVED)
    quiet = " ".join(["4"] + words[1:])
    finding.by("sysctl -w kernel.printk=\"%s\"" % quiet, writes=[(path, quiet)] if level > 4 else [])
    finding.risks("warnings are in dmesg only")
    return finding.judged(level <= 4, "kernel.printk=" + " ".join(words), "4 or less first")


def stolen(host):
    finding = host.finding("stolen-time", AREA, "How much time a hypervisor gave to others.")
    text = host.read("/proc/stat")
    if text is None:
        return host.missing(finding, "/proc/stat", "this kernel does not count it")
    words = text.splitlines()[0].split()[1:] if text else []
    numbers = [int(word) for word in words if word.isdigit()]
    if len(numbers) < 8 or not sum(numbers[:8]):
        return finding.absent("not counted here")
    # Of the time that somebody wanted to run; idle time says nothing.
    wanted = sum(numbers[:3]) + sum(numbers[5:8])
    share = 100 * numbers[7] / wanted if wanted else 0
    finding.brings("as much more of each core, and no pauses that nobody here can see", HOST, "/proc/stat since the start")
    finding.by("a host of its own, or pinned virtual processors").risks("cost")
    return finding.judged(share < 1, "%.1f %% of the time that was wanted" % share, "less than 1 %")


KNOBS = (io_uring, groups_of_threads, slice_length, console, stolen)
