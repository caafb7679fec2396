"""The flags of the estimators that are computed here: --algo.advantage.ebpo.*"""

from __future__ import annotations

import argparse

from openrlhf_ebpo.estimator.config import FLAG
from openrlhf_ebpo.estimator.presets import PARTS, PRESETS

HELP = {
    "history": "what the prior remembers: run = all batches (paper), batch = this one alone (released code), half_life = a "
    "group counts half after --algo.advantage.ebpo.half_life further prompts, adaptive = half-lives weighed by how well they "
    "foretell the batches (dynamic model averaging)",
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
