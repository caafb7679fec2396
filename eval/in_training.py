"""Evaluations during training (--eval.dataset) as results like any others, of the protocol `training`: one task for
each data source, as the trainer's metrics have them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from openrlhf_ebpo.data.questions import question_id
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.rewards.answers import packaged
from openrlhf_ebpo.rewards.golds import label_answer
from openrlhf_ebpo.rewards.settings import RewardSettings
from openrlhf_ebpo.run.results import TRAINING, sample_rows, save_result, step_directory
from openrlhf_ebpo.run.run_log import versions

from .metrics import requested_metrics, scored, summarise
from .protocols import Protocol
from .tasks import Question, Task
from .tasks.task_rows import folder_name

MAX_NAME_CHARS = 80  # of a data source in a folder's name


@dataclass(frozen=True)
class EvaluationSettings:
    """What the scores of a training's evaluations depend on: the model, --eval.dataset, and the protocol."""

    model: str
    dataset: str
    protocol: Protocol

    @classmethod
    def from_args(cls, args) -> EvaluationSettings:
        """Read upstream's nested arguments. It samples without a seed, and the reward scores."""
        kind = packaged(RewardSettings.from_args(args))
        protocol = Protocol(
            TRAINING,
            n=args.eval.n_samples_per_prompt,
            temperature=args.eval.temperature,
            top_p=args.rollout.top_p,
            max_new_tokens=args.rollout.max_new_tokens or args.data.max_len,
            max_model_len=args.data.max_len,
            template=args.data.input_template or "as in the data set",
            chat_template=args.data.apply_chat_template,
            extraction="as the reward reads it",
            scorer=f"reward {kind}" if kind else "the run's own reward",
            scorer_version="",
            seed=None,
        )
        return cls(args.actor.model_name_or_path, redacted_text(args.eval.dataset), protocol)


def save(run_dir: Path, step: int, answered: Sequence, settings: EvaluationSettings, requested: Sequence[str]) -> None:
    """Write the answers of a step: training.evaluation.Answered for each prompt.

    requested: names of the metrics of --eval.metrics.
    """
    for source in dict.fromkeys(each.source for each in answered):
        prompts = [each for each in answered if each.source == source]
        task = Task(task_name(source), questions_of(prompts), settings.dataset, rows=len(prompts))
        directory = step_directory(run_dir / "eval", TRAINING, task.name, step)
        rows = [row for pair in zip(task.questions, prompts, strict=True) for row in rows_of(*pair)]
        save_result(directory, summary(step, task, settings, prompts, requested), rows)


def task_name(source: str) -> str:
    """Return a folder's name that no other data source gets."""
    name = folder_name(source)[:MAX_NAME_CHARS]
    return name if name == source else f"{name}-{hashlib.sha256(source.encode()).hexdigest()[:8]}"


def questions_of(prompts: Iterable) -> tuple[Question, ...]:
    seen: Counter[str] = Counter()
    found = []
    for each in prompts:
        key = question_id(each.prompt)
        seen[key] += 1
        name = key if seen[key] == 1 else f"{key}-{seen[key]}"
        found.append(Question(name, each.prompt, label_answer(each.label)))
    return tuple(found)


def rows_of(question: Question, answered) -> list[dict]:
    columns = {
        "response": answered.responses,
        "extracted": answered.answers,
        "correct": answered.passed,
        "error": answered.errors,
        "length": answered.lengths,
        "finish_reason": ["length" if cut else "stop" for cut in answered.truncated],
        "class": answered.classes or [None] * len(answered.rewards),
    }
    return sample_rows(question.id, question.question, question.gold, question.rules.text(), columns)


def summary(step: int, task: Task, settings: EvaluationSettings, prompts: Sequence, requested: Sequence[str]) -> dict:
    return {
        "model": settings.model,
        "step": step,
        "task": task.record(),
        "protocol": settings.protocol.record(),
        "metrics": metrics_of(prompts, requested),
        "versions": versions(),
        "seeds": [],
        "counts": {"excluded_golds": 0, "errors": sum(error is not None for each in prompts for error in each.errors)},
        "settings": {"model": settings.model},
    }


def metrics_of(prompts: Sequence, requested: Iterable[str]) -> dict:
    """Return metrics.summarise, and those that --eval.metrics adds."""
    passed, lengths, truncated = (
        np.array([getattr(each, name) for each in prompts]) for name in ("passed", "lengths", "truncated")
    )
    known = all(each.classes is not None for each in prompts)
    classes = np.array([each.classes for each in prompts]) if known else None
    found = summarise(passed, classes, lengths, truncated)
    more = requested_metrics(passed, classes, [name for name in requested if name not in found])
    return found | {name: scored(name, values) for name, values in more.items()}
