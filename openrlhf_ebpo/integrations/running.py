"""An estimator of the registry with its state, for a trainer that hands over rewards and takes advantages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator import registry, stored
from openrlhf_ebpo.estimator.advantage import Estimate, estimate
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch
from openrlhf_ebpo.files import write_json

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

PRIOR = "prior.json"


class RunningEstimator:
    """Every process of a trainer has one and gives it the same gathered batches, so that all states are equal.

    Attributes:
        state: after the latest batch; before: as it was before that.
        metrics: of the latest batch, for the trainer's log.

    Args:
        name: of the registry (ebpo, ebpo.robust ...), or MODULE:NAME; OpenRLHF's own (group_norm, rloo ...) too.
        group: responses per prompt.
        settings: of EstimatorConfig: fail_reward, pass_reward, init_prior, reset_prior, EBPO's parts.

    Raises:
        UsageError: no such estimator or setting, or one that no batch of rewards tells (gae).
    """

    def __init__(self, name: str, group: int, settings: Mapping[str, Any] | None = None):
        if "preset" in (settings or {}):
            raise UsageError("preset: name it with the estimator, such as ebpo.robust")
        try:
            config = EstimatorConfig(n_samples_per_prompt=group, **(settings or {}))
            estimator = registry.build_offline(registry.parse_name(name), config)
        except UsageError:
            raise
        except Exception as error:  # argparse's, dataclasses' and the presets' own kinds
            raise UsageError(f"estimator {name!r} with {dict(settings or {})}: {error}") from error
        if estimator is None:
            raise UsageError(f"estimator {name!r}: it needs more than rewards; choose another one")
        if config.clusters == "cluster":
            raise UsageError(
                f"estimator {name!r}: clusters='cluster' needs each prompt's cluster, which trainers do not hand over"
            )
        self.estimator, self.config, self.group = estimator, estimator.config, group
        init = config.init_prior
        self.state = self.before = stored.read(estimator, init) if init else estimator.initial()
        self.metrics: dict[str, float] = {}

    def step(
        self,
        rewards: ArrayLike,
        lengths: ArrayLike | None = None,
        score_weights: Callable[[], ArrayLike] | None = None,
    ) -> Estimate:
        """Return the advantages (M, G) of the next batch, and update the state.

        Args:
            rewards: (M·G,), the responses of a prompt one after the other; NaN: excluded, with advantage 0.
            lengths: (M·G,) tokens. score_weights: gives (M·G,), Σ_t (1 − π(y_t))²; called where the estimator reads
                them.

        Raises:
            ValueError: no whole groups, or no reward at all. EstimatorError: the estimator broke its contract.
        """
        rewards = np.asarray(rewards, np.float64)
        if rewards.ndim != 1 or len(rewards) % self.group:
            raise ValueError(f"{rewards.shape} rewards are not groups of {self.group}")

        def grouped(values: ArrayLike) -> np.ndarray:
            return np.asarray(values, np.float64).reshape(-1, self.group)

        batch = Batch.of(
            grouped(rewards),
            np.isfinite(grouped(rewards)),
            lengths=None if lengths is None else grouped(lengths),
            score_weights=(lambda: grouped(score_weights())) if score_weights else self._refuse_weights,
        )
        found = estimate(self.estimator, batch, self.state)
        self.before, self.state, self.metrics = self.state, found.state, metrics(found)
        return found

    def step_rows(
        self,
        rewards: ArrayLike,
        groups: ArrayLike,
        lengths: ArrayLike | None = None,
    ) -> np.ndarray:
        """Return the advantages (N,) of responses in any order, some of which may be missing; otherwise as `step`.

        Args:
            rewards: (N,). groups: (N,) the number of each response's prompt, 0 to M − 1. lengths: (N,).

        Raises:
            UsageError: a prompt has more than `group` responses.
        """
        groups = np.asarray(groups)
        counts = np.bincount(groups)
        if counts.max() > self.group:
            raise UsageError(f"a prompt has {counts.max()} responses, more than the {self.group} that were set")
        place = np.empty_like(groups)
        place[np.argsort(groups, kind="stable")] = np.concatenate([np.arange(count) for count in counts])

        def spread(values: ArrayLike, missing: float = 0.0) -> np.ndarray:
            table = np.full((len(counts), self.group), missing)
            table[groups, place] = values
            return table.ravel()

        found = self.step(spread(rewards, np.nan), None if lengths is None else spread(lengths))
        return found.advantages[groups, place]

    def rehearse_without_log_probabilities(self) -> None:
        """Check that the estimator works for trainers that hand over no log-probabilities.

        Raises:
            UsageError: the estimator reads score weights.
        """
        made_up = replace(stored.example_batch(self.config), give_score_weights=self._refuse_weights)
        estimate(self.estimator, made_up, self.estimator.initial())

    def _refuse_weights(self) -> ArrayLike:
        raise UsageError(
            f"estimator {self.estimator.name!r} weighs responses by their log-probabilities, which this trainer does "
            "not hand over; choose one that does not (ebpo.corrected, raw_reward)"
        )

    def save(self, folder: str | Path, before: bool = False) -> None:
        """Write prior.json. before: the state before the latest batch, for a checkpoint after which the trainer draws
        it again."""
        write_json(Path(folder, PRIOR), self.pack(before))

    def pack(self, before: bool = False) -> dict:
        """Return the state as `save` writes it."""
        return stored.pack(self.estimator, self.before if before else self.state)

    def restore(self, folder: str | Path) -> None:
        """Read the prior.json of a checkpoint, unless the setting reset_prior leaves it out.

        Raises:
            PriorMismatch: the prior is missing, damaged, or another estimator's.
        """
        if not self.config.reset_prior:
            self.load(folder)

    def load(self, folder: str | Path) -> None:
        """Read the prior.json of a checkpoint, under the conditions of `restore`."""
        self.state = self.before = stored.read(self.estimator, Path(folder, PRIOR))


def metrics(found: Estimate) -> dict[str, float]:
    """Return the numbers of a step for the trainer's log, by the names that metrics.jsonl has."""
    shrinkage = {"ebpo/shrinkage": float(found.shrinkage.mean())} if np.isfinite(found.shrinkage).all() else {}
    return {**shrinkage, **{name: float(value) for name, value in found.metrics.items()}}
