"""Read and write the report of an output: how it was made, by which a repeated command knows that it is done.

Of a file it is OUTPUT.report.json, of a folder report.json in it.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.progress import changes_between

NAME = "report.json"


def path_of(output: str | Path) -> Path:
    return Path(output, NAME) if Path(output).is_dir() else Path(f"{output}.{NAME}")


def read(output: str | Path) -> dict:
    """Return the report; empty if it is missing or not JSON."""
    try:
        found = json.loads(path_of(output).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_finished(output: str | Path, settings: dict) -> dict | None:
    """Return the report of an output that was made with these settings; None without an output.

    Raises:
        UsageError: the output exists and is not from this command with these settings.
    """
    place = Path(output)
    if not place.exists() or (place.is_dir() and not any(place.iterdir())):
        return None
    found = read(output)
    before = found.get("settings", {})
    if changed := changes_between(before, settings):
        why = "; ".join(changed.values()) if before else "the folder holds no result of this command"
        raise other_output(output, why)
    return found


def other_output(output: str | Path, why: str) -> UsageError:
    return UsageError(f"--output {output} holds something else ({why}): name another, or replace it with --force")


def training_command(
    dataset: str | Path,
    *flags: str,
    keys: tuple[str, str] = ("prompt", "label"),
    chat: bool = False,
    validation: str | Path | None = None,
) -> str:
    """Return the command that trains on a file of ours. keys: its columns of prompts and labels. chat: its prompts are
    messages. validation: a file of held-out questions."""
    parts = ["openrlhf-ebpo train", *flags, f"--data.prompt_dataset {shlex.quote(str(dataset))}"]
    parts.append("--data.input_key {} --data.label_key {}".format(*map(shlex.quote, keys)))
    parts += ["--data.apply_chat_template"] * chat
    parts += [f"--eval.dataset {shlex.quote(str(validation))}"] * bool(validation)
    return " ".join([*parts, "..."])
