"""The settings of runs, from run.json: flat, and compared. Pure.

A run may come from anywhere, so secrets are looked for here once more, though the writer of run.json has left them out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from openrlhf_ebpo.redact import redacted, redacted_text

MAX_SETTINGS = 3000  # of one run
ABOUT = ("model", "dataset", "seed", "schema", "started", "ended")  # of run.json, besides its arguments
PLACES = ("ckpt.path", "ckpt.output_dir", "logger.run_dir", "logger.tensorboard_dir", "run.started", "run.ended")
_DEPTH = 8
TOO_DEEP = "lists in lists, too deep to be shown"


@dataclass(frozen=True)
class Setting:
    """One name and its value in each run, as text; None where a run has none."""

    name: str
    values: tuple[str | None, ...]

    @property
    def differs(self) -> bool:
        """True if the values differ, and are not names of places, which always do and decide nothing."""
        return len(set(self.values)) > 1 and self.name not in PLACES and not self.name.startswith("logger.wandb.")


def settings_of(about: dict) -> dict[str, object]:
    """Dotted name -> value: the arguments, the versions, and what else run.json says about the run."""
    found = flat(_dict(about.get("args")))
    found |= {f"versions.{name}": value for name, value in flat(_dict(about.get("versions"))).items()}
    return found | {f"run.{name}": _redacted(about[name], name) for name in ABOUT if about.get(name) is not None}


def flat(settings: dict, prefix: str = "", depth: int = 0) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in settings.items():
        if len(found) >= MAX_SETTINGS:
            break
        if isinstance(value, dict) and value and depth < _DEPTH:
            found |= flat(value, f"{prefix}{name}.", depth + 1)
        else:
            found[f"{prefix}{name}"] = _redacted(value, f"{prefix}{name}")
    return found


def _redacted(value, name: str):
    try:
        return redacted(value, name, str)  # `shown` looks through the texts
    except RecursionError:
        return TOO_DEEP


def shown(value) -> str:
    """A value as short text, without what looks like a secret."""
    if isinstance(value, float):
        return f"{value:.12g}"  # 9e-07, not 8.999999999999999e-07
    try:
        text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    except RecursionError:
        return TOO_DEEP
    return redacted_text(text[:4000])


def compared(runs: Sequence[dict]) -> list[Setting]:
    """Line up the settings of all runs, by name. runs: as `settings_of` gives them."""
    names = sorted({name for run in runs for name in run})[:MAX_SETTINGS]
    return [Setting(name, tuple(shown(run[name]) if name in run else None for run in runs)) for name in names]


def _dict(value) -> dict:
    return value if isinstance(value, dict) else {}
