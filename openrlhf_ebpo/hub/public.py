"""Make texts and records fit to leave this machine: no secrets, no home folders, of local paths the last part only.

run.json is written without secrets. It is filtered again before it is published: a run may be older than a flag's name,
and a published copy cannot be taken back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from openrlhf_ebpo.redact import (
    REDACTED,
    redacted,
    redacted_argv,
    redacted_text,
    without_homes,
    without_own_homes,
    without_secrets,
)

# an absolute path of two parts or more, or one from a home folder; not the path of an address, not a closing tag
PATH_IN_TEXT = re.compile(r"(?<![\w.:/~<>}\\])(?:file://)?(?:~(?:/[\w.+@=,%-]+)+|(?:/[\w.+@=,%-]+){2,})/?")
WHOLE_PATH = re.compile(r"(?:file://|~)?(?:/[^/\0\n\t{}<>]+){2,}/?")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def public(value):
    """A copy of a JSON value that may be published; what is kept under a secret name is left out."""
    return redacted(value, clean=public_text)


def public_text(text: str) -> str:
    text = redacted_text(without_paths(text))  # paths first: a secret in one would hide that it is a path
    return without_homes(text)


def public_data(text: str) -> str:
    """Clean a prompt, a response or a label. Only secrets and this user's home folder are taken out: a home folder that
    a model made up is data."""
    return without_own_homes(without_secrets(text))


def public_name(text: str) -> str:
    """A part of a path in a repo."""
    return redacted_text(text).replace(REDACTED, "redacted")


def public_run(run: dict) -> dict:
    """run.json as it may be published."""
    return {**public(run), "argv": redacted_argv(run.get("argv") or [], clean=public_text)}


def without_paths(text: str) -> str:
    text = without_homes(without_own_homes(text))
    if WHOLE_PATH.fullmatch(text):
        return last_part(text)
    return PATH_IN_TEXT.sub(lambda match: last_part(match[0]), text)


def last_part(path: str) -> str:
    return re.split(r"[/\\]+", path.rstrip("/\\"))[-1]


def changes(before, after, place: str = "") -> Iterator[str]:
    """List the places in which two JSON values have different texts: "args.reward.remote_url", "argv"."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        if list(map(str, before)) != list(map(str, after)):
            yield f"{place} (names of keys)".lstrip()
        for key in before.keys() & after.keys():
            yield from changes(before[key], after[key], f"{place}.{key}".lstrip("."))
    elif isinstance(before, (list, tuple)) and isinstance(after, list):
        if any(True for pair in zip(before, after, strict=True) for _ in changes(*pair)):
            yield place
    elif isinstance(before, str) and before != after:
        yield place


class Edited(bytes):
    """A text as it is published. places: where something was taken out of it."""

    places: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str, places: Iterable[str]) -> Edited:
        made = cls(text.encode())
        made.places = tuple(sorted(set(places)))
        return made


def edited_json(before, after) -> Edited:
    return Edited.of(json.dumps(after, indent=2) + "\n", changes(before, after))


def hub_id(name: str | None, near: Path | None = None) -> str | None:
    """`name` if it can only be a repo on the Hub: OWNER/NAME, and no folder of that name is here or above `near`."""
    if not name or not HUB_ID.fullmatch(name):
        return None
    places = [Path(), *(near.absolute().parents if near else [])]
    return None if any((place / name).exists() for place in places) else name


def slug(text: str) -> str:
    """Letters, digits, points, dashes and underscores; fit for a data set's or a configuration's name."""
    return re.sub(r"[^\w.-]+", "-", last_part(text), flags=re.ASCII).strip("-.") or "unnamed"
