"""What the supervisor says of a training's end."""

from __future__ import annotations

import signal
from pathlib import Path

from openrlhf_ebpo.record.resume import groups, newest_whole


def how_to_continue(ckpt_path: str, estimator: str, save_steps: object) -> tuple[bool, str]:
    """Whether a checkpoint is there to go on from, and what to do."""
    found = newest_whole(groups(ckpt_path, estimator))
    if found.lost:
        return False, found.refusal()
    if found.tag is None:
        return False, f"no checkpoint was complete in {ckpt_path} (--ckpt.save_steps is {save_steps})"
    repeat = f"{found.tag} is complete: repeat the command with --ckpt.load_enable to go on from it"
    return True, "\n".join([*found.warnings(), repeat])


def death(status: int, killed_for_memory: int) -> str:
    """How a driver ended that did not say why. killed_for_memory: how often the kernel did so while it ran."""
    if status >= 0:
        return (
            f"the driver ended with status {status} and gave no reason (Ray ends a driver whose cluster is gone); see the "
            "output above"
        )
    words = f"the driver was killed by {signal_name(-status)}"
    if -status != signal.SIGKILL:
        return words
    if killed_for_memory:
        return f"{words}: the machine ran out of memory, and the kernel ended {killed_for_memory} of its processes"
    return f"{words}: by somebody, or because the machine or its container ran out of memory"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def times_killed_for_memory() -> int:
    """How often the kernel has ended a process of this machine for lack of memory since it was started."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
