"""python -m openrlhf_ebpo.estimator [--write]: the table of estimators that docs/estimator.md holds."""

from __future__ import annotations

import sys
from pathlib import Path

from openrlhf_ebpo.estimator.registry import ESTIMATORS, Entry

PAGE = Path(__file__).parents[2] / "docs" / "estimator.md"
START, END = ("<!-- python -m openrlhf_ebpo.estimator -->\n", "<!-- /python -m openrlhf_ebpo.estimator -->")


def table() -> str:
    head = "| `--advantage_estimator` | in papers | taken from a reward | computed by |\n| --- | --- | --- | --- |\n"
    return head + "".join(row(name, entry) for name, entry in ESTIMATORS.items())


def row(name: str, entry: Entry) -> str:
    paper = f"[{entry.title}](https://arxiv.org/abs/{entry.arxiv})" if entry.arxiv else entry.title
    return f"| `{name}` | {paper} | {entry.baseline} | {'this package' if entry.code else 'OpenRLHF'} |\n"


def written(page: str) -> str:
    """The page with the table as it is now."""
    before, rest = page.split(START)
    return before + START + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(written(PAGE.read_text()))
    else:
        print(table(), end="")
