"""EstimatorConfig: every --algo.advantage.ebpo.* flag, its default, its check."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

from openrlhf_ebpo.estimator.presets import PRESETS

FLAG = "--algo.advantage.ebpo"


@dataclass(frozen=True)
class EstimatorConfig:
    """What an estimator computed here needs to know, checked. All but the preset holds for every estimator.

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

    @classmethod
    def from_args(cls, args) -> EstimatorConfig:
        """From upstream's nested arguments, which hold our flags under `args.algo.advantage.ebpo`."""
        return cls(n_samples_per_prompt=args.rollout.n_samples_per_prompt, **vars(args.algo.advantage.ebpo))


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "EBPO estimator",
        "empirical-Bayes baseline, arXiv 2602.05165; used with --advantage_estimator ebpo. All but the preset also hold for "
        "an estimator of your own (--advantage_estimator MODULE:NAME)",
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
