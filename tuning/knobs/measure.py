"""What a core does to a thread that wants it: how often it is interrupted, and how late it wakes.

The only part that looks at no file: what isolation, idle states and the timer slack do on this host, here and now.
"""

import os
import time

# A gap between two looks at the clock that is longer was an interruption; Python's own steps stay below it.
PAUSE_NS = 5_000
SPIN_NS = 500_000_000
SLEEPS = 300


def measure(cores):
    rows = []
    before = os.sched_getaffinity(0)
    for core in sorted(cores):
        try:
            os.sched_setaffinity(0, {core})
            rows.append({"core": core, **interruptions(), **lateness()})
        except OSError as error:
            rows.append({"core": core, "problem": "cannot run there: %s" % error.strerror})
        finally:
            os.sched_setaffinity(0, before)
    return rows


def interruptions():
    """Of a thread that spins."""
    now = time.perf_counter_ns
    start = last = now()
    count = lost = worst = 0
    while last - start < SPIN_NS:
        at = now()
        if at - last > PAUSE_NS:
            count, lost, worst = count + 1, lost + at - last, max(worst, at - last)
        last = at
    spent = last - start
    return {"pauses_per_s": count * 1_000_000_000 // spent, "lost_percent": round(100 * lost / spent, 3),
            "pause_max_us": worst // 1000}


def lateness():
    """Of a thread that sleeps for a millisecond; the kernel's slack of 50 us is part of it."""
    late = []
    for _ in range(SLEEPS):
        start = time.perf_counter_ns()
        time.sleep(0.001)
        late.append(max(0, time.perf_counter_ns() - start - 1_000_000) // 1000)
    late.sort()
    return {"late_p50_us": late[len(late) // 2], "late_p99_us": late[len(late) * 99 // 100]}
