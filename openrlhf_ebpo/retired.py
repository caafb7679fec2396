"""Answer a name that was withdrawn with one line that says what to do instead: a command, a flag, a value of a flag."""

from __future__ import annotations

RETIRED = {
    "explain": "read docs/errors.md; metrics are in docs/runs.md, replaced parts in `python -m openrlhf_ebpo.seams`",
}


def advice(name: str | None) -> str:
    """Return the line for a name, "" if it was never withdrawn."""
    return f"{name} was withdrawn: {RETIRED[name]}" if name in RETIRED else ""
