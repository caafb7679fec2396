"""Metrics of evaluations during training (--eval.metrics): their names, and what can be found wrong at the start.

Written as pass@16 on the command line; in metrics.jsonl as upstream spells its own, eval_<data set>_pass16.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from openrlhf_ebpo.errors import UsageError, raise_problems
from openrlhf_ebpo.rewards.answers import READINGS, packaged
from openrlhf_ebpo.rewards.settings import RewardSettings

FLAG, BEST = "--eval.metrics", "--ckpt.best_metric_key"
NAME = re.compile(r"(pass|maj)@([1-9]\d{0,5})", re.ASCII)
NO_BEST = "none"
DEFAULT_SOURCE = "default"  # upstream's name for rows without a column `datasource`
SOURCE_COLUMN = "datasource"


class EvalMetric(NamedTuple):
    """pass@k: mean over prompts of the best of k rewards, over all choices of k. maj@k: of the majority's success."""

    kind: str
    k: int

    def __str__(self) -> str:
        return f"{self.kind}@{self.k}"

    @property
    def suffix(self) -> str:
        """Return the end of its name in metrics.jsonl."""
        return f"_{self.kind}{self.k}"


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("evaluation during training", "with --eval.dataset and --eval.steps").add_argument
    add(
        FLAG,
        metavar="A,B,…",
        help="further metrics than OpenRLHF's pass@1 and pass@n: pass@K or maj@K, such as maj@16,pass@8, with K up to "
        f"--eval.n_samples_per_prompt; maj@K needs the reward {', '.join(READINGS)}. {BEST} accepts each",
    )
    add(
        "--logger.no_eval_answers",
        action="store_true",
        help="do not keep the answers of evaluations during training in the run directory (eval/training/)",
    )


def parse(text: str | None) -> list[EvalMetric]:
    """The metrics that are asked for, each once.

    Raises:
        UsageError: one is not a metric.
    """
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    if wrong := [name for name in names if not NAME.fullmatch(name)]:
        raise UsageError(f"{FLAG} {wrong[0]!r}: write pass@K or maj@K, such as {FLAG} pass@8,maj@16")
    return list(dict.fromkeys(_metric(name) for name in names))


def _metric(name: str) -> EvalMetric:
    kind, _, k = name.partition("@")
    return EvalMetric(kind, int(k))


@dataclass(frozen=True)
class EvalSettings:
    """Evaluations during training. steps: between two of them. samples: responses to a prompt. best_key: the metric
    that chooses the best checkpoint. rewards: what grades them."""

    dataset: str | None
    steps: int
    samples: int
    metrics: tuple[EvalMetric, ...]
    best_key: str
    rewards: RewardSettings

    @classmethod
    def from_args(cls, args) -> EvalSettings:
        """From upstream's nested arguments.

        Raises:
            UsageError: one of --eval.metrics is not a metric.
        """
        evaluation, rewards = args.eval, RewardSettings.from_args(args)
        return cls(
            dataset=evaluation.dataset,
            steps=evaluation.steps,
            samples=evaluation.n_samples_per_prompt,
            metrics=tuple(parse(evaluation.metrics)),
            best_key=args.ckpt.best_metric_key,
            rewards=rewards,
        )

    def check(self) -> None:
        """Check that these metrics can be computed with the other flags, and that the best checkpoint can be chosen by
        the one that is requested.

        Raises:
            UsageError: all that is wrong, one problem per line.
        """
        if self.dataset and self.steps > 0:
            raise_problems([*self._metric_problems(), *self._best_problems()])
            return
        unused = [FLAG] * bool(self.metrics) + [f"{BEST} {self.best_key}"] * (self.best_key not in ("", NO_BEST))
        raise_problems(
            [f"{flag}: nothing is evaluated during training: give --eval.dataset and --eval.steps" for flag in unused]
        )

    def _metric_problems(self) -> list[str]:
        problems = [
            f"{FLAG} {each}: needs {each.k} responses to a prompt, and --eval.n_samples_per_prompt is {self.samples}"
            for each in self.metrics
            if each.k > self.samples
        ]
        votes = [str(each) for each in self.metrics if each.kind == "maj"]
        if votes and not packaged(self.rewards):
            problems.append(
                f"{FLAG} {','.join(votes)}: a vote needs answers, and of this reward nobody knows what it takes for "
                f"the answer of a response: use {' or '.join(READINGS)} as --reward.remote_url, or pass@K"
            )
        return problems

    def _best_problems(self) -> list[str]:
        key = self.best_key
        known = dict.fromkeys([EvalMetric("pass", 1), EvalMetric("pass", self.samples), *self.metrics])
        if key in ("", NO_BEST, *map(str, known)):
            return []
        sources = data_sources(self.dataset)
        ends = next((each.suffix for each in known if key.endswith(each.suffix)), None)
        if ends and key.startswith("eval_") and (sources is None or key[len("eval_") : -len(ends)] in sources):
            return []
        names = [f"eval_{source}{each.suffix}" for source in sorted(sources or ["<data source>"])[:5] for each in known]
        return [
            f"{BEST} {key}: not a score of the evaluations. There are {', '.join(map(str, known))}, by their full "
            f"names {', '.join(names)}; {FLAG} adds others, {NO_BEST} saves no best checkpoint"
        ]


def data_sources(dataset: str) -> Collection[str] | None:
    """Return upstream's names for the parts of the evaluation; None if the data would have to be loaded to know."""
    found: set[str] = set()
    for name in dataset.split(","):
        try:
            found |= _sources_of(Path(name))
        except (OSError, ValueError, AttributeError):  # another kind of file, or not on this machine
            return None
    return found


def _sources_of(path: Path) -> set[str]:
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        if SOURCE_COLUMN not in pq.read_schema(path).names:
            return {DEFAULT_SOURCE}
        table = pq.read_table(path, columns=[SOURCE_COLUMN], partitioning=None)
        found = table[SOURCE_COLUMN].unique().to_pylist()
        return {DEFAULT_SOURCE if source is None else str(source) for source in found}
    if path.suffix != ".jsonl":
        raise ValueError(f"{path} is loaded by datasets")
    with open(path, encoding="utf-8") as file:
        found = (json.loads(line).get(SOURCE_COLUMN) for line in file if line.strip())
        return {DEFAULT_SOURCE if source is None else str(source) for source in found}


def is_short_name(name: str, key: str) -> bool:
    """Return True if `name`, such as maj@16, stands for this key of an evaluation's metrics."""
    return bool(NAME.fullmatch(name)) and key.endswith(_metric(name).suffix)
