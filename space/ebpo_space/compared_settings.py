"""The settings of runs, from run.json: flat, and compared. Pure.

A run may come from anywhere, so secrets are looked for here once more, though the writer of run.json has left them out.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from openrlhf_ebpo.redact import redacted, redacted_argv, redacted_text
from openrlhf_ebpo.run.run_log import get_nested

MAX_SETTINGS = 3000  # of one run
ABOUT = ("model", "dataset", "seed", "schema", "started", "ended")  # of run.json, besides its arguments
ARGUMENTS = {"model": "actor.model_name_or_path", "dataset": "data.prompt_dataset", "seed": "train.seed"}  # the same
PLACES = ("ckpt.path", "ckpt.output_dir", "logger.run_dir", "logger.tensorboard_dir", "run.started", "run.ended")
INTERNAL = ("ckpt.attempt", "local_rank")  # numbers of the trainer's own
ESTIMATOR = "algo.advantage.estimator"
MAX_VALUES = 12  # of one setting in the runs of a configuration
MAX_COMMAND_CHARS = 8000
_DEPTH = 8
TOO_DEEP = "lists in lists, too deep to be shown"


@dataclass(frozen=True)
class Setting:
    """One name and its value in each configuration, as text; None where it has none. A configuration of several runs
    may have several values."""

    name: str
    values: tuple[str | None, ...]

    @property
    def differs(self) -> bool:
        """True if the values differ, and are not names of places, which always do and decide nothing."""
        return len(set(self.values)) > 1 and self.name not in PLACES and not self.name.startswith("logger.wandb.")

    @property
    def is_set(self) -> bool:
        return any(value is not None for value in self.values)


def settings_of(about: dict) -> dict[str, object]:
    """Return dotted name -> value: the arguments, the versions, and what else run.json says about the run."""
    found = {name: value for name, value in flat(_dict(about.get("args"))).items() if name not in INTERNAL}
    found |= {f"versions.{name}": value for name, value in flat(_dict(about.get("versions"))).items()}
    more = [name for name in ABOUT if about.get(name) is not None and ARGUMENTS.get(name) not in found]
    return found | {f"run.{name}": _redacted(about[name], name) for name in more}


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
        return redacted(value, name, str)  # `short_text` looks through the texts
    except RecursionError:
        return TOO_DEEP


def short_text(value) -> str:
    """Write a value as short text, without what looks like a secret."""
    if isinstance(value, float):
        return f"{value:.12g}"  # 9e-07, not 8.999999999999999e-07
    try:
        text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    except RecursionError:
        return TOO_DEEP
    return redacted_text(text[:4000])


def compare_settings(configurations: Sequence[Sequence[dict]]) -> list[Setting]:
    """Line up the settings of configurations, the estimator's first. configurations: the runs of each, as
    `settings_of` gives them."""
    names = {name for runs in configurations for run in runs for name in run}
    ordered = sorted(names, key=lambda name: (name != ESTIMATOR, not name.startswith("algo.advantage."), name))
    settings = []
    for name in ordered[:MAX_SETTINGS]:
        values = []
        for runs in configurations:  # None for null as for what is absent
            found = list(dict.fromkeys(short_text(run[name]) for run in runs if run.get(name) is not None))
            more = f" and {len(found) - MAX_VALUES} more" if len(found) > MAX_VALUES else ""
            values.append(", ".join(found[:MAX_VALUES]) + more if found else None)
        settings.append(Setting(name, tuple(values)))
    return settings


def command_of(about: dict) -> str:
    """Return the command line of a run, without secrets; "" where run.json has none."""
    argv = about.get("argv")
    if not isinstance(argv, list) or not all(isinstance(part, str) for part in argv):
        return ""
    return " ".join(shlex.quote(part) for part in redacted_argv(argv))[:MAX_COMMAND_CHARS]


def model_path(about: dict) -> str:
    """Return the name or path of the model that a run starts from; "" where run.json does not say."""
    return str(about.get("model") or get_nested(about, "args", "actor", "model_name_or_path") or "")


def model_of(about: dict) -> str:
    """Return the last part of `model_path`."""
    name = model_path(about)
    return name.rstrip("/").rpartition("/")[2] or name


def _dict(value) -> dict:
    return value if isinstance(value, dict) else {}
