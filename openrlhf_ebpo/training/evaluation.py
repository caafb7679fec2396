"""Evaluation during training: metrics of the user's choice, and the answers, which go to the run directory.

Upstream generates, and computes its metrics in the process that generated: the trainer, or in async mode another actor,
perhaps on another node. So the answers travel with the metrics to the trainer, which writes both.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from openrlhf_ebpo.rewards.answers import READINGS, Reading, packaged
from openrlhf_ebpo.rewards.guard import INFO_KEY
from openrlhf_ebpo.rewards.pool import default_workers
from openrlhf_ebpo.rewards.settings import RewardSettings
from openrlhf_ebpo.rewards.special_tokens import without_end
from openrlhf_ebpo.run.votes import best_at_k, classes, majority_at_k
from openrlhf_ebpo.training.eval_metrics import EvalMetric, parse
from openrlhf_ebpo.training.rollouts import response_tokens

logger = logging.getLogger(__name__)

VOTE_SECONDS = 120.0  # for comparing all wrong answers of an evaluation: training waits


@dataclass(frozen=True)
class Answered:
    """A prompt with its n responses; lists have one entry a response.

    rewards: as upstream's metrics take them. passed: whether they are those of a response that passes. answers: None
    where there is none. classes: of equal answers; None where nobody knows what the reward takes for the answer.
    """

    source: str
    prompt: str
    label: str
    rewards: list[float]
    passed: list[bool]
    responses: list[str]
    lengths: list[int]
    truncated: list[bool]
    errors: list[str | None]
    answers: list[str | None]
    classes: list[int] | None


class Evaluation(dict):
    """Metrics by name, as upstream has them.

    Attributes:
        answered: what they are of; empty where answers are not kept.
    """

    answered: Sequence[Answered] = ()


def with_answers(original):
    """Wraps compute_eval_metrics of ppo_trainer, for both trainers."""

    @functools.wraps(original)
    def compute_eval_metrics(eval_dataloader, samples_list, n_samples_per_prompt):
        logs = original(eval_dataloader, samples_list, n_samples_per_prompt)
        data = eval_dataloader.dataset
        args = data.strategy.args
        requested, keep = parse(args.eval.metrics), not args.logger.no_eval_answers
        if not samples_list or not (requested or keep):
            return logs
        rewards, ebpo = RewardSettings.from_args(args), args.algo.advantage.ebpo
        passes = ebpo.pass_reward - 1e-6 * (ebpo.pass_reward - ebpo.fail_reward)  # rewards are float32
        found = answered(data, samples_list, n_samples_per_prompt, READINGS.get(packaged(rewards)), passes)
        evaluation = Evaluation({**logs, **metrics(found, requested)})
        evaluation.answered = found if keep else ()
        return evaluation

    return compute_eval_metrics


def answered(data, samples: Sequence, n: int, reading: Reading | None, passes: float) -> list[Answered]:
    """Return the samples by prompt, in the order of the data set; they come in any order, those of a prompt together.

    Args:
        reading: how the reward reads answers; None if nobody knows. passes: a reward from here on is a success.
    """
    sources = dict(zip(data.prompts, data.datasources, strict=True))
    places = {prompt: i for i, prompt in reversed(list(enumerate(data.prompts)))}
    groups = [samples[i : i + n] for i in range(0, len(samples), n)]
    groups.sort(key=lambda group: places.get(group[0].prompts[0], len(places)))
    texts = [_texts(group, data.tokenizer) for group in groups]
    until = time.monotonic() + VOTE_SECONDS

    def of_group(group, texts) -> Answered:
        return _answered(sources.get(group[0].prompts[0], "unknown"), group, texts, passes, reading, until)

    with ThreadPoolExecutor(default_workers()) as threads:  # they wait for the processes that compare
        found = list(threads.map(of_group, groups, texts))
    if time.monotonic() > until:
        logger.warning(
            "evaluation: wrong answers were compared for %g s; of the others only integers and equal texts count as "
            "the same answer in maj@k",
            VOTE_SECONDS,
        )
    return found


def _texts(group: Sequence, tokenizer) -> list[str]:
    """Decode the responses as rewards read them and rollouts show them, special tokens included."""
    tokens = list(itertools.chain.from_iterable(map(response_tokens, group)))
    return tokenizer.batch_decode([each.tolist() for each in tokens], skip_special_tokens=False)


def _answered(
    source: str, group: Sequence, texts: list[str], passes: float, reading: Reading | None, until: float
) -> Answered:
    rewards = [float(sample.rewards) for sample in group]
    passed = [reward >= passes for reward in rewards]
    answers = [reading.extract(without_end(text)) if reading else None for text in texts]
    return Answered(
        source=source,
        prompt=group[0].prompts[0],
        label=group[0].labels[0],
        rewards=rewards,
        passed=passed,
        responses=texts,
        lengths=[int(sample.response_length) for sample in group],
        truncated=[bool(sample.truncated) for sample in group],
        errors=[next(iter(sample.info.get(INFO_KEY, ())), None) or None for sample in group],
        answers=answers,
        classes=classes(answers, passed, reading.spelled, reading.same(until)) if reading else None,
    )


def metrics(found: Sequence[Answered], requested: Iterable[EvalMetric]) -> dict[str, float]:
    """Compute the requested metrics of each data source, under names like upstream's."""
    by_source: dict[str, list[Answered]] = {}
    for each in found:
        by_source.setdefault(each.source, []).append(each)
    return {
        f"eval_{source}{metric.suffix}": value(metric, prompts)
        for metric in requested
        for source, prompts in by_source.items()
    }


def value(metric: EvalMetric, prompts: Sequence[Answered]) -> float:
    """The mean over prompts, the same in whatever order they come: two equal evaluations are a tie."""
    if metric.kind == "pass":
        each = best_at_k(np.array([prompt.rewards for prompt in prompts]), metric.k)
    else:
        passed, names = (np.array([getattr(prompt, name) for prompt in prompts]) for name in ("passed", "classes"))
        each = majority_at_k(passed, names, metric.k)
    return math.fsum(each) / len(prompts)


def keep_answers(run_dir: Path, step: int, evaluation: Evaluation, args) -> None:
    """Write the answers as evaluation results, for all readers of them: eval/training/<data source>/."""
    found = getattr(evaluation, "answered", ())
    if found:
        from openrlhf_ebpo.eval import in_training

        settings = in_training.EvaluationSettings.from_args(args)
        in_training.save(run_dir, step, found, settings, list(map(str, parse(args.eval.metrics))))
