"""The table in docs/ that is made from code: the estimators.

python scripts/docs_tables.py --write
python scripts/docs_tables.py --check     exit status 1 where a page is not what the code says
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from openrlhf_ebpo.estimator.registry import ESTIMATORS, Entry
from openrlhf_ebpo.files import write_text

DOCS = Path(__file__).parents[1] / "docs"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write the tables into their pages")
    what.add_argument("--check", action="store_true", help="only compare")
    parser.add_argument("--docs", type=Path, default=DOCS, metavar="DIR", help="default: docs/")
    options = parser.parse_args(argv)
    for name, (page, made) in TABLES.items():
        path = options.docs / page
        text = path.read_text()
        wanted = with_table(text, name, path, made())
        if options.write:
            write_text(path, wanted)
        elif wanted != text:
            sys.exit(f"error: {path} is not what the code says: python scripts/docs_tables.py --write")


def with_table(text: str, name: str, page: Path, table: str, by: str = "python scripts/docs_tables.py --write") -> str:
    """The text of a page with this table between its two comments."""
    begin, end = f"<!-- {name}: written by `{by}` -->\n", f"<!-- end of {name} -->\n"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        sys.exit(f"error: {page} needs these two lines, in this order:\n{begin}{end}".rstrip())
    return f"{before}{begin}\n{table.rstrip()}\n\n{end}{after}"


def estimators() -> str:
    head = "| `--advantage_estimator` | in papers | taken from a reward | computed by |\n| --- | --- | --- | --- |"
    return "\n".join([head, *(_estimator(name, entry) for name, entry in ESTIMATORS.items())])


def _estimator(name: str, entry: Entry) -> str:
    paper = f"[{entry.title}](https://arxiv.org/abs/{entry.arxiv})" if entry.arxiv else entry.title
    return f"| `{name}` | {paper} | {entry.baseline} | {'OpenRLHF' if entry.upstream else 'this package'} |"


TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "estimators": ("estimator.md", estimators),
}

if __name__ == "__main__":
    main()
