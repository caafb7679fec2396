"""The curves of a training in OpenRLHF: Ray, DeepSpeed and vLLM, with the quickstart's model and task."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lab.measured import Measured
from lab.plots import Panel, Series
from lab.real import RealLearning
from lab.statistics import interval
from paper.catalogue import Content, Figure, Size, compared
from paper.dynamics import LABELS
from paper.reported import REVISION, WORDS_ONLY

STEPS = 60
WINDOW = 5  # steps that are averaged into a point
TITLES = {  # and the sign that the paper says
    "rollout/reward_mean": ("mean reward", 1),
    "actor_grad_norm": ("gradient norm", 1),
    "policy/entropy": ("entropy, nats a token", 1),
    "policy/kl_per_step": ("KL per step, nats a token", -1),
}


def jobs(size: Size) -> list[RealLearning]:
    return [RealLearning(estimator, STEPS) for estimator in LABELS]


def content(measured: Measured, size: Size) -> Content:
    panels, findings = [], []
    for metric, (title, expected) in TITLES.items():
        series = [
            Series(label, label, *windows(measured.values(RealLearning(estimator, STEPS), metric)))
            for estimator, label in LABELS.items()
        ]
        panels.append(Panel(title, "training step", title, series))
        found = interval(series[1].values.mean(1) - series[0].values.mean(1))
        what = f"{title[0].upper()}{title[1:]}, EBPO minus GRPO, mean of all steps"
        findings.append(compared(what, found, expected, digits=4))
    return Content(panels, findings)


def windows(values: np.ndarray) -> tuple[Sequence[float], np.ndarray]:
    """Steps, and (seeds, points) means over WINDOW steps each."""
    points = values.shape[1] // WINDOW
    means = values[:, : points * WINDOW].reshape(len(values), points, WINDOW).mean(2)
    return [(i + 0.5) * WINDOW for i in range(points)], means


FIGURES = {
    "real_stack": Figure(
        "In OpenRLHF",
        f"Gradient norm and entropy are higher with EBPO than with GRPO, KL per step stays bounded ({REVISION}; "
        f"Qwen3-8B). {WORDS_ONLY}",
        "In OpenRLHF (Ray, DeepSpeed, vLLM): the quickstart's Qwen3 of 125,000 weights and its task, 60 steps "
        "of 128 prompts × G = 2, start about 5 %, no KL loss. Seeds have their own order of prompts, the same for "
        "both estimators. A point is the mean of five steps.",
        "Mean reward, gradient norm, entropy and KL per step of GRPO and EBPO, trained through OpenRLHF.",
        jobs,
        content,
        real=True,
    )
}
