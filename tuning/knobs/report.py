"""Findings as a table for a terminal, or as JSON."""

import json
import textwrap

from .finding import ABSENT, CHOICE, MEASURED, NOT_MEASURED, STATES, TUNED, UNREADABLE, UNTUNED
from .host import listed

MARKS = {TUNED: "ok", UNTUNED: "TUNE", CHOICE: "choice", UNREADABLE: "?", ABSENT: "-"}


def counts(findings):
    return {state: sum(finding.state == state for finding in findings) for state in STATES}


def as_json(host, findings, measured):
    told = {
        "cores": {"online": listed(host.online), "io": listed(host.io_cores), "pinned": host.is_pinned,
                  "source": host.io_source},
        "pid": host.pid, "counts": counts(findings), "findings": [finding.told() for finding in findings],
    }
    if measured is not None:
        told["measured"] = measured
    return json.dumps(told, indent=2)


def as_text(host, findings, measured, width, everything):
    lines = ["cores %s; of the shards: %s (%s)" % (listed(host.online), listed(host.io_cores) or "none of their own",
                                                   host.io_source)]
    lines += pauses(measured) if measured is not None else []
    area = None
    names = max((len(finding.knob) for finding in findings), default=0)
    for finding in findings:
        if finding.area != area:
            area = finding.area
            lines += ["", area.upper()]
        head = "  %-6s %-*s  " % (MARKS[finding.state], names, finding.knob)
        lines += wrapped(head, finding.found, width)
        if finding.state == UNTUNED or (everything and finding.state in (CHOICE, TUNED)):
            lines += details(finding, width, names)
    number = counts(findings)
    lines += ["", "%d as they should be, %d to tune, %d with two sides, %d not shown, %d not here" % (
        number[TUNED], number[UNTUNED], number[CHOICE], number[UNREADABLE], number[ABSENT])]
    if number[UNTUNED]:
        lines.append("tuning/apply --dry-run shows what can be set now; docs/tuning.md has the rest.")
    return "\n".join(lines) + "\n"


def details(finding, width, names):
    rows = [("what", finding.what), ("want", finding.wanted)]
    basis = finding.basis + (": " + finding.source if finding.source and finding.basis != NOT_MEASURED else "")
    basis += " (see %s)" % finding.source if finding.source and finding.basis == NOT_MEASURED else ""
    rows.append(("brings", "%s [%s]" % (finding.gain, basis) if finding.gain else "[%s]" % basis))
    commands = finding.commands
    rows += [("set", command) for command in commands[:3]]
    if len(commands) > 3:
        rows.append(("set", "and %d more like these (--json has them all)" % (len(commands) - 3)))
    rows.append(("risk", finding.risk + (" (tuning/apply does it only with --also %s)" % finding.knob
                                         if finding.careful and finding.writes else "")))
    indent = " " * (names + 11)
    return [line for label, text in rows if text for line in wrapped("%s%-7s" % (indent, label), text, width)]


def wrapped(head, text, width):
    """A label and its text, which goes on under itself."""
    space = " " * len(head)
    found = textwrap.wrap(text, max(30, width - len(head)), break_on_hyphens=False, break_long_words=False)
    return [(head if at == 0 else space) + line for at, line in enumerate(found or [""])]


def pauses(measured):
    lines = ["", "MEASURED (%s)" % MEASURED]
    for row in measured:
        if "problem" in row:
            lines.append("  core %-3s %s" % (row["core"], row["problem"]))
            continue
        lines.append("  core %-3s interrupted %d times a second, %.2f %% of the time, at worst %d us; wakes from 1 ms of "
                     "sleep %d us late, 99 %% within %d us" % (
                         row["core"], row["pauses_per_s"], row["lost_percent"], row["pause_max_us"], row["late_p50_us"],
                         row["late_p99_us"]))
    return lines
