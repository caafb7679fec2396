"""After which steps a training saves (every --ckpt.save_steps, and so many minutes after the last save), and the client
states of a DeepSpeed checkpoint: what the trainer adds, and the estimator state that it starts from."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator import stored
from openrlhf_ebpo.estimator.contract import Estimator
from openrlhf_ebpo.run.manifest import step_of
from openrlhf_ebpo.run.resume import BEST

MINUTES = "ckpt.save_minutes"
STATE_KEY = "ebpo_prior"  # in DeepSpeed's client_states
KL_COEFFICIENT = "ebpo_kl_coefficient"  # also there, with --algo.kl.target
# upstream's `fit` reads these of the client states
CLIENT_STATE = ("episode", "global_step", "total_consumed_prompts", "data_loader_state_dict")


def add_flag(group) -> None:
    group.add_argument(
        f"--{MINUTES}",
        type=float,
        default=0.0,
        metavar="MINUTES",
        help="also save a checkpoint after the first step that ends MINUTES after the last save (or the start); "
        "models are exported only every --ckpt.save_steps. 0: off",
    )


def check_minutes(ckpt) -> None:
    """Raises UsageError if the minutes are negative, infinite or NaN, or what a resume needs would not be saved. ckpt:
    the section of upstream's nested arguments."""
    minutes = ckpt.save_minutes
    if not 0 <= minutes < math.inf:
        raise UsageError(f"--{MINUTES} is {minutes}; give minutes, or 0 to save by --ckpt.save_steps alone")
    if minutes and ckpt.disable_ds:
        raise UsageError(
            f"--{MINUTES} saves what a resume needs, and --ckpt.disable_ds saves none of it: leave one out"
        )


class SaveTimes:
    """Decides when to save.

    Args:
        ckpt: the section of the settings; `save_steps` may be infinite, as upstream makes of -1.
        clock: seconds, of a clock that is never set back.
    """

    def __init__(self, ckpt: SimpleNamespace, clock: Callable[[], float] = time.monotonic):
        self.ckpt, self.clock = ckpt, clock
        self.restart()

    def restart(self) -> None:
        """Count the minutes from now: training begins, or a save has ended."""
        self.began = self.clock()

    def is_due(self, step: int) -> bool:
        seconds = 60 * self.ckpt.save_minutes
        return step % self.ckpt.save_steps == 0 or 0 < seconds <= self.clock() - self.began


def is_exported(ckpt: SimpleNamespace, tag: str) -> bool:
    """True if saving `tag` also exports a model (--ckpt.save_hf). Exported models are never deleted, so what is saved
    by time or on request, to resume from, has none."""
    by_steps = ckpt.save_steps > 0 and step_of(tag) % ckpt.save_steps == 0
    return ckpt.save_hf and (by_steps or tag.startswith(BEST))


@contextlib.contextmanager
def force_save(ckpt: SimpleNamespace, saves: bool) -> Iterator[None]:
    """Make upstream, which asks `step % save_steps == 0` alone, save inside or not, whatever the step."""
    steps, ckpt.save_steps = ckpt.save_steps, 1 if saves else math.inf
    try:
        yield
    finally:
        ckpt.save_steps = steps


def starting_state(states: dict, estimator: Estimator, ckpt_path: str) -> Any:
    """The estimator's state that training begins with, given the checkpoint's states.

    A checkpoint's own comes first, so that a command can be repeated to resume; then --algo.advantage.ebpo.init_prior;
    a run that starts at step 0 without either starts with the initial one.

    Raises:
        PriorMismatch: resuming without a stored state, or with one of another estimator.
    """
    config = estimator.config
    resumed = states.get("global_step", 0) > 0
    if resumed and STATE_KEY in states and not config.reset_prior:
        return stored.unpack(estimator, states[STATE_KEY], f"the checkpoint in {ckpt_path}")
    if config.init_prior:
        return stored.read(estimator, config.init_prior)
    if resumed and not config.reset_prior:
        raise stored.PriorMismatch(
            f"the checkpoint in {ckpt_path} was saved by another estimator: no prior in it. {stored.REMEDY}"
        )
    return estimator.initial()
