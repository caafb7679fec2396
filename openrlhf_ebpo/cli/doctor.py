"""openrlhf-ebpo doctor: does this machine have what a run needs?"""

from __future__ import annotations

import argparse
import sys

from openrlhf_ebpo.command import command
from openrlhf_ebpo.train.machine import TOPICS, Finding

ABOUT = """Check versions, native libraries, disk, network, Ray and GPUs for faults that would fail a run.

Each line begins with "ok", "note" (it works, or may; with advice) or "FIX" (nothing would run; with the remedy).
The exit status is 1 if there is a FIX. Nothing is changed on this machine; "libraries" takes some seconds.
`ds_report` (DeepSpeed: nvcc, compiled operators) and `vllm collect-env` print more.

  openrlhf-ebpo doctor                 all topics
  openrlhf-ebpo doctor versions gpu    two of them"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(TOPICS)
    parser.add_argument(
        "topics", nargs="*", type=topic, metavar="TOPIC", help=f"topics to check: {names} (default: all)"
    )


def topic(name: str) -> str:
    if name not in TOPICS:
        raise argparse.ArgumentTypeError(f"no such topic: {name}. There are {', '.join(TOPICS)}")
    return name


def run(args: argparse.Namespace) -> None:
    fatal = 0
    for name in args.topics or TOPICS:
        for finding in TOPICS[name]():
            fatal += finding.fatal
            print(line(finding), flush=True)
    if fatal:
        sys.exit(f"{fatal} to fix before anything runs")


def line(finding: Finding) -> str:
    word = "ok" if finding.remedy is None else "FIX" if finding.fatal else "note"
    return f"{word:<5}{finding.found}" + (f"\n     -> {finding.remedy}" if finding.remedy else "")


main = command("openrlhf-ebpo doctor", ABOUT, add_flags, run)

if __name__ == "__main__":
    main()
