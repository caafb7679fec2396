"""Make texts and records fit to leave this machine: no secrets, no home folders, of local paths the last part only.

run.json is written without secrets. It is filtered again before it is published: a run may be older than a flag's name,
and a published copy cannot be taken back.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import read_json_lines
from openrlhf_ebpo.hub.content import LocalFile, read_bytes
from openrlhf_ebpo.redact import redacted, redacted_argv, redacted_text, without_homes, without_own_homes

# an absolute path of two parts or more, or one from a home folder; not the path of an address, not a closing tag
PATH_IN_TEXT = re.compile(r"(?<![\w.:/~<>}\\])(?:file://)?(?:~(?:/[\w.+@=,%-]+)+|(?:/[\w.+@=,%-]+){2,})/?")
WHOLE_PATH = re.compile(r"(?:file://|~)?(?:/[^/\0\n\t{}<>]+){2,}/?")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
RUN_ID = re.compile(r"[0-9a-f]{8,64}")


def public(value):
    """A copy of a JSON value that may be published; what is kept under a secret name is left out."""
    return redacted(value, clean=public_text)


def public_text(text: str) -> str:
    """`text` without secrets and home folders; of absolute paths the last part stays."""
    text = without_homes(without_own_homes(text))
    if WHOLE_PATH.fullmatch(text):
        text = last_part(text)
    # paths first: a secret in one would hide that it is a path
    return without_homes(redacted_text(PATH_IN_TEXT.sub(lambda match: last_part(match[0]), text)))


def public_run(run: dict) -> dict:
    """run.json as it may be published."""
    return {**public(run), "argv": redacted_argv(run.get("argv") or [], clean=public_text)}


def last_part(path: str) -> str:
    return re.split(r"[/\\]+", path.rstrip("/\\"))[-1]


def public_json(file: LocalFile) -> bytes:
    """A record of a run, JSON or JSON lines, as it may be published. A line that is still being written stays behind.

    Raises:
        UsageError: it is damaged.
    """
    try:
        if file.path.suffix == ".jsonl":
            return "".join(json.dumps(public(row)) + "\n" for row in read_json_lines(file.path)).encode()
        found = json.loads(read_bytes(file))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file.path} is damaged ({error}); repair it, or move it away") from error
    return json_bytes(public_run(found) if isinstance(found, dict) and "argv" in found else public(found))


def json_bytes(value) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def hub_id(name: str | None, near: Path | None = None) -> str | None:
    """`name` if it can only be a repo on the Hub: OWNER/NAME, and no folder of that name is here or above `near`."""
    if not name or not HUB_ID.fullmatch(name):
        return None
    places = [Path(), *(near.absolute().parents if near else [])]
    return None if any((place / name).exists() for place in places) else name


def slug(text: str) -> str:
    """Letters, digits, points, dashes and underscores; fit for a data set's or a configuration's name."""
    return re.sub(r"[^\w.-]+", "-", last_part(text), flags=re.ASCII).strip("-.") or "unnamed"


def run_tag(run: dict) -> list[str]:
    """The tag by which everything of a run is found on the Hub; none for a run without an id."""
    known = run.get("id")
    return [f"ebpo-run-{known}"] if isinstance(known, str) and RUN_ID.fullmatch(known) else []


def step_tag(step: int) -> str:
    """Name of a step's tag on the Hub."""
    return f"step-{step:06d}"
