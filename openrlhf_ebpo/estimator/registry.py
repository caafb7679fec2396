"""Every advantage estimator by name: what --advantage_estimator takes, and what cards, plots and pages call it.

One of ours is a class after contract.py, in its own file, and an entry here. A user's class needs no entry:
--advantage_estimator my_package.my_module:MyEstimator. Standard library only, so that pages and cards can use it.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.extension import is_import_path, load

if TYPE_CHECKING:
    from openrlhf_ebpo.estimator.config import EstimatorConfig
    from openrlhf_ebpo.estimator.contract import Estimator

ESTIMATOR_FLAG = "--advantage_estimator"


@dataclass(frozen=True)
class Entry:
    """title: the name in papers. baseline: what is taken from a response's reward, and what follows. arxiv: its paper.
    code: the Estimator, as MODULE:NAME in this package; of `upstream`, which OpenRLHF computes in training, it gives
    the same from a run's rollouts, and is missing where they do not tell (a critic's values)."""

    title: str
    baseline: str
    arxiv: str | None = None
    code: str | None = None

    @property
    def upstream(self) -> bool:
        return self.code is None or self.code.startswith("mirrors:")


ESTIMATORS = {
    "ebpo": Entry(
        "EBPO",
        "the group's mean, shrunk towards the run's, then standardised over the batch",
        "2602.05165",
        "ebpo:EBPO",
    ),
    "score_weighted": Entry(
        "Score-weighted",
        "the batch's mean, weighted by the squared norm of each response's score, then divided by the root mean square",
        None,
        "methods.score_weighted:ScoreWeighted",
    ),
    "opo": Entry("OPO", "the group's mean, weighted by the length of each response", "2505.23585", "methods.opo:OPO"),
    "james_stein": Entry(
        "James–Stein",
        "the mean of the group's other responses, shrunk towards the other prompts'",
        "2511.03710",
        "methods.james_stein:JamesStein",
    ),
    "maxrl": Entry("MaxRL", "the group's mean, then divided by that mean", "2602.02710", "methods.maxrl:MaxRL"),
    "global_mean": Entry(
        "Global mean",
        "the batch's mean, then divided by the batch's standard deviation",
        None,
        "methods.global_mean:GlobalMean",
    ),
    "raw_reward": Entry(
        "Raw reward",
        "the reward of a failure, then divided by the root mean square",
        "2504.11343",
        "methods.raw_reward:RawReward",
    ),
    "grpo_batch_norm": Entry(
        "GRPO, batch-normalised",
        "the group's mean, then standardised over the batch",
        None,
        "methods.grpo_batch_norm:GRPOBatchNorm",
    ),
    "group_norm": Entry(
        "GRPO", "the group's mean, then divided by the group's standard deviation", "2402.03300", "mirrors:GroupNorm"
    ),
    "dr_grpo": Entry("Dr. GRPO", "the group's mean", "2503.20783", "mirrors:DrGRPO"),
    "rloo": Entry("RLOO", "the mean of the group's other responses", "2402.14740", "mirrors:RLOO"),
    "reinforce_baseline": Entry(
        "REINFORCE++-baseline",
        "the group's mean, then standardised over the batch's tokens",
        "2501.03262",
        "mirrors:ReinforceBaseline",
    ),
    "reinforce": Entry(
        "REINFORCE++", "none, then standardised over the batch's tokens", "2501.03262", "mirrors:Reinforce"
    ),
    "flash_reinforce": Entry("FlashREINFORCE", "the batch's mean", None, "mirrors:FlashReinforce"),
    "gae": Entry("PPO (GAE)", "a critic's value of every token", "1707.06347"),
}

VARIANTS = {  # of EBPO, by the preset of its parts; `ebpo` alone is the paper's
    "ebpo.corrected": "as ebpo, with a history that adapts, and unbiased variances",
    "ebpo.release": "as ebpo, with the batch as its only history: the authors' released code",
    "ebpo.revision": "as ebpo, with a Beta-Binomial prior from the batches before: the paper's later revision",
    "ebpo.robust": "the group's mean, weighted by each response's squared score norm and shrunk towards the run's "
    "by a history that adapts, then divided by the standard deviation: not the paper's",
}
PAPER = "paper"


def split_preset(name: str) -> tuple[str, str]:
    """Return the estimator and the preset of its parts: "ebpo", "robust" for ebpo.robust."""
    base, _, preset = name.partition(".")
    return (base, preset) if name in VARIANTS else (name, PAPER)


def title(name: str) -> str:
    """Return the name that people use; the class's name for a user's own. Names come from run files too: the result is
    as trustworthy as `name`."""
    if name in VARIANTS:
        return " ".join((ESTIMATORS["ebpo"].title, split_preset(name)[1]))
    if name in ESTIMATORS:
        return ESTIMATORS[name].title
    return name.rpartition(":")[2] if is_import_path(name) else name


def baseline(name: str, preset: str = PAPER) -> str | None:
    """Describe the baseline that is subtracted from a reward, and what follows; None for a custom estimator."""
    if name == "ebpo" and preset != PAPER:
        return VARIANTS.get(f"ebpo.{preset}")
    return ESTIMATORS[name].baseline if name in ESTIMATORS else None


def computed_here(name: str) -> bool:
    """Return True if this project computes the advantages, False for OpenRLHF's own."""
    name, _ = split_preset(name)
    return is_import_path(name) or (name in ESTIMATORS and not ESTIMATORS[name].upstream)


