"""docs/figures.md, its pictures and its tables, from what `openrlhf-ebpo figures` made.

python scripts/figures_page.py runs/figures
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from tables import with_table

from openrlhf_ebpo.figures.catalogue import figures
from openrlhf_ebpo.files import write_text

DOCS = Path(__file__).parents[1] / "docs"
IMAGES = Path("images") / "figures"  # below docs/
MARK = "figures"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="DIR", help="--output of openrlhf-ebpo figures")
    parser.add_argument("--docs", type=Path, default=DOCS, metavar="DIR", help="default: docs/")
    args = parser.parse_args(argv)
    names = [name for name in figures() if (args.source / f"{name}.md").exists()]
    if not names:
        sys.exit(f"error: {args.source} holds no figure: openrlhf-ebpo figures --output {args.source}")
    (args.docs / IMAGES).mkdir(parents=True, exist_ok=True)
    for name in names:
        for kind in ("png", "csv"):
            shutil.copy(args.source / f"{name}.{kind}", args.docs / IMAGES)
    paragraphs = [
        (args.source / f"{name}.md").read_text().replace(f"]({name}.", f"]({IMAGES}/{name}.") for name in names
    ]
    page = args.docs / "figures.md"
    made_by = "python scripts/figures_page.py DIR"
    write_text(page, with_table(page.read_text(), MARK, page, "\n".join(paragraphs), made_by))


if __name__ == "__main__":
    main()
