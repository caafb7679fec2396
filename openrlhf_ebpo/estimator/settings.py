"""AdvantageSettings: the estimator of a training and its settings, --algo.advantage.ebpo.*, with their flags."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from types import SimpleNamespace

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator import presets, registry, stored
from openrlhf_ebpo.estimator.config import FLAG, EstimatorConfig
from openrlhf_ebpo.estimator.contract import Estimator
from openrlhf_ebpo.estimator.presets import PARTS
from openrlhf_ebpo.extension import is_import_path

HELP = {
    "history": "which batches the prior remembers: run = all (paper); batch = only the current one (released code); "
    "half_life = all, with weights that halve every --algo.advantage.ebpo.half_life prompts; adaptive = a mean over "
    "half-lives, weighted by how well each predicts the next batch (dynamic model averaging)",
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
    "weights": "weights of responses in every mean: none = equal (paper); score = the squared norm of the response's "
    "score (the gradient of its log-probability)",
}


@dataclass(frozen=True)
class AdvantageSettings:
    """The estimator of a training, and flags of OpenRLHF that are about its result."""

    name: str
    config: EstimatorConfig
    gamma: float = 1.0
    no_std_norm: bool = False
    dynamic_filtering: bool = False

    @classmethod
    def from_args(cls, args) -> AdvantageSettings:
        """From upstream's nested arguments.

        Raises:
            UsageError: a setting of every estimator makes no sense.
        """
        advantage = args.algo.advantage
        try:
            config = EstimatorConfig.from_args(args)
        except ValueError as error:
            raise UsageError(str(error)) from None
        filtering = args.algo.dynamic_filtering_enable
        return cls(advantage.estimator, config, advantage.gamma, advantage.no_std_norm, filtering)

    @property
    def is_computed_here(self) -> bool:
        return registry.computed_here(self.name)

    def is_centred(self) -> bool:
        """True also where nothing but training can compute it."""
        found = registry.offline(self.name, self.config)
        return found is None or found.centred

    def check(self) -> Estimator | None:
        """Try what training would only meet at its first step; returns the estimator, None where OpenRLHF computes it.

        Raises:
            UsageError: settings, custom code or the stored prior cannot be used.
        """
        estimator = registry.build(self.name, self.config)
        if estimator and is_import_path(self.name):
            stored.rehearse(estimator)
        if estimator and self.config.init_prior:
            stored.read(estimator, self.config.init_prior)
        return estimator

    def check_prior(self, state: dict | None, place: str) -> None:
        """Check that the estimator takes the prior of a checkpoint that is resumed.

        Raises:
            PriorMismatch: it is of another estimator; names `place`.
        """
        if state and not self.config.reset_prior:
            stored.unpack(registry.build(self.name, self.config), state, place)

    @property
    def uses_clusters(self) -> bool:
        return self.name == "ebpo" and self.config.clusters == "cluster"

    def notices(self) -> list[str]:
        """Warn of flags that do nothing under the estimator, or take from it what it is for."""
        name, found = self.name, []
        if self.is_computed_here and (self.gamma != 1 or self.no_std_norm):
            found.append(f"--algo.advantage.gamma and --algo.advantage.no_std_norm do nothing under {name}")
        if name in registry.ESTIMATORS and name != "ebpo":
            given = [part for part in (*PARTS, "half_life") if getattr(self.config, part) is not None]
            found += [f"{FLAG}.{part} does nothing under {name}" for part in given]
        if name == "ebpo" and self.dynamic_filtering:
            found.append(
                "--algo.dynamic_filtering_enable removes the groups in which every response fails or passes: EBPO's "
                "prior then sees only groups with mixed rewards"
            )
        return [f"warning: {each}" for each in found]


def settle(advantage: SimpleNamespace) -> None:
    """Set, in place, what the name of a variant says of its parts. advantage: upstream's `args.algo.advantage`."""
    ebpo = advantage.ebpo
    advantage.estimator, ebpo.preset = registry.split(advantage.estimator)
    if advantage.estimator == "ebpo":
        vars(ebpo).update(presets.chosen(ebpo.preset, vars(ebpo)))


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
        help="start from this prior.json if no checkpoint is loaded (for example with --ckpt.disable_ds, which cannot "
        "resume), or the checkpoint has none",
    )
