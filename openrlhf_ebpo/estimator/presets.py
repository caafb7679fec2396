"""EBPO's parts, each choice with the code that computes it, and the presets that choose.

The choices are stored with the prior, so that a run can only resume with the estimator it began with. A choice is a key
of PARTS: what no code computes cannot be chosen, nor stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING

from openrlhf_ebpo.estimator.prior import Prior
from openrlhf_ebpo.estimator.shrinkage import shrinkage_weight, shrunk_baseline, standardise

if TYPE_CHECKING:
    from openrlhf_ebpo.estimator.shapes import PerGroup


def gaussian(
    prior: Prior, within: float, between: float, means: PerGroup, sizes: PerGroup, reward_range: float
) -> tuple[PerGroup, PerGroup]:
    """Shrinkage and baselines of groups with these means and numbers of valid responses."""
    shrinkage = shrinkage_weight(within, between, sizes, reward_range)
    return shrinkage, shrunk_baseline(means, prior.mean, shrinkage)


PARTS: dict[str, dict[str, Callable]] = {
    "history": {"run": Prior.update},
    "order": {"update_then_use": lambda before, after: after},
    "within_variance": {"pooled": attrgetter("within_variance")},
    "between_variance": {"raw": attrgetter("between_variance")},
    "prior": {"gaussian": gaussian},
    "normalise": {"batch": standardise},
}

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


def code_of(variant: Mapping[str, str]) -> dict[str, Callable]:
    """The function of every part.

    Raises:
        ValueError: a part is missing or unknown, or no code computes what was chosen for it.
    """
    if variant.keys() != PARTS.keys():
        raise ValueError(f"a preset must choose exactly {', '.join(PARTS)}")
    for part, choice in variant.items():
        if choice not in PARTS[part]:
            raise ValueError(f"{part} {choice!r} is not implemented, there is {', '.join(PARTS[part])}")
    return {part: PARTS[part][choice] for part, choice in variant.items()}
