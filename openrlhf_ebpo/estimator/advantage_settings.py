"""AdvantageSettings: the estimator of a training and its settings, --algo.advantage.ebpo.*, with their flags."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator import registry, stored
from openrlhf_ebpo.estimator.config import EBPO_FLAG, EstimatorConfig
from openrlhf_ebpo.estimator.contract import Estimator
from openrlhf_ebpo.extension import is_import_path


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
            UsageError: a setting of every estimator is out of range.
        """
        advantage = args.algo.advantage
        try:
            config = EstimatorConfig.from_args(args)
        except ValueError as error:
            raise UsageError(str(error)) from None
        filtering = args.algo.dynamic_filtering_enable
        return cls(advantage.estimator, config, advantage.gamma, advantage.no_std_norm, filtering)

    def is_centred(self) -> bool:
        """True also where nothing but training can compute it."""
        found = registry.build_offline(self.name, self.config)
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
        if registry.computed_here(name) and (self.gamma != 1 or self.no_std_norm):
            found.append(f"--algo.advantage.gamma and --algo.advantage.no_std_norm do nothing under {name}")
        if name in registry.ESTIMATORS and name != "ebpo":
            given = [part for part in ("half_life", "clusters") if getattr(self.config, part) is not None]
            found += [f"{EBPO_FLAG}.{part} does nothing under {name}" for part in given]
        if name == "ebpo" and self.dynamic_filtering:
            found.append(
                "--algo.dynamic_filtering_enable removes the groups in which every response fails or passes: EBPO's "
                "prior then sees only groups with mixed rewards"
            )
        return [f"warning: {each}" for each in found]


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "EBPO estimator",
        "empirical-Bayes baseline, arXiv 2602.05165. half_life and clusters change ebpo, ebpo.robust and the like;\n"
        "the other flags apply to all estimators of this package.",
    )
    group.add_argument(
        f"{EBPO_FLAG}.half_life",
        type=float,
        metavar="PROMPTS",
        help="let the prior forget: number of prompts after which the weight of a group has halved (default: as the "
        "estimator has it; ebpo never forgets)",
    )
    group.add_argument(
        f"{EBPO_FLAG}.clusters",
        choices=["run", "cluster"],
        help="run = one prior (default); cluster = one per value of --data.cluster_key, shrunk towards the run's",
    )
    group.add_argument(
        f"{EBPO_FLAG}.fail_reward", type=float, default=0.0, metavar="REWARD", help="reward of a failed response"
    )
    group.add_argument(
        f"{EBPO_FLAG}.pass_reward", type=float, default=1.0, metavar="REWARD", help="reward of a fully correct response"
    )
    group.add_argument(
        f"{EBPO_FLAG}.reset_prior",
        action="store_true",
        help="when resuming, ignore the checkpoint's prior (at every resume with this flag)",
    )
    group.add_argument(
        f"{EBPO_FLAG}.init_prior",
        metavar="PATH",
        help="start from this prior.json if no checkpoint is loaded (for example with --ckpt.disable_ds, which cannot "
        "resume), or the checkpoint has none",
    )
