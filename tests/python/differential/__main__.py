#!/usr/bin/env python3
"""Asks one server a fixed list of questions and writes its normalised answers as one JSON document.

The document is `{case: answer}`. Two servers that were asked the same way can be compared case by case, field by field.
"""

import argparse
import json
import time

import calls
import described
import failures
import forms
import generating
import interface
import life
import measured
import regions
import told
import sequences
import streams
from wire import Server, Unwell

# The exit code where the server, and not its answers, is what was found.
UNWELL = 75

# In this order: what counts requests comes after all that make them.
GROUPS = [
    described,
    forms,
    failures,
    told,
    streams,
    generating,
    sequences,
    interface,
    calls,
    regions,
    life,
    measured,
]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--http", required=True)
    parser.add_argument("--grpc", required=True)
    parser.add_argument("--metrics", required=True)
    parser.add_argument("--repository", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--only", help="groups to run, separated by commas")
    args = parser.parse_args()
    answers = {}
    server = Server(args.http, args.grpc, args.metrics, args.repository)
    for group in GROUPS:
        if args.only and group.__name__ not in args.only.split(","):
            continue
        started = time.monotonic()
        count = len(answers)
        case = "nothing"
        try:
            for case, answer in group.cases(server):
                case = f"{group.__name__}: {case}"
                if case in answers:
                    raise SystemExit(f"two cases are called {case!r}")
                answers[case] = answer
        except Unwell as error:
            print(f"after {case!r}: {error}", flush=True)
            raise SystemExit(UNWELL) from error
        except Exception as error:
            raise SystemExit(f"after {case!r}: {type(error).__name__}: {error}") from error
        print(f"{group.__name__}: {len(answers) - count} cases in {time.monotonic() - started:.1f} s", flush=True)
    with open(args.output, "w", encoding="utf-8") as output:
        json.dump(answers, output, indent=1, sort_keys=True)


if __name__ == "__main__":
    main()