def build(name: str, config: EstimatorConfig) -> Estimator | None:
    """Return the estimator that computes this run's advantages; None where OpenRLHF does.

    Raises:
        UsageError: a user's own cannot be imported, is not an estimator, or does not take these settings.
    """
    return build_offline(name, config) if computed_here(name) else None


def build_offline(name: str, config: EstimatorConfig) -> Estimator | None:
    """Return the estimator of this name, also of OpenRLHF's own; None where nothing but training itself can compute it.

    Raises:
        UsageError: as `build`.
    """
    from openrlhf_ebpo.estimator.contract import Estimator

    if name in VARIANTS:
        name, preset = split_preset(name)
        config = replace(config, preset=preset)
    if name in ESTIMATORS and ESTIMATORS[name].code is None:
        return None
    found = load(f"{__package__}.{ESTIMATORS[name].code}" if name in ESTIMATORS else name, ESTIMATOR_FLAG)
    if not (isinstance(found, type) and issubclass(found, Estimator)):
        raise UsageError(
            f"{ESTIMATOR_FLAG} {name}: {found!r} is not a subclass of openrlhf_ebpo.estimator.contract.Estimator"
        )
    try:
        estimator = found(config, name)
        estimator.identity()
    except Exception as error:
        if name in ESTIMATORS and isinstance(error, ValueError):
            raise UsageError(str(error)) from error
        raise UsageError(f"{ESTIMATOR_FLAG} {name}: {type(error).__name__}: {error}") from error  # a user's code
    return estimator


def parse_name(name: str, of_openrlhf: Sequence[str] | None = None) -> str:
    """Return a known name, for argparse. A custom one is imported by `build`.

    Args:
        of_openrlhf: what the installed OpenRLHF has; without it, what the registry lists.

    Raises:
        argparse.ArgumentTypeError: it is neither known nor an import path.
    """
    listed = ESTIMATORS if of_openrlhf is None else [*filter(computed_here, ESTIMATORS), *of_openrlhf]
    names = [*listed, *VARIANTS]
    if name in names or is_import_path(name):
        return name
    titles = {entry.title.lower(): key for key, entry in ESTIMATORS.items()}
    near = titles.get(name.lower()) or next(iter(difflib.get_close_matches(name, names, 1)), None)
    hint = f"Did you mean {near}? " if near else ""
    if not hint and is_import_path(own := ":".join(name.rsplit(".", 1))):
        hint = f"Did you mean {own}? "
    raise argparse.ArgumentTypeError(
        f"there is no estimator {name!r}. {hint}Choose from {', '.join(names)}, or give a class as MODULE:NAME, for "
        "example my_package.my_module:MyEstimator"
    )


def describe_estimators() -> str:
    """Return the list for --help: what is taken from a response's reward."""
    estimators = [f"{name} = {entry.title}, {entry.baseline}" for name, entry in ESTIMATORS.items()]
    return "; ".join([*estimators, *(f"{name} = EBPO, {text}" for name, text in VARIANTS.items())])
