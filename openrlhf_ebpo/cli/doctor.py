"""openrlhf-ebpo doctor: does this machine have what a run needs?"""

from __future__ import annotations

import argparse
import sys

from openrlhf_ebpo.checks.machine import TOPICS, Finding

EPILOG = """Each line is "ok", "note" (it works, or may, and here is what to do) or "FIX" (nothing would run).
The exit status is 1 if there is a FIX. Nothing is changed on this machine; "libraries" takes some seconds."""


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="openrlhf-ebpo doctor",
        description="Check versions, native libraries, memory, disk, /dev/shm, network, leftovers of earlier runs, GPUs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help=f"only these: {', '.join(TOPICS)} (default: all)")
    topics = parser.parse_args(argv).topics
    if unknown := [topic for topic in topics if topic not in TOPICS]:
        parser.error(f"no such topic: {unknown[0]}. There are {', '.join(TOPICS)}")
    fatal = 0
    for topic in topics or TOPICS:
        for finding in TOPICS[topic]():
            fatal += finding.fatal
            print(line(finding), flush=True)
    if fatal:
        sys.exit(f"{fatal} to fix before anything runs")


def line(finding: Finding) -> str:
    word = "ok" if finding.remedy is None else "FIX" if finding.fatal else "note"
    return f"{word:<5}{finding.found}" + (f"\n     -> {finding.remedy}" if finding.remedy else "")


if __name__ == "__main__":
    main()
