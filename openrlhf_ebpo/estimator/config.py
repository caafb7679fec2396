"""EstimatorConfig: the settings of an estimator, and the presets that choose the parts of EBPO.

The choices are stored with the prior, so that a run can only resume with the estimator it began with. The code of each
choice is in ebpo.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

EBPO_FLAG = "--algo.advantage.ebpo"

PAPER = {
    "history": "run",
    "order": "update_then_use",
    "within_variance": "pooled",
    "between_variance": "raw",
    "prior": "gaussian",
    "normalise": "batch",
    "clusters": "run",
    "saturated": "shrink",
    "weights": "none",
}
CORRECTED = {**PAPER, "history": "adaptive", "within_variance": "within", "between_variance": "corrected"}
PRESETS = {
    "paper": PAPER,
    "release": {**PAPER, "history": "batch"},
    "revision": {**PAPER, "order": "lagged", "within_variance": "within", "prior": "beta_binomial"},
    "corrected": CORRECTED,
    "robust": {**CORRECTED, "weights": "score", "normalise": "scale"},  # not the paper's: docs/results.md
}
OPTIONAL = ("clusters", "saturated", "weights")  # parts that are not stored where they are as in the paper


@dataclass(frozen=True)
class EstimatorConfig:
    """Settings of an estimator computed here. `preset` and the parts (from `history` on; None: as the preset has it)
    are EBPO's; the others hold for every estimator. Of the parts, only `half_life` (with which `history` is half_life)
    and `clusters` have flags.

    Raises:
        ValueError: a setting of every estimator is out of range; the message names the flag.
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
                f"{EBPO_FLAG}.pass_reward ({self.pass_reward}) must be greater than {EBPO_FLAG}.fail_reward "
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

    def variant(self) -> dict[str, Any]:
        """Return the choice of every part of EBPO: what was given, else the preset's; and `half_life` if it was given.

        Raises:
            ValueError: an unknown preset, or two choices that contradict each other.
        """
        if self.preset not in PRESETS:
            raise ValueError(f"unknown preset {self.preset!r} of EBPO, choose from {sorted(PRESETS)}")
        given = {part: getattr(self, part) for part in PAPER if getattr(self, part) is not None}
        parts = PRESETS[self.preset] | given
        if self.half_life is not None:
            if not 0 < self.half_life < math.inf:
                raise ValueError(
                    f"{EBPO_FLAG}.half_life is {self.half_life}: give a number of prompts above 0, or leave it out"
                )
            parts |= {"half_life": self.half_life, "history": self.history or "half_life"}
        if ("half_life" in parts) != (parts["history"] == "half_life"):
            raise ValueError(
                f"half_life is {parts.get('half_life', 'missing')} and history {parts['history']}: a number of prompts "
                "belongs to history half_life, and to no other"
            )
        if parts["weights"] == "score" and parts["prior"] == "beta_binomial":
            raise ValueError("weights score does not go with prior beta_binomial, which counts successes")
        return parts


def stored_parts(parts: dict[str, Any]) -> dict[str, Any]:
    """Return the parts as prior.json has them."""
    return {part: choice for part, choice in parts.items() if part not in OPTIONAL or choice != PAPER[part]}
