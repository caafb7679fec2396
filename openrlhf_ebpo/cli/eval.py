"""openrlhf-ebpo eval: measure models (`eval FLAGS`), write a report of results (`eval report`), score a file (`eval score`)."""

from __future__ import annotations

import sys

from openrlhf_ebpo.harness import harness

FORMS = ("run", "report", "score")


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    named = bool(argv) and argv[0] in FORMS
    form, rest = (argv[0], argv[1:]) if named else ("run", argv)
    harness(form).main(rest)


if __name__ == "__main__":
    main()
