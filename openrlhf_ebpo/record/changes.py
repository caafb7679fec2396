"""Settings that are not what they were when a run was started last, and which of the two applies once it is resumed.

DeepSpeed restores the optimizer's groups with their numbers, in every ZeRO stage: learning rate, betas, epsilon, weight decay,
momentum. The shape of the schedule (kind, warm-up, minimum, length) is no state, and comes from the command line; it goes
on at the checkpoint's step, from the checkpoint's learning rate.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from openrlhf_ebpo.record import manifest
from openrlhf_ebpo.record.resume import Search
from openrlhf_ebpo.record.run_log import read_run
from openrlhf_ebpo.redact import redacted

CHECKPOINT, COMMAND = "checkpoint", "command line"
OF_THE_OPTIMIZER = re.compile(r"(actor|critic)\.(adam\.(lr|betas|eps|weight_decay)|muon\.(lr|momentum))")
NOTES = {
    "train.seed": "the order of this episode's prompts is the checkpoint's",
    **dict.fromkeys(
        ("data.prompt_dataset", "data.max_samples"),
        "which row comes next is a number, which the checkpoint counts on from",
    ),
    **dict.fromkeys(
        ("ds.zero_stage", "actor.num_nodes", "actor.num_gpus_per_node", "actor.optim", "ds.lora.rank"),
        "the checkpoint may not load with another",
    ),
    **dict.fromkeys(
        ("train.num_episodes", "actor.lr_scheduler", "actor.lr_warmup_ratio", "actor.min_lr_ratio"),
        "the schedule goes on at the checkpoint's step",
    ),
}
UNIMPORTANT = re.compile(
    r"ckpt\.(load_enable|load_step|attempt)|logger\.(?!rollouts_every$).*|hub\..*|local_rank|use_ms"
)
LONGEST = 60  # characters of a value


def resume(args: SimpleNamespace, found: Search | None, force: bool) -> tuple[dict, list[str]]:
    """From which checkpoint a command goes on, and which settings have changed: for run.json, and in words. Where the
    checkpoint's applies it becomes the setting, in place: run.json and the next manifest say what is trained with.

    Args:
        found: the checkpoint; None where the command begins a run.
        force: the run that is in the run directory is moved aside, and none of its settings count.
    """
    if found is None:
        return {}, []
    if found.tag is None:
        return {}, [f"no checkpoint is complete in {args.ckpt.path}: training begins at step 0"]
    was = {} if force else (read_run(args.logger.run_dir) or {}).get("args", {})
    differ = changes(was, manifest.settings(found.folders[0] / found.tag), redacted(args))
    for each in differ:
        if each.applies == CHECKPOINT:
            *section, name = each.setting.split(".")
            setattr(functools.reduce(getattr, section, args), name, each.was)
    lines = [*found.warnings(), f"resuming from {found.tag} of {args.ckpt.path}", *table(differ)]
    return {"checkpoint": found.tag, "changed": recorded(differ)}, lines


class Change(NamedTuple):
    """applies: CHECKPOINT or COMMAND."""

    setting: str
    was: Any
    now: Any
    applies: str


def flat(args: Mapping, prefix: str = "") -> dict[str, Any]:
    """Nested settings by their flags' names; an empty section has none."""
    found: dict[str, Any] = {}
    for name, value in args.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found


def optimizer_settings(args: Mapping) -> dict[str, Any]:
    """What a checkpoint keeps, by the flags' names; for its manifest."""
    return {name: value for name, value in flat(args).items() if OF_THE_OPTIMIZER.fullmatch(name)}


def changes(was: Mapping, saved: Mapping, now: Mapping) -> list[Change]:
    """What differs.

    Args:
        was, now: settings as they were when the run was started last, and of this command; nested.
        saved: those of the optimizer that the checkpoint's manifest names; they come before what `was` says.
    """
    here = flat(now)
    before = flat(was) | {
        name: value for name, value in saved.items() if OF_THE_OPTIMIZER.fullmatch(name) and _numbers(value)
    }
    differ = (
        name for name in here if name in before and before[name] != here[name] and not UNIMPORTANT.fullmatch(name)
    )
    return [
        Change(name, before[name], here[name], CHECKPOINT if OF_THE_OPTIMIZER.fullmatch(name) else COMMAND)
        for name in sorted(differ)
    ]


def _numbers(value: Any) -> bool:
    return all(type(each) in (int, float) for each in (value if isinstance(value, list) else [value]))


def recorded(found: Iterable[Change]) -> dict[str, dict]:
    """For run.json."""
    return {each.setting: {"was": each.was, "now": each.now, "applies": each.applies} for each in found}


def table(found: list[Change]) -> list[str]:
    """Lines for the person who resumes; none where nothing has changed."""
    if not found:
        return []
    rows = [("setting", "was", "is now", "applies"), *(_row(each) for each in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return ["settings that have changed since the run was started last:", *(f"  {line}" for line in lines)]


def _row(each: Change) -> tuple[str, ...]:
    kept = each.applies == CHECKPOINT
    words = f"{_shown(each.was)}: the optimizer in the checkpoint keeps it" if kept else _shown(each.now)
    note = NOTES.get(each.setting.replace("critic.", "actor.", 1), "")
    return f"--{each.setting}", _shown(each.was), _shown(each.now), f"{words}; {note}" if note else words


def _shown(value: Any) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= LONGEST else f"…{text[1 - LONGEST :]}"
