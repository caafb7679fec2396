"""The curves of a training on the real stack: Ray, DeepSpeed and vLLM, with the quickstart's model and task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from lab.jobs import rounded
from lab.measured import Job, Measured, Record, Tick
from lab.plots import Panel, Series
from lab.real import train
from lab.statistics import interval
from openrlhf_ebpo.errors import ReportedError
from paper.catalogue import Content, Figure, Size, compared
from paper.dynamics import LABELS
from paper.reported import REVISION, WORDS_ONLY

METRICS = {
    "rollout/reward_mean": ("mean reward", 1),
    "actor_grad_norm": ("gradient norm", 1),
    "policy/entropy": ("entropy, nats a token", 1),
    "policy/kl_per_step": ("KL per step, nats a token", -1),
}
WINDOW = 5  # steps that are averaged into a point


@dataclass(frozen=True)
class RealTraining(Job):
    """The quickstart's training, in `work`/real_stack: minutes a seed. One that was interrupted resumes from its checkpoint."""

    at_once: ClassVar[int] = 1
    estimator: str
    steps: int = 60

    @property
    def cost(self) -> float:
        return 500_000  # what the small network draws meanwhile

    @property
    def title(self) -> str:
        return f"{self.estimator} on the real stack"

    def measure(self, seeds: list[int], work: Path, tick: Tick) -> list[Record]:
        from openrlhf_ebpo.record.run_log import read_metrics

        (seed,) = seeds
        arm = train(work / "real_stack", self.estimator, seed, self.steps)
        rows = [row for row in read_metrics(arm / "run") if all(name in row for name in METRICS)]
        if len(rows) != self.steps:
            raise ReportedError(
                f"{arm}/run has {len(rows)} of {self.steps} steps with all metrics: remove {arm} and repeat"
            )
        tick(self.cost)
        return [{name: [rounded(row[name]) for row in rows] for name in METRICS}]


def jobs(size: Size) -> list[RealTraining]:
    return [RealTraining(estimator) for estimator in LABELS]


def content(measured: Measured, size: Size) -> Content:
    panels, findings = [], []
    for metric, (title, expected) in METRICS.items():
        series = [
            Series(label, label, *windows(measured.values(RealTraining(estimator), metric)))
            for estimator, label in LABELS.items()
        ]
        panels.append(Panel(title, "training step", title, series))
        found = interval(series[1].values.mean(1) - series[0].values.mean(1))
        findings.append(
            compared(f"{title[0].upper()}{title[1:]}, EBPO minus GRPO, mean of all steps", found, expected, digits=4)
        )
    return Content(panels, findings)


def windows(values: np.ndarray) -> tuple[Sequence[float], np.ndarray]:
    """Steps, and (seeds, points) means over WINDOW steps each."""
    points = values.shape[1] // WINDOW
    means = values[:, : points * WINDOW].reshape(len(values), points, WINDOW).mean(2)
    return [(i + 0.5) * WINDOW for i in range(points)], means


FIGURES = {
    "real_stack": Figure(
        "The real stack",
        f"Gradient norm and entropy are higher with EBPO than with GRPO, KL per step stays bounded ({REVISION}; Qwen3-8B). {WORDS_ONLY}",
        "On the real stack (Ray, DeepSpeed, vLLM): the quickstart's Qwen3 of 125,000 weights and its task, 60 steps of 128 prompts × G = 2, start about "
        "5 %, no KL loss. Seeds have their own order of prompts, the same for both estimators. A point is the mean of five steps.",
        "Mean reward, gradient norm, entropy and KL per step of GRPO and EBPO, trained through OpenRLHF.",
        jobs,
        content,
        real=True,
    )
}
