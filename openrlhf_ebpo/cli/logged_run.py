"""Read a run directory as an estimator sees it, for `openrlhf-ebpo replay` and `verify`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.estimator import registry, stored
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Estimator
from openrlhf_ebpo.estimator.replay import Difference, Logged, read_logged, unknown_starts
from openrlhf_ebpo.extension import is_import_path
from openrlhf_ebpo.run.rollout_columns import read_columns, read_prior_start
from openrlhf_ebpo.run.run_log import RunDirectoryError, get_nested, read_known_run, step_files

REWARDS = ("fail_reward", "pass_reward", "reward_clip_range")  # the run's, whatever else is asked for
OF_THE_NAME = ("preset", "half_life", "clusters")  # the run's, unless another variant is asked for
NOT_REPLAYED = {"n_samples_per_prompt", "reset_prior", "init_prior"}  # fields of EstimatorConfig
ROUNDING = 1e-4  # of the step's largest advantage: OpenRLHF sums in float32
NOISE = 1e-12  # of the largest advantage: float64's own
MAX_RESPONSES = 2**16  # of a prompt


@dataclass(frozen=True)
class LoggedRun:
    """settings: of the estimator that ran, by the names of EstimatorConfig. size: responses per prompt."""

    folder: Path
    json: dict
    estimator: str
    size: int
    settings: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> LoggedRun:
        """Read run.json, which may come from anywhere.

        Raises:
            RunDirectoryError: the run is missing, or not of a training.
        """
        found = read_known_run(folder)
        args, where = found.get("args"), f"{folder}/run.json: its"
        name, size = (
            get_nested(args, "algo", "advantage", "estimator"),
            get_nested(args, "rollout", "n_samples_per_prompt"),
        )
        if not isinstance(name, str) or not (name in registry.ESTIMATORS or is_import_path(name)):
            raise RunDirectoryError(f"{where} algo.advantage.estimator is {ascii(name)[:80]}, no estimator")
        if type(size) is not int or not 0 < size <= MAX_RESPONSES:
            raise RunDirectoryError(
                f"{where} rollout.n_samples_per_prompt is {ascii(size)[:80]}, and not 1 to {MAX_RESPONSES}"
            )
        settings, names = get_nested(args, "algo", "advantage", "ebpo"), {each.name for each in fields(EstimatorConfig)}
        settings = settings if isinstance(settings, dict) else {}
        return cls(folder, found, name, size, {k: v for k, v in settings.items() if k in names - NOT_REPLAYED})

    def arg(self, *path: str) -> Any:
        """A resolved argument of the training; None if run.json does not have it."""
        return get_nested(self.json, "args", *path)

    @property
    def running(self) -> bool:
        return self.json.get("status") == "running"

    @cached_property
    def files(self) -> dict[int, Path]:
        """step -> its rollouts, in order."""
        return step_files(self.folder)

    def steps(self) -> Iterator[Logged]:
        return (read_logged(step, read_columns(path), self.size, str(path)) for step, path in self.files.items())

    def build(self, name: str | None = None, given: dict[str, Any] | None = None) -> Estimator:
        """The estimator of this name (None: that ran) and settings; what is not given is as in the run, or the
        preset's.

        Raises:
            UsageError: the settings are out of range, only training can compute it, or its code was not named.
        """
        if name is None and is_import_path(self.estimator):
            raise UsageError(
                f"{self.folder}/run.json names custom code as its estimator. To run that code, give it "
                f"yourself: --estimator {self.estimator}"
            )
        name = name or self.estimator
        parts = {k: v for k, v in (given or {}).items() if k != "init_prior"}
        others = parts.keys() - {*REWARDS}
        keep = self.settings.keys() if not others else REWARDS if "preset" in others else (*REWARDS, *OF_THE_NAME)
        kept = {name: value for name, value in self.settings.items() if name in keep}
        try:
            if isinstance(clip := kept.get("reward_clip_range"), list):
                kept["reward_clip_range"] = tuple(map(float, clip))  # JSON's, with infinity as text
            estimator = registry.build_offline(name, EstimatorConfig(self.size, **{**kept, **parts}))
        except (UsageError, TypeError, ValueError, ArithmeticError) as error:
            where = "" if parts or is_import_path(name) else f"{self.folder}/run.json: "
            raise UsageError(f"{where}{str(error)[:300]}") from error
        if estimator is None:
            raise UsageError(f"--estimator {name} cannot be replayed: rollouts do not hold a critic's values")
        return estimator

    def is_of(self, estimator: Estimator) -> bool:
        """True for the estimator that ran, with its settings."""
        return estimator.name == self.estimator and estimator.identity() == self.build(estimator.name).identity()

    def starts(self, estimator: Estimator, init_prior: str | None = None) -> dict[int, Any]:
        """step -> the state before it: as its rollouts have it, if this estimator ran, and from --…init_prior.

        Raises:
            UsageError: no step is logged, or the state before one is needed and not known.
            ReportedError: a file is damaged, or a state belongs to another estimator.
        """
        found = {1: stored.read(estimator, init_prior)} if init_prior else {}
        if self.is_of(estimator) and registry.computed_here(estimator.name):
            before = [(step, path, read_prior_start(path)) for step, path in self.files.items()]
            known = {
                step: stored.unpack(estimator, state, f"the prior before the step in {path}")
                for step, path, state in before
                if state is not None
            }
            found = known | found
        if not self.files:
            raise UsageError(f"{self.folder}/rollouts holds no step" + (" yet" if self.running else ""))
        if estimator.initial() and (unknown := unknown_starts([*self.files], found)):  # a step depends on those before
            every = self.arg("logger", "rollouts_every")
            why = f"no rollouts of step {unknown[0] - 1} are in {self.folder}/rollouts"
            if type(every) is int and every > 1:
                why = f"the run had --logger.rollouts_every {every}"
            raise UsageError(
                f"{estimator.name} keeps a state from step to step, and its state before step {unknown[0]} is not "
                f"known: {why}. An estimator without a state can be replayed "
                "(--estimator group_norm)"
            )
        return found

    def verdict(self, estimator: Estimator, found: dict[int, Difference]) -> str:
        """One line about the replayed steps.

        Raises:
            ReportedError: the estimator that ran gives something else than is logged.
        """
        total = Difference.over(found.values())
        size = f"{len(found):,} steps, {len(total.was):,} responses"
        worst = max(found, key=lambda step: found[step].largest)
        largest = f"the largest difference of an advantage is {total.largest:.3g}, in step {worst}"
        if not self.is_of(estimator):
            return f"{size}: {largest}"
        if registry.computed_here(estimator.name):
            if not total.unequal.any():
                return f"bit for bit: {size}, baselines and advantages as logged"
            first = next(step for step, each in found.items() if each.unequal.any())
            rounding = total.largest < NOISE * total.scale
            raise ReportedError(
                (
                    f"not as logged: {total.unequal.sum():,} of {len(total.was):,} responses differ, first in step "
                    f"{first}; {largest}"
                )
                + (": rounding, of an older version or of another machine" if rounding else "")
            )
        if unlogged := ", ".join(self._unlogged()):
            return f"{size}: {largest}. It says little: OpenRLHF also applied {unlogged}, which no rollout holds"
        if any(each.largest > ROUNDING * max(each.scale, 1e-12) for each in found.values()):
            known = " (which gives up to 0.9 to a group whose rewards are all 0.3)"
            raise ReportedError(
                f"not as logged: {largest}, more than OpenRLHF's rounding in float32"
                + (known if estimator.name == "group_norm" else "")
            )
        return f"as logged, within OpenRLHF's rounding in float32: {size}; {largest}"

    def _unlogged(self) -> Iterable[str]:
        """Settings with which OpenRLHF's own advantages hold more than the rewards say."""
        coefficient = self.arg("algo", "kl", "init_coef")
        if isinstance(coefficient, (int, float)) and coefficient > 0 and not self.arg("algo", "kl", "use_loss"):
            yield f"--algo.kl.init_coef {coefficient:g} (KL penalties)"
        if self.estimator == "reinforce" and self.arg("algo", "advantage", "gamma") not in (None, 1):
            yield "--algo.advantage.gamma (discounts)"
        if self.arg("algo", "advantage", "no_std_norm"):
            yield "--algo.advantage.no_std_norm"


def format_steps(steps: Sequence[int], limit: int = 5) -> str:
    """steps 1, 2, 3 and 4 more."""
    listed = ", ".join(map(str, sorted(steps)[:limit]))
    more = f" and {len(steps) - limit:,} more" if len(steps) > limit else ""
    return f"step{'s' if len(steps) > 1 else ''} {listed}{more}"
