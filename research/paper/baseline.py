"""The baseline itself: what it takes from groups that fail entirely, and how far it is from the true success rate."""

from __future__ import annotations

import numpy as np

from lab.jobs import BaselineError, Penalty, Tables
from lab.measured import Job, Measured
from lab.plots import Panel, Series
from lab.statistics import interval
from paper.catalogue import Content, Figure, Finding, Size, Verdict, compared
from paper.dynamics import EBPO, GRPO, learning
from paper.prior import ends, in_points
from paper.reported import WORDS_ONLY

MEANS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
PENALTY_GROUPS = {4: "EBPO", 8: "second", 16: "third", 32: "fourth"}
SILENT = "lab.variants:SilentFailures"
ARMS = {GRPO: "GRPO", SILENT: "EBPO, all-fail groups silent", EBPO: "EBPO"}
OPTIMIZERS = {"adam": (0.05,), "sgd": (30.0, 100.0, 300.0)}
BANDIT_START = -1.1  # 0.6 % success, 98 % of the groups fail


def table(estimator: str, optimizer: str) -> Tables:
    return Tables(BANDIT_START, optimizer, estimator, OPTIMIZERS[optimizer])


def all_fail_jobs(size: Size) -> list[Job]:
    return [
        *(Penalty(group, MEANS) for group in PENALTY_GROUPS),
        *(learning(0.05, estimator, size) for estimator in ARMS),
        *(table(estimator, optimizer) for estimator in ARMS for optimizer in OPTIMIZERS),
    ]


def all_fail(measured: Measured, size: Size) -> Content:
    lines = [Series("GRPO, any G", "GRPO", MEANS, np.zeros((1, len(MEANS))))]
    for group, colour in PENALTY_GROUPS.items():
        lines.append(Series(f"EBPO, G = {group}", colour, MEANS, measured.values(Penalty(group, MEANS), "penalty")))
    network = {name: ends(measured, learning(0.05, name, size)) for name in ARMS}
    bandit = {(name, o): 100 * best(measured.values(table(name, o), "end")) for name in ARMS for o in OPTIMIZERS}
    colours = dict(zip(ARMS, ("GRPO", "quiet", "EBPO"), strict=True))
    places = ["network, Adam", "bandit, Adam", "bandit, SGD"]
    bars = [
        Series(label, colours[name], places, np.stack([network[name], *(bandit[name, o] for o in OPTIMIZERS)], 1))
        for name, label in ARMS.items()
    ]
    panels = [
        Panel("what an all-fail group gets", "mean success rate of the prompts", "raw advantage", lines),
        Panel("what it is worth", "", "success after training, %", bars, bars=True),
    ]
    deepest = measured.values(Penalty(4, MEANS), "penalty").mean(0)
    penalty = (
        f"At G = 4 an all-fail group gets {deepest[0]:.3f} where prompts succeed at {MEANS[0]:.0%} on average, "
        f"{deepest.min():.3f} where they do at {MEANS[int(deepest.argmin())]:.0%}; GRPO gives 0"
    )
    findings = [
        Finding(penalty, Verdict.AGREES),
        in_points("Network: EBPO minus EBPO with all-fail groups silent", network[EBPO] - network[SILENT], 1),
        in_points("Network: EBPO with all-fail groups silent minus GRPO", network[SILENT] - network[GRPO], 0),
    ]
    for optimizer, title in (("adam", "Adam"), ("sgd", "SGD, each at its best learning rate")):
        difference = bandit[EBPO, optimizer] - bandit[SILENT, optimizer]
        findings.append(in_points(f"Bandit, {title}: EBPO minus EBPO with all-fail groups silent", difference, 1))
    return Content(panels, findings)


def best(found: np.ndarray) -> np.ndarray:
    """(seeds,) at the learning rate where the mean over seeds is highest."""
    return found[:, found.mean(0).argmax()]


SHAPES = {
    (1.0, 1.0): "Beta(1, 1): any rate",
    (0.3, 0.3): "Beta(0.3, 0.3): all or nothing",
    (0.2, 1.8): "Beta(0.2, 1.8): hard",
}
ERROR_GROUPS = (2, 4, 8, 16, 32)
BASELINES = {
    "group mean (GRPO)": ("GRPO", (("prior", "none"),)),
    "EBPO, preset paper": ("EBPO", ()),
    "EBPO, preset corrected": ("third", (("preset", "corrected"),)),
}


def mean_error(shape: tuple[float, float], group: int, settings: tuple) -> BaselineError:
    return BaselineError(("still", *shape, 128), group, settings)


def mse_jobs(size: Size) -> list[BaselineError]:
    return [mean_error(s, g, settings) for s in SHAPES for g in ERROR_GROUPS for _, settings in BASELINES.values()]


def mse(measured: Measured, size: Size) -> Content:
    panels, findings = [], []
    for shape, title in SHAPES.items():
        series = [
            Series(label, colour, ERROR_GROUPS, errors(measured, shape, settings))
            for label, (colour, settings) in BASELINES.items()
        ]
        x, y = "G, responses per prompt", "squared error / Bayes risk"
        panels.append(Panel(title, x, y, series, powers=True, level=1))
        lead = series[1].values - series[0].values
        for i, group in enumerate(ERROR_GROUPS):
            if group in (4, 8, 16):
                shape_name = title.partition(":")[0]
                text = f"{shape_name}, G = {group}: EBPO's error minus the group mean's, over the Bayes risk"
                findings.append(compared(text, interval(lead[:, i]), -1))
    return Content(panels, findings)


def errors(measured: Measured, shape: tuple[float, float], settings: tuple) -> np.ndarray:
    return np.concatenate([measured.values(mean_error(shape, group, settings), "error") for group in ERROR_GROUPS], 1)


FIGURES = {
    "all_fail": Figure(
        "The all-fail penalty",
        "Where all responses of a prompt fail GRPO's gradient vanishes; EBPO gives the penalty −S·μ<sub>glob</sub>, "
        "which grows with the success rate of the run, and this signal is what rescues sparse tasks (arXiv 2602.05165, "
        f"theorem and corollary). {WORDS_ONLY}",
        "Left, simulated: 512 prompts with success rates from Beta(2m, 2(1 − m)); the raw advantage, before "
        "standardising. Right: the small network in one process, start 5 %, {steps} steps of 32 prompts × G = 4, and "
        "a bandit of 512 prompts × 64 answers (success 0.6 % at the start, 400 steps); EBPO, EBPO whose all-fail "
        "groups get advantage 0, and GRPO. Seeds are paired.",
        "Raw advantage of all-fail groups by success rate and group size, and success after training with and without "
        "it, on a network and a bandit.",
        all_fail_jobs,
        all_fail,
    ),
    "mse": Figure(
        "Error of the baseline",
        "EBPO's baseline has a strictly lower mean squared error than the group mean: (1 − S) σ²/G against σ²/G "
        "(arXiv 2602.05165, theorem, for the true σ² and τ²). The paper gives no measured numbers",
        "Simulated: success rates of prompts drawn from three distributions, 128 prompts × G a step, 90 steps, "
        "through the estimator that trains: its σ² and τ² are estimated as in a run. The error is over the Bayes "
        "risk, the least possible; 1 is the best.",
        "Squared error of three baselines over the Bayes risk, by group size, for three distributions of difficulty.",
        mse_jobs,
        mse,
    ),
}
