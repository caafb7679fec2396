"""The worth of the prompts' order: topic after topic, easy to hard."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lab.cells import Cell
from lab.jobs import BaselineError, Learning
from lab.measured import Job, Measured
from lab.plots import Panel, Series
from lab.statistics import interval
from paper import reported
from paper.catalogue import REPORTED, Content, Figure, Size, compared
from paper.dynamics import EBPO, GRPO, LABELS
from paper.prior import ends, in_points

SHUFFLED, TOPIC = "shuffled passes", "by topic"
ONCE, EASY = "shuffled once", "easy to hard"
HISTORIES = {"paper": "of the run", "release": "new each batch"}
PASS = 150  # steps of an epoch
TOPICS, SPREAD = 10, 2.0  # topics whose mean success is Beta(0.5, 1.5)


def learning(order: str, estimator: str, size: Size) -> Learning:
    """One pass is one epoch, which a longer training does not make longer."""
    steps = PASS if order in (ONCE, EASY) else size.steps
    return Learning(Cell(0.05, steps=steps), estimator, order)


def error(preset: str, ordered: bool) -> BaselineError:
    return BaselineError(("clustered", TOPICS, SPREAD, ordered), 4, (("preset", preset),))


def arms(orders: Sequence[str], size: Size) -> dict[tuple[str, str], Learning]:
    return {(order, estimator): learning(order, estimator, size) for estimator in LABELS for order in orders}


def topic_jobs(size: Size) -> list[Job]:
    errors = [error(preset, ordered) for preset in HISTORIES for ordered in (False, True)]
    return [*errors, *arms((SHUFFLED, TOPIC), size).values()]


def topic(measured: Measured, size: Size) -> Content:
    jobs = arms((SHUFFLED, TOPIC), size)
    errors = {
        ordered: np.concatenate([measured.values(error(preset, ordered), "error") for preset in HISTORIES], 1)
        for ordered in (False, True)
    }
    histories = [*HISTORIES.values()]
    bars = [
        Series("shuffled", "quiet", histories, errors[False]),
        Series("topic after topic", "EBPO", histories, errors[True]),
    ]
    methods = {"GRPO": "GRPO", "EBPO shuffled": "EBPO-naive", "EBPO by topic": "EBPO-topic"}
    theirs = {label: reported.average(method) for label, method in methods.items()}
    gain = theirs["EBPO by topic"] - theirs["EBPO shuffled"]
    panels = [
        Panel("EBPO's baseline, simulated", "prior", "squared error / Bayes risk", bars, bars=True, level=1),
        Panel("the small network", "training step", "held-out success, %", by_step(measured, jobs)),
        reported.panel(REPORTED, "", "average pass@1, %", theirs, f"{reported.MODEL}, G = 4", bars=True),
    ]
    last = {arm: ends(measured, job) for arm, job in jobs.items()}
    findings = []
    for estimator, expected, said in ((EBPO, 1, f" (the paper: {gain:+.2f})"), (GRPO, 0, "")):
        what = f"By topic minus shuffled, {LABELS[estimator]}, after the last step{said}"
        findings.append(in_points(what, last[TOPIC, estimator] - last[SHUFFLED, estimator], expected))
    for label, ordered, mixed in zip(histories, errors[True].T, errors[False].T, strict=True):
        what = f"Error over Bayes risk, topic after topic minus shuffled, prior {label}"
        findings.append(compared(what, interval(ordered - mixed), -1))
    return Content(panels, findings)


def by_step(measured: Measured, jobs: dict[tuple[str, str], Learning]) -> list[Series]:
    """The first order of each estimator is dashed."""
    found = []
    for (order, estimator), job in jobs.items():
        steps = measured.values(job, "step")[0].tolist()
        success = 100 * measured.values(job, "pass@1")
        label = f"{LABELS[estimator]}, {order.removesuffix(' passes').removesuffix(' once')}"
        found.append(Series(label, LABELS[estimator], steps, success, dashed=order in (SHUFFLED, ONCE)))
    return found


def curriculum_jobs(size: Size) -> list[Learning]:
    return [*arms((ONCE, EASY), size).values()]


def curriculum(measured: Measured, size: Size) -> Content:
    jobs = arms((ONCE, EASY), size)
    last = {arm: ends(measured, job) for arm, job in jobs.items()}
    orders = {ONCE: "shuffled", EASY: "easy to hard"}
    lead = np.stack([last[order, EBPO] - last[order, GRPO] for order in orders], 1)
    words = "EBPO − GRPO, points"
    panels = [
        Panel("one pass", "training step", "held-out success, %", by_step(measured, jobs)),
        Panel("the lead, here", "order", words, [Series("here", "EBPO", [*orders.values()], lead)], bars=True, level=0),
        reported.panel(f"easy to hard, {REPORTED}", "benchmark", words, reported.CURRICULUM_GAPS, bars=True, level=0),
    ]
    findings = [
        in_points("EBPO minus GRPO, both easy to hard", lead[:, 1], 1),
        in_points("EBPO minus GRPO, both shuffled", lead[:, 0], 0),
    ]
    for estimator, label, expected in ((EBPO, "EBPO", 1), (GRPO, "GRPO", 0)):
        difference = last[EASY, estimator] - last[ONCE, estimator]
        findings.append(in_points(f"Easy to hard minus shuffled, {label}", difference, expected))
    return Content(panels, findings)


FIGURES = {
    "topic": Figure(
        "Topic order against shuffled",
        "With prompts in the order of their topics the prior fits better, and EBPO gains 4.39 points on average over "
        "shuffled prompts, Qwen3-8B, G = 4 (arXiv 2602.05165, table of EBPO-topic and EBPO-naive)",
        "First panel, simulated: ten topics with mean success from Beta(0.5, 1.5), 128 prompts × G = 4 a step, "
        "90 steps, mixed or three steps of a topic at a time; the prior of the run (preset `paper`) and one that is "
        "new each batch (preset `release`, the authors' released code). Second panel, in one process: the small "
        "network, start 5 %, {steps} steps of 32 prompts × G = 4 over a pool of 576 words a seed; topics are length "
        "and half of the alphabet, eight of them, in the same order in every pass; a pass is 18 steps. Seeds are "
        "paired.",
        "Error of EBPO's baseline for shuffled and topic-ordered prompts under two priors, success of four trainings, "
        "and the scores that the authors report.",
        topic_jobs,
        topic,
    ),
    "curriculum": Figure(
        "Easy to hard",
        "EBPO benefits from a curriculum: trained for one epoch from easy to hard, it is ahead of GRPO by 3.95 points "
        "on AIME 2024 and 6.04 on AIME 2025, Qwen3-8B, G = 4 (arXiv 2602.05165; the other benchmarks are known as a "
        "picture only)",
        "In one process: the small network, start 5 %, one pass over 4,800 words a seed in 150 steps of 32 × G = 4, "
        "shuffled or sorted by the policy's own success at the start (exact, where the paper counts 16 responses). "
        "Seeds are paired.",
        "Success of four trainings by step, EBPO's lead here, and the lead that the authors report on two benchmarks.",
        curriculum_jobs,
        curriculum,
    ),
}
