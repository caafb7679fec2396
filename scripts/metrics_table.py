"""The tables of metrics in docs/run_directory.md, from the catalogue.

python scripts/metrics_table.py --write
python scripts/metrics_table.py --check     exit status 1 where the page is not what the catalogue says
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from openrlhf_ebpo.files import write_text
from openrlhf_ebpo.record.catalogue import GROUPS, Metric

PAGE = Path(__file__).parents[1] / "docs" / "run_directory.md"
BEGIN = (
    "<!-- metrics: written by `python scripts/metrics_table.py --write` from openrlhf_ebpo/record/catalogue.py -->\n"
)
END = "<!-- end of metrics -->\n"
HEAD = "| name | title | unit | what it tells | when to look closer |\n| --- | --- | --- | --- | --- |"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write the tables into the page")
    what.add_argument("--check", action="store_true", help="only compare")
    parser.add_argument("--page", type=Path, default=PAGE, help="default: docs/run_directory.md")
    options = parser.parse_args(argv)
    text = options.page.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        sys.exit(f"error: {options.page} needs these two lines, once and in this order:\n{BEGIN}{END}".rstrip())
    wanted = with_tables(text)
    if options.write:
        write_text(options.page, wanted)
    elif wanted != text:
        sys.exit(f"error: {options.page} is not what the catalogue says; call {Path(__file__).name} with --write")


def with_tables(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{tables()}\n{END}{rest.partition(END)[2]}"


def tables() -> str:
    blocks = []
    for group in GROUPS:
        rows = "\n".join(map(row, group.metrics))
        blocks += [f"### {group.title}", *filter(None, [group.note]), f"{HEAD}\n{rows}"]
    return "\n\n".join(blocks) + "\n"


def row(metric: Metric) -> str:
    return f"| `{metric.name}` | {metric.title} | {metric.unit} | {metric.tells} | {metric.worry} |".replace(
        "|  |", "| |"
    )


if __name__ == "__main__":
    main()
