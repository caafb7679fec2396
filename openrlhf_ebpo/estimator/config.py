"""EBPOConfig: every --algo.advantage.ebpo.* flag, its default, its check."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

FLAG = "--algo.advantage.ebpo"

# What each preset chooses, in the words of the variants' table (docs/estimator.md). The choices are stored
# with the prior, so that a run can only resume with the estimator it began with.
PRESETS = {
    "paper": {
        "history": "run",
        "order": "update_then_use",
        "within_variance": "pooled",
        "between_variance": "raw",
        "prior": "gaussian",
        "normalise": "batch",
    },
}

# The values of each choice that prior.py, shrinkage.py and advantage.py compute. A value is added here with its code.
IMPLEMENTED = {
    "history": ("run",),
    "order": ("update_then_use",),
    "within_variance": ("pooled",),
    "between_variance": ("raw",),
    "prior": ("gaussian",),
    "normalise": ("batch",),
}


@dataclass(frozen=True)
class EBPOConfig:
    """What the estimator needs to know, checked.

    Raises:
        ValueError: a flag's value makes no sense; the message names the flag.
    """

    n_samples_per_prompt: int
    preset: str = "paper"
    fail_reward: float = 0.0
    pass_reward: float = 1.0
    reward_clip_range: tuple[float, float] | None = None
    reset_prior: bool = False
    init_prior: str | None = None

    def __post_init__(self):
        if self.preset not in PRESETS:
            raise ValueError(f"{FLAG}.preset: unknown preset {self.preset!r}, choose from {sorted(PRESETS)}")
        _check_implemented(self.preset)
        if self.n_samples_per_prompt < 2:
            raise ValueError(
                f"--rollout.n_samples_per_prompt is {self.n_samples_per_prompt}: ebpo needs at least 2. It estimates "
                "how noisy a group's mean is from the spread inside groups, and one response has none."
            )
        if not (self.pass_reward > self.fail_reward and math.isfinite(self.pass_reward - self.fail_reward)):
            raise ValueError(
                f"{FLAG}.pass_reward ({self.pass_reward}) must be greater than {FLAG}.fail_reward ({self.fail_reward}), "
                "and both finite"
            )
        if self.reward_clip_range and not self.reward_clip_range[0] < self.reward_clip_range[1]:
            raise ValueError(f"--reward.clip_range {self.reward_clip_range}: give LOW HIGH with LOW < HIGH")

    @property
    def reward_range(self) -> float:
        return self.pass_reward - self.fail_reward

    def identity(self) -> dict:
        """What a stored prior must agree with: raw τ² depends on G, the moments on the reward's scale."""
        return {
            "estimator": "ebpo",
            "variant": PRESETS[self.preset],
            "n_samples_per_prompt": self.n_samples_per_prompt,
            "fail_reward": self.fail_reward,
            "pass_reward": self.pass_reward,
        }

    @classmethod
    def from_args(cls, args) -> EBPOConfig:
        """From upstream's nested arguments, which hold our flags under `args.algo.advantage.ebpo`."""
        return cls(n_samples_per_prompt=args.rollout.n_samples_per_prompt, **vars(args.algo.advantage.ebpo))


def _check_implemented(preset: str) -> None:
    """A preset that no code implements would silently train another one under its name."""
    choices = PRESETS[preset]
    if choices.keys() != IMPLEMENTED.keys():
        raise ValueError(f"{FLAG}.preset {preset} must choose exactly {', '.join(IMPLEMENTED)}")
    for choice, value in choices.items():
        if value not in IMPLEMENTED[choice]:
            there = ", ".join(IMPLEMENTED[choice])
            raise ValueError(f"{FLAG}.preset {preset}: {choice} {value!r} is not implemented, there is {there}")


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "EBPO estimator", "empirical-Bayes baseline, arXiv 2602.05165; used with --advantage_estimator ebpo"
    )
    group.add_argument(
        f"{FLAG}.preset",
        type=str,
        default="paper",
        choices=sorted(PRESETS),
        help="which published form: 'paper' keeps moments of the whole run, updates them and then uses them",
    )
    group.add_argument(
        f"{FLAG}.fail_reward", type=float, default=0.0, metavar="REWARD", help="reward of a failed response"
    )
    group.add_argument(
        f"{FLAG}.pass_reward", type=float, default=1.0, metavar="REWARD", help="reward of a fully correct response"
    )
    group.add_argument(
        f"{FLAG}.reset_prior",
        action="store_true",
        default=False,
        help="when resuming, leave the checkpoint's prior out (at every resume, while the flag is there)",
    )
    group.add_argument(
        f"{FLAG}.init_prior",
        type=str,
        default=None,
        metavar="PATH",
        help="start from this prior.json where the checkpoint has none, or none is loaded (for example with "
        "--ckpt.disable_ds, which cannot resume)",
    )
