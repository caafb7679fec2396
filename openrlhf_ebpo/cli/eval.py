"""openrlhf-ebpo eval: measure models (`eval FLAGS`), write a report of results (`eval report`), score a file (`eval score`)."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

FORMS = ("run", "report", "score")


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    named = bool(argv) and argv[0] in FORMS
    form, rest = (argv[0], argv[1:]) if named else ("run", argv)
    importlib.import_module(f"{package()}.{form}").main(rest)


def package() -> str:
    """Where the harness is: in this package when installed; in a checkout in the folder eval/ beside it."""
    if importlib.util.find_spec("openrlhf_ebpo.eval"):
        return "openrlhf_ebpo.eval"
    sys.path.insert(0, str(Path(__file__).parents[2]))
    return "eval"


if __name__ == "__main__":
    main()
