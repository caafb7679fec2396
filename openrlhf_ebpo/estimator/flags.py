"""The flags of the estimators that are computed here: --algo.advantage.ebpo.*"""

from __future__ import annotations

import argparse

from openrlhf_ebpo.estimator.config import FLAG
from openrlhf_ebpo.estimator.presets import PARTS

HELP = {
    "history": "which batches the prior remembers: run = all (paper); batch = only the current one (released code); "
    "half_life "
    "= all, with weights that halve every --algo.advantage.ebpo.half_life prompts; adaptive = a mean over "
    "half-lives, weighted "
    "by how well each predicts the next batch (dynamic model averaging)",
    "order": (
        "update_then_use = add the batch to the prior, then use the prior (paper); lagged = use it, then add the "
        "batch (revision)"
    ),
    "within_variance": "σ²: pooled = variance of all rewards (paper); within = mean variance inside groups (revision)",
    "between_variance": (
        "τ²: raw = variance of group means (paper); corrected = the same minus the sampling noise of the means"
    ),
    "prior": (
        "gaussian (paper); beta_binomial = for rewards that are fail or pass (revision); none = no shrinkage, S = "
        "0: the group's mean"
    ),
    "normalise": (
        "advantages: batch = subtract the batch's mean, divide by its standard deviation (paper); scale = divide "
        "only; none"
    ),
    "clusters": "run = one prior (paper); cluster = one per value of --data.cluster_key, shrunk towards the run's",
    "saturated": "groups in which every response passes: shrink = like any other (paper); zero = raw advantage 0",
    "weights": "weights of responses in every mean: none = equal (paper); "
    "score = the squared norm of the response's score "
    "(the gradient of "
    "its log-probability)",
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "EBPO estimator",
        "empirical-Bayes baseline, arXiv 2602.05165; used with --advantage_estimator ebpo, ebpo.robust and the "
        "like, whose parts they change. fail_reward, pass_reward, "
        "reset_prior and init_prior apply to all estimators of this package",
    )
    for part, choices in PARTS.items():
        group.add_argument(f"{FLAG}.{part}", choices=list(choices), help=HELP[part])
    group.add_argument(
        f"{FLAG}.half_life",
        type=float,
        metavar="PROMPTS",
        help=f"with {FLAG}.history half_life: number of prompts after which the weight of a group has halved",
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
        help="when resuming, ignore the checkpoint's prior (at every resume with this flag)",
    )
    group.add_argument(
        f"{FLAG}.init_prior",
        metavar="PATH",
        help="start from this prior.json if no checkpoint is loaded (for example with --ckpt.disable_ds, which "
        "cannot resume), "
        "or the checkpoint has none",
    )
