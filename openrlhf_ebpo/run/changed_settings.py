"""Settings that differ from those that the run was started with last, and which of the two applies once it is resumed.

DeepSpeed restores the optimizer's groups with their numbers, in every ZeRO stage: learning rate, betas, epsilon, weight
decay, momentum. The shape of the schedule (kind, warm-up, minimum, length) is not part of its state and comes from the
command line: from the checkpoint's step on the learning rate is the checkpoint's initial one times what the new shape
has there, a jump where the two differ.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from openrlhf_ebpo.redact import redacted
from openrlhf_ebpo.run import manifest
from openrlhf_ebpo.run.resume import Search
from openrlhf_ebpo.run.run_log import flatten, read_run
from openrlhf_ebpo.run.run_settings import RunSettings

CHECKPOINT, COMMAND = "checkpoint", "command line"
OPTIMIZER = re.compile(r"(actor|critic)\.(adam\.(lr|betas|eps|weight_decay)|muon\.(lr|momentum))")
SCHEDULE = re.compile(
    r"train\.(num_episodes|max_epochs|batch_size)|rollout\.n_samples_per_prompt|data\.max_samples"
    r"|(actor|critic)\.(lr_scheduler|lr_warmup_ratio|min_lr_ratio)"
)
UNIMPORTANT = re.compile(
    r"ckpt\.(load_enable|load_step|attempt)|logger\.(?!rollouts_every$).*|hub\..*|local_rank|use_ms"
)
MAX_VALUE_CHARS = 60


class Change(NamedTuple):
    """applies: CHECKPOINT or COMMAND."""

    setting: str
    was: Any
    now: Any
    applies: str


def resume(args: SimpleNamespace, settings: RunSettings, found: Search | None) -> tuple[dict, list[str]]:
    """Compare a resumed command with the run. Where the checkpoint's setting applies it is set in `args`, in place:
    run.json and the next manifest say what is trained with.

    Args:
        args: upstream's, nested.
        settings: with `force` the run in the run directory is moved aside, and none of its settings count.
        found: the checkpoint; None if the command begins a run.

    Returns:
        The checkpoint and the changes, for run.json; and lines for the person who resumes.
    """
    if found is None:
        return {}, []
    if found.tag is None:
        return {}, [f"no checkpoint is complete in {settings.ckpt_path}: training begins at step 0"]
    was = {} if settings.force else (read_run(settings.run_dir) or {}).get("args", {})
    saved = manifest.read(found.folders[0] / found.tag).settings
    differ = find_changes(was, saved, redacted(args))
    for each in differ:
        if each.applies == CHECKPOINT:
            *section, name = each.setting.split(".")
            setattr(functools.reduce(getattr, section, args), name, each.was)
    lines = [*found.warnings(), f"resuming from {found.tag} of {settings.ckpt_path}", *format_changes(differ)]
    lines += schedule_notices(differ, args.actor.lr_scheduler)
    changed = {each.setting: {"was": each.was, "now": each.now, "applies": each.applies} for each in differ}
    return {"checkpoint": found.tag, "changed": changed}, lines


def optimizer_settings(args: Mapping) -> dict[str, Any]:
    """Return the settings that a checkpoint restores, by the flags' names; for its manifest."""
    return {name: value for name, value in flatten(args).items() if OPTIMIZER.fullmatch(name)}


def find_changes(was: Mapping, saved: Mapping, now: Mapping) -> list[Change]:
    """Compare settings.

    Args:
        was, now: settings as they were when the run was started last, and of this command; nested.
        saved: those of the optimizer in the checkpoint's manifest; they take precedence over `was`.
    """
    here, before = flatten(now), flatten(was)
    for name, value in saved.items():  # the checkpoint may have been pulled from anywhere
        numbers = value if isinstance(value, list) else [value]
        if OPTIMIZER.fullmatch(name) and all(type(each) in (int, float) for each in numbers):
            before[name] = value
    differ = [name for name in sorted(here.keys() & before.keys()) if before[name] != here[name]]
    return [
        Change(name, before[name], here[name], CHECKPOINT if OPTIMIZER.fullmatch(name) else COMMAND)
        for name in differ
        if not UNIMPORTANT.fullmatch(name)
    ]


def schedule_notices(differ: list[Change], kind: str) -> list[str]:
    """Warn of settings that change the length or the shape of the learning rate's schedule. kind: of the schedule."""
    changed = [f"--{each.setting}" for each in differ if SCHEDULE.fullmatch(each.setting)]
    if not changed or (kind.startswith("constant") and not any(name.endswith("lr_scheduler") for name in changed)):
        return []
    return [
        f"warning: {', '.join(changed)} changed the schedule of the learning rate ({kind}), which applies from now "
        "on: the learning rate jumps to where the new schedule is. One that had reached its end rises again"
    ]


def format_changes(found: list[Change]) -> list[str]:
    """Return lines for the person who resumes; none if nothing has changed."""
    lines = ["settings that have changed since the run was started last:"] if found else []
    for each in found:
        was, now = _shorten(each.was), _shorten(each.now)
        applies = f"{was} applies, which the optimizer in the checkpoint keeps" if each.applies == CHECKPOINT else ""
        lines.append(f"  --{each.setting} was {was}, is now {now}{applies and f': {applies}'}")
    return lines


def _shorten(value: Any) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"…{text[1 - MAX_VALUE_CHARS :]}"
