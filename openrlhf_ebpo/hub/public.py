"""What may leave this machine: no secrets, and of local paths the last part only.

run.json is written without secrets already; what is published is looked through once more, because a run may be older
than a flag's name, and because a published copy cannot be taken back.
"""

from __future__ import annotations

import re
from pathlib import Path

from openrlhf_ebpo.redact import REDACTED, redacted, redacted_argv, redacted_text

# an absolute path of two parts or more; not the path of an address, not a closing tag
PATH_IN_TEXT = re.compile(r"(?<![\w.:/~<>}\\])(?:file://)?~?(?:/[\w.+@=,%-]+){2,}/?")
WHOLE_PATH = re.compile(r"(?:file://|~)?(?:/[^/\0\n\t{}<>]+){2,}/?")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def public(value):
    """A copy of a JSON value that may be published; what is kept under a secret name is left out."""
    return redacted(value, clean=public_text)


def public_text(text: str) -> str:
    return redacted_text(without_paths(text))  # paths first: a secret in one would hide that it is a path


def public_name(text: str) -> str:
    """A part of a path in a repo."""
    return redacted_text(text).replace(REDACTED, "redacted")


def public_run(run: dict) -> dict:
    """run.json as it may be published."""
    return {**public(run), "argv": redacted_argv(run.get("argv") or [], clean=public_text)}


def without_paths(text: str) -> str:
    if WHOLE_PATH.fullmatch(text):
        return last_part(text)
    return PATH_IN_TEXT.sub(lambda match: last_part(match[0]), text)


def last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def hub_id(name: str | None, near: Path | None = None) -> str | None:
    """`name` if it can only be a repo on the Hub: OWNER/NAME, and no folder of that name is here or above `near`."""
    if not name or not HUB_ID.fullmatch(name):
        return None
    places = [Path(), *(near.absolute().parents if near else [])]
    return None if any((place / name).exists() for place in places) else name


def slug(text: str) -> str:
    """Letters, digits, points, dashes and underscores; fit for a data set's or a configuration's name."""
    return re.sub(r"[^\w.-]+", "-", last_part(text), flags=re.ASCII).strip("-.") or "unnamed"
