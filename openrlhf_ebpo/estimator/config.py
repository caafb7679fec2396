"""EstimatorConfig: every --algo.advantage.ebpo.* flag, its default, its check."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from openrlhf_ebpo.estimator import presets
from openrlhf_ebpo.estimator.presets import FLAG, PARTS, PRESETS


@dataclass(frozen=True)
class EstimatorConfig:
    """What an estimator computed here needs to know, checked. The preset and the parts (None: what the preset says) are
    EBPO's; the rest holds for every estimator.

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
        if self.preset not in PRESETS:
            raise ValueError(f"{FLAG}.preset: unknown preset {self.preset!r}, choose from {sorted(PRESETS)}")
        if not (self.pass_reward > self.fail_reward and math.isfinite(self.pass_reward - self.fail_reward)):
            raise ValueError(
                f"{FLAG}.pass_reward ({self.pass_reward}) must be greater than {FLAG}.fail_reward ({self.fail_reward}), "
                "and both finite"
            )
        if self.reward_clip_range and not self.reward_clip_range[0] < self.reward_clip_range[1]:
            raise ValueError(f"--reward.clip_range {self.reward_clip_range}: give LOW HIGH with LOW < HIGH")
        presets.check(self.variant)

    @property
    def reward_range(self) -> float:
        return self.pass_reward - self.fail_reward

    @cached_property
    def variant(self) -> dict[str, Any]:
        """What every part of EBPO is: the preset, and what was given beside it."""
        return presets.chosen(self.preset, vars(self))

    @classmethod
    def from_args(cls, args) -> EstimatorConfig:
        """From upstream's nested arguments, which hold our flags under `args.algo.advantage.ebpo`."""
        return cls(n_samples_per_prompt=args.rollout.n_samples_per_prompt, **vars(args.algo.advantage.ebpo))


HELP = {
    "history": "what the prior remembers: run = all batches (paper), batch = this one alone (released code), half_life = a "
    "group counts half after --algo.advantage.ebpo.half_life further prompts, adaptive = half-lives weighed by how well they "
    "foretell the batches (dynamic model averaging), adaptive_forgetting = one discount factor that follows its error",
    "order": "update_then_use = this batch enters the prior before it is used (paper); lagged = after (revision)",
    "within_variance": "σ²: pooled = variance of all rewards (paper); within = mean variance inside groups (revision)",
    "between_variance": "τ²: raw = variance of group means (paper); corrected = without the noise of the means",
    "prior": "gaussian (paper); beta_binomial = for rewards that are fail or pass (revision); none = the group's mean, S = 0",
    "normalise": "batch = centre and divide by the batch's standard deviation (paper); scale = divide only; none",
    "clusters": "run = one prior (paper); cluster = one for each value of --data.cluster_key, pooled towards the run's",
    "saturated": "all-pass groups: shrink = like any other (paper); zero = raw advantage 0",
    "weights": "of responses in every mean: none = equal (paper); score = by the squared norm of their score",
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "EBPO estimator",
        "empirical-Bayes baseline, arXiv 2602.05165; used with --advantage_estimator ebpo. fail_reward, pass_reward, "
        "reset_prior and init_prior also hold for every other estimator that is not OpenRLHF's",
    )
    group.add_argument(
        f"{FLAG}.preset",
        type=str,
        default="paper",
        choices=sorted(PRESETS),
        help="which form: paper; release = the authors' released code; revision = the paper's later revision; corrected = "
        "adaptive history, unbiased variances; robust = that, with responses weighted by their scores: not the paper's, and ahead "
        "of it wherever we measured (docs/results.md). The parts below, where not given, are the preset's",
    )
    for part, choices in PARTS.items():
        group.add_argument(f"{FLAG}.{part}", type=str, default=None, choices=list(choices), help=HELP[part])
    group.add_argument(
        f"{FLAG}.half_life",
        type=float,
        default=None,
        metavar="PROMPTS",
        help=f"with {FLAG}.history half_life: a group counts half once so many further prompts have been trained on",
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
