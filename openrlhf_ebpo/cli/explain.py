"""openrlhf-ebpo explain: search messages, metrics, flags of older OpenRLHF releases and what is replaced in OpenRLHF."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from openrlhf_ebpo.cli import old_flags
from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.run.catalogue import GROUPS
from openrlhf_ebpo.seams.cpu.rows import SEAMS as CPU_SEAMS
from openrlhf_ebpo.seams.rows import SEAMS

ABOUT = """Explain a message, a metric, a flag of an older OpenRLHF, or a row of what is replaced in OpenRLHF.

  openrlhf-ebpo explain no token for the Hub          what it means, and what to do; any words of the message will do
  openrlhf-ebpo explain ebpo/shrinkage                a metric: what it tells, and when to look closer
  openrlhf-ebpo explain --n_samples_per_prompt        what became of an old flag
  openrlhf-ebpo explain metrics                       all rows of a topic
  openrlhf-ebpo explain                               the topics
"""
VARIES = "…"
PLACEHOLDER = re.compile(r"<[^>]+>")  # in names of metrics
MAX_PRINTED = 12  # rows in full; of more, the first lines only
WIDTH = 110


class Row(NamedTuple):
    """One explanation. names: what is looked up, … for what varies. facts: (label, text) in the order in which they are printed."""

    topic: str
    names: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    is_word: bool = False  # a message may be quoted with more text around it, a name only by itself

    def text(self) -> str:
        return " ".join([*self.names, *(text for _, text in self.facts)]).casefold()

    def is_quoted_in(self, given: str) -> bool:
        return any(re.search(_pattern(name, self.is_word), given, re.IGNORECASE) for name in self.names)


def _pattern(name: str, is_word: bool) -> str:
    parts = name.strip(f"{VARIES} ").removesuffix(":").split(VARIES)
    found = ".*?".join(r"\s+".join(map(re.escape, part.split())) for part in parts)
    return rf"\A{found}\Z" if is_word else found


def messages() -> Iterator[Row]:
    """The rows of messages.txt."""
    topic = ""
    for block in Path(__file__).with_name("messages.txt").read_text(encoding="utf-8").split("\n\n"):
        if block.startswith("## "):
            topic = block.removeprefix("## ").partition(":")[0]
        elif not block.startswith("#"):
            lines = block.splitlines()
            facts = [line.strip().partition(": ") for line in lines if line.startswith("  ")]
            names = tuple(line for line in lines if not line.startswith("  "))
            yield Row(topic, names, tuple((label, text) for label, _, text in facts))


def metrics() -> Iterator[Row]:
    for group in GROUPS:
        for each in group.metrics:
            facts = {"title": each.title, "unit": each.unit, "tells": each.tells, "look closer": each.worry}
            note = {"section": f"{group.title}. {group.note}".rstrip(" .")}
            yield Row("metrics", (PLACEHOLDER.sub(VARIES, each.name),), _filled(facts | note), is_word=True)


def flags() -> Iterator[Row]:
    for flag, row in old_flags.TABLE.items():
        effect = {"dropped": "left out: it changes nothing", "gone": "refused"}.get(row.kind, " ".join(row.new))
        value = row.value if row.kind == "set" else ""
        facts = {"today": f"{effect} {value}".strip(), "note": row.note}
        yield Row("old_flags", (flag,), _filled(facts), is_word=True)


def replaced() -> Iterator[Row]:
    for seam in (*SEAMS, *CPU_SEAMS):
        facts = {
            "by": seam.replacement,
            "in": seam.where,
            "why": seam.why,
            "until": f"{seam.until} {seam.link}".strip(),
        }
        yield Row("replaced", (f"{seam}",), _filled(facts), is_word=True)


def _filled(facts: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((label, text) for label, text in facts.items() if text)


def all_rows() -> list[Row]:
    return [*messages(), *metrics(), *flags(), *replaced()]


def found(given: str, rows: list[Row]) -> list[Row]:
    """The rows that the text quotes; else those of whose names it is a part; else those with all of its words."""
    if quoted := [row for row in rows if row.is_quoted_in(given)]:
        return quoted
    if parts := [row for row in rows if any(given.casefold() in name.casefold() for name in row.names)]:
        return parts
    words = {word.strip("\"'`.,:;()") for word in given.casefold().split()} - {""}
    return [row for row in rows if words and all(word in row.text() for word in words)]


def printed(row: Row) -> str:
    facts = (
        textwrap.fill(f"{label}: {text}", WIDTH, initial_indent="  ", subsequent_indent="    ")
        for label, text in row.facts
    )
    return "\n".join([f"[{row.topic}] {row.names[0]}", *(f"  or {name}" for name in row.names[1:]), *facts])


def listing(hits: list[Row]) -> str:
    if len(hits) <= MAX_PRINTED:
        return "\n\n".join(map(printed, hits))
    first_lines = [f"  [{row.topic}] {row.names[0]}" for row in hits]
    return "\n".join([f"{len(hits)} rows have these words; give more of the message:", *first_lines])


def run(args: argparse.Namespace) -> None:
    rows = all_rows()
    topics = Counter(row.topic for row in rows)
    given = " ".join(" ".join(args.words).split())
    if not given:
        print("usage: openrlhf-ebpo explain WORDS, or one of these topics:")
        print("\n".join(f"  {name:<10}{count:>4} rows" for name, count in topics.items()))
    elif given in topics:
        print("\n\n".join(printed(row) for row in rows if row.topic == given))
    elif hits := found(given, rows):
        print(listing(hits))
    else:
        raise UsageError("no row has all of these words. Try fewer or others; `openrlhf-ebpo explain` lists the topics")


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="WORDS", help="of a message; a name; or a topic")


_main = command("openrlhf-ebpo explain", ABOUT, add_flags, run)


def main(argv: Sequence[str] | None = None) -> None:
    """Read every word as part of the message, also one that begins with --."""
    given = list(sys.argv[1:] if argv is None else argv)
    _main(given if given[:1] in (["-h"], ["--help"]) else ["--", *given])


if __name__ == "__main__":
    main()
