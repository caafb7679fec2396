"""Evaluations during training (--eval.dataset) as results like any others, of the protocol `training`: one task for
each data source, as the trainer's metrics have them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
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


def save(run_dir: Path, step: int, answered: Sequence, args, asked: Sequence[str]) -> None:
    """Write the answers of a step: training.evaluation.Answered for each prompt, and the training's arguments.

    asked: names of the metrics that --eval.metrics asks for.
    """
    kind = packaged(RewardSettings.from_args(args))
    for source in dict.fromkeys(each.source for each in answered):
        prompts = [each for each in answered if each.source == source]
        task = Task(task_name(source), questions_of(prompts), redacted_text(args.eval.dataset), rows=len(prompts))
        protocol = protocol_of(args, kind)
        directory = step_directory(run_dir / "eval", TRAINING, task.name, step)
        rows = [row for pair in zip(task.questions, prompts, strict=True) for row in rows_of(*pair)]
        save_result(directory, summary(step, task, protocol, prompts, args, asked), rows)


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


def protocol_of(args, kind: str | None) -> Protocol:
    """Return the settings of the scores: upstream samples without a seed, and the reward scores."""
    return Protocol(
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


def summary(step: int, task: Task, protocol: Protocol, prompts: Sequence, args, asked: Sequence[str]) -> dict:
    return {
        "model": args.actor.model_name_or_path,
        "step": step,
        "task": task.record(),
        "protocol": protocol.record(),
        "metrics": metrics_of(prompts, asked),
        "versions": versions(),
        "seeds": [],
        "counts": {"excluded_golds": 0, "errors": sum(error is not None for each in prompts for error in each.errors)},
        "settings": {"model": args.actor.model_name_or_path},
    }


def metrics_of(prompts: Sequence, asked: Iterable[str]) -> dict:
    """Return metrics.summarise, and those that --eval.metrics adds."""
    passed, lengths, truncated = (
        np.array([getattr(each, name) for each in prompts]) for name in ("passed", "lengths", "truncated")
    )
    known = all(each.classes is not None for each in prompts)
    classes = np.array([each.classes for each in prompts]) if known else None
    found = summarise(passed, classes, lengths, truncated)
    more = requested_metrics(passed, classes, [name for name in asked if name not in found])
    return found | {name: scored(name, values) for name, values in more.items()}
