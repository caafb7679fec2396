"""EstimatorConfig: the settings of an estimator, as the --algo.advantage.ebpo.* flags give them."""

from __future__ import annotations

import math
from dataclasses import dataclass

FLAG = "--algo.advantage.ebpo"


@dataclass(frozen=True)
class EstimatorConfig:
    """Settings of an estimator computed here. `preset` and the parts (from `history` on; None: as the preset has it)
    are EBPO's, which checks them (presets.py); the others hold for every estimator.

    Raises:
        ValueError: a setting of every estimator makes no sense; the message names the flag.
    """

    n_samples_per_prompt: int
    preset: str = "paper"
    fail_reward: float = 0.0
    pass_reward: float = 1.0
    reward_clip_range: tuple[float, float] | None = None
    reset_prior: bool = False
    init_prior: str | None = None
    history: str | None = None
    half_life: float | None = None
    order: str | None = None
    within_variance: str | None = None
    between_variance: str | None = None
    prior: str | None = None
    normalise: str | None = None
    clusters: str | None = None
    saturated: str | None = None
    weights: str | None = None

    def __post_init__(self):
        if not (self.pass_reward > self.fail_reward and math.isfinite(self.pass_reward - self.fail_reward)):
            raise ValueError(
                f"{FLAG}.pass_reward ({self.pass_reward}) must be greater than {FLAG}.fail_reward "
                f"({self.fail_reward}), and both finite"
            )
        if self.reward_clip_range and not self.reward_clip_range[0] < self.reward_clip_range[1]:
            raise ValueError(f"--reward.clip_range {self.reward_clip_range}: give LOW HIGH with LOW < HIGH")

    @property
    def reward_range(self) -> float:
        return self.pass_reward - self.fail_reward

    @classmethod
    def from_args(cls, args) -> EstimatorConfig:
        """Read upstream's nested arguments, which hold our flags under `args.algo.advantage.ebpo`."""
        return cls(n_samples_per_prompt=args.rollout.n_samples_per_prompt, **vars(args.algo.advantage.ebpo))
