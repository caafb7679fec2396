"""Remember where the parts of a run are on the Hub, so that each card can name the others: <run>/hub/published.json."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.hub import outbox
from openrlhf_ebpo.hub.markdown import Markdown
from openrlhf_ebpo.hub.places import check_repo_id

KINDS = {  # of repo -> what a card calls it, and where the Hub has it
    "model": ("the model", ""),
    "run": ("the record of the run", "datasets/"),
    "space": ("the Space that shows it", "spaces/"),
}


def note(run_dir: Path, kind: str, repo: str) -> None:
    """Remember where something of the run went. It only helps cards: a full disk must not stop a push."""
    if (run_dir / "run.json").is_file():
        with contextlib.suppress(OSError):
            write_json(_path(run_dir), {**known(run_dir), kind: repo})


def known(run_dir: Path, repo: str | None = None) -> dict[str, str]:
    """kind -> repo of what is on the Hub. repo: where the model goes, if it is known."""
    try:
        found = json.loads(_path(run_dir).read_text())
    except (OSError, ValueError, RecursionError):
        found = {}
    found = found if isinstance(found, dict) else {}
    steps = outbox.read_state(run_dir)["steps"].values()
    model = repo or next((row.get("repo") for row in reversed(list(steps)) if row["state"] == "pushed"), None)
    return {kind: name for kind, name in {**found, "model": model}.items() if kind in KINDS and _is_repo(name)}


def links(run_dir: Path, own: str, repo: str | None = None) -> Markdown:
    """Links to all of it but the card's own kind; "" where there is nothing."""
    found = known(run_dir, repo)
    places = [(KINDS[kind], found[kind]) for kind in KINDS if kind in found and kind != own]
    return Markdown(", ".join(f"[{words}](https://huggingface.co/{prefix}{name})" for (words, prefix), name in places))


def _path(run_dir: Path) -> Path:
    return run_dir / "hub" / "published.json"


def _is_repo(name) -> bool:
    try:
        check_repo_id(name)
        return True
    except (UsageError, TypeError):
        return False
