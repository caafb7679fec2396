"""Metrics of evaluations during training (--eval.metrics): their names, and what can be found wrong at the start.

Written as pass@16 on the command line; in metrics.jsonl as upstream spells its own, eval_<data set>_pass16.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from openrlhf_ebpo.command import nested
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
        f"--eval.n_samples_per_prompt; maj@K needs one of the rewards {', '.join(READINGS)}. {BEST} accepts each",
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


def check_flags(values: dict) -> None:
    """Check that these metrics can be computed with the other flags, and that the best checkpoint can be chosen as
    asked.

    Raises:
        UsageError: all that is wrong, one problem per line.
    """
    asked, key = parse(values["eval.metrics"]), values["ckpt.best_metric_key"]
    evaluates = values["eval.dataset"] and values["eval.steps"] > 0
    if not evaluates:
        wanted = [FLAG] * bool(asked) + [f"{BEST} {key}"] * (key not in ("", NO_BEST))
        problems = [
            f"{flag}: nothing is evaluated during training: give --eval.dataset and --eval.steps" for flag in wanted
        ]
    else:
        problems = [*_metric_problems(asked, values), *_best_problems(asked, values)]
    raise_problems(problems)


def _metric_problems(asked: Iterable[EvalMetric], values: dict) -> list[str]:
    n, reads = values["eval.n_samples_per_prompt"], packaged(RewardSettings.from_args(nested(values)))
    problems = [
        f"{FLAG} {each}: needs {each.k} responses to a prompt, and --eval.n_samples_per_prompt is {n}"
        for each in asked
        if each.k > n
    ]
    if not reads and (votes := [str(each) for each in asked if each.kind == "maj"]):
        problems.append(
            f"{FLAG} {','.join(votes)}: a vote needs answers, and of this reward nobody knows what it takes for "
            f"the answer of a "
            f"response: use {' or '.join(READINGS)} as --reward.remote_url, or pass@K"
        )
    return problems


def _best_problems(asked: Iterable[EvalMetric], values: dict) -> list[str]:
    key, n = values["ckpt.best_metric_key"], values["eval.n_samples_per_prompt"]
    known = dict.fromkeys([EvalMetric("pass", 1), EvalMetric("pass", n), *asked])
    if key in ("", NO_BEST, *map(str, known)):
        return []
    sources = data_sources(values["eval.dataset"])
    ends = next((each.suffix for each in known if key.endswith(each.suffix)), None)
    if ends and key.startswith("eval_") and (sources is None or key[len("eval_") : -len(ends)] in sources):
        return []
    names = [f"eval_{source}{each.suffix}" for source in sorted(sources or ["<data source>"])[:5] for each in known]
    return [
        f"{BEST} {key}: not a score of the evaluations. There are {', '.join(map(str, known))}, by their full names "
        f"{', '.join(names)}; {FLAG} adds others, {NO_BEST} saves no best checkpoint"
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
