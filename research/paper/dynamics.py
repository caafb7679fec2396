"""Curves over the steps of a training: gradient norm, KL per step, entropy, validation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lab.cells import Cell
from lab.jobs import Learning
from lab.measured import Measured
from lab.plots import Panel, Series
from lab.statistics import interval, ratio
from paper.catalogue import Content, Figure, Finding, Size, compared
from paper.reported import REVISION, WORDS_ONLY

GRPO, EBPO = "group_norm", "ebpo"
TINY = 1e-9
LABELS = {GRPO: "GRPO", EBPO: "EBPO"}
STARTS = {0.05: "start 5 %, most groups fail", 0.3: "start 30 %"}
SETTING = (
    "In one process: the small network (a transformer of 13,700 weights that spells words backward, "
    "warm-started to the success named), {steps} steps of 32 prompts × G = 4, PPO clip 0.2, Adam, no KL loss. The "
    "seeds of both estimators have the same warm starts, prompts and random numbers."
)


def learning(start: float, estimator: str, size: Size) -> Learning:
    return Learning(Cell(start, steps=size.steps), estimator)


def jobs(size: Size) -> list[Learning]:
    return [learning(start, estimator, size) for start in STARTS for estimator in LABELS]


def curves(
    measured: Measured, size: Size, start: float, metric: str, over: str = "", scale: float = 1.0
) -> list[Series]:
    """Of both estimators by step, times `scale`; divided by the metric `over`, where one is named."""
    found = []
    for estimator, label in LABELS.items():
        job = learning(start, estimator, size)
        values = scale * measured.values(job, metric)
        values = values / np.maximum(measured.values(job, over), TINY) if over else values
        steps = measured.values(job, "step")[0, -values.shape[1] :]
        found.append(Series(label, label, steps.tolist(), values))
    return found


def panels(measured: Measured, size: Size, metric: str, y_label: str, scale: float = 1.0) -> list[Panel]:
    return [
        Panel(title, "training step", y_label, curves(measured, size, start, metric, scale=scale))
        for start, title in STARTS.items()
    ]


def difference(series: Sequence[Series], part: slice = slice(None)):
    """EBPO minus GRPO, of the mean over a part of the training."""
    grpo, ebpo = (each.values[:, part].mean(1) for each in series)
    return interval(ebpo - grpo)


def gradient_norm(measured: Measured, size: Size) -> Content:
    shown = panels(measured, size, "grad_norm", "gradient norm")
    scaled = curves(measured, size, 0.05, "grad_norm", over="advantage_rms")
    shown.append(Panel("start 5 %, over the advantages' RMS", "training step", "gradient norm / advantage RMS", scaled))
    findings = [
        compared(f"EBPO minus GRPO, mean of all steps, {title}", difference(panel.series), +1)
        for title, panel in zip(STARTS.values(), shown, strict=False)
    ]
    grpo, ebpo = (np.maximum(each.values.mean(1), TINY) for each in scaled)
    share = ratio(ebpo / grpo)
    text = (
        f"At a start of 5 %, divided by the root mean square of the advantages: {share.mean:.2f} times GRPO's (95 % "
        f"interval {share.low:.2f} to {share.high:.2f}). Standardising over the batch makes the advantages larger than "
        "GRPO's, which are 0 for most groups; this is what is left of the norm when that scale, which Adam takes "
        "out too, is gone"
    )
    return Content(shown, [*findings, Finding(text)])


def kl(measured: Measured, size: Size) -> Content:
    shown = panels(measured, size, "kl", "KL per step, 10⁻⁶ nats a token", scale=1e6)
    findings = []
    for title, panel in zip(STARTS.values(), shown, strict=True):
        last = slice(-(len(panel.series[0].x) // 3), None)
        found = difference(panel.series, last)
        findings.append(compared(f"EBPO minus GRPO, mean of the last third, {title}", found, -1, "× 10⁻⁶ nats", 1))
    peaks = [interval(each.values.max(1) / np.median(each.values, axis=1)) for each in shown[0].series]
    ratios = " and ".join(
        f"{each.mean:.1f} ± {each.half:.1f} ({label})" for each, label in zip(peaks, LABELS.values(), strict=True)
    )
    peak = Finding(f"Highest over median KL of a training, start 5 %: {ratios}; a collapse would be far above")
    return Content(shown, [*findings, peak])


def entropy(measured: Measured, size: Size) -> Content:
    shown = panels(measured, size, "entropy", "entropy, nats a token")
    findings = [
        compared(f"EBPO minus GRPO, mean of all steps, {title}", difference(panel.series), +1)
        for title, panel in zip(STARTS.values(), shown, strict=True)
    ]
    level, pairs = equal_success(measured, size)
    found = interval(pairs[1] - pairs[0])
    what = f"The same where both first solve {level:.0%} of the held-out words, start 5 %"
    findings.append(compared(what, found, +1))
    by_success = []
    for estimator, label in LABELS.items():
        job = learning(0.05, estimator, size)
        success, values = measured.values(job, "pass@1")[:, 1:], measured.values(job, "entropy")
        by_success.append(Series(label, label, success.mean(0).tolist(), values))
    x, y = "held-out success (mean of seeds)", "entropy, nats a token"
    return Content([*shown, Panel("start 5 %, by success", x, y, by_success)], findings)


def equal_success(measured: Measured, size: Size) -> tuple[float, list[np.ndarray]]:
    """Three quarters of the way that GRPO came, and the entropy of each seed where it first was there; GRPO's, then
    EBPO's."""
    both = [learning(0.05, estimator, size) for estimator in LABELS]
    curve = measured.values(both[0], "pass@1").mean(0)
    level = float(curve[0] + 0.75 * (curve[-1] - curve[0]))
    found = []
    for job in both:
        success, values = measured.values(job, "pass@1")[:, 1:], measured.values(job, "entropy")
        found.append(np.array([np.interp(level, *rising(s, e)) for s, e in zip(success, values, strict=True)]))
    return level, found


def rising(success: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The points where a success is first reached, as np.interp wants them."""
    first = success > np.concatenate([[-1.0], np.maximum.accumulate(success)[:-1]])
    return success[first], values[first]


def validation(measured: Measured, size: Size) -> Content:
    shown, findings = [], []
    for start, title in STARTS.items():
        for k in (1, 16):
            series = curves(measured, size, start, f"pass@{k}")
            shown.append(Panel(title, "training step", f"held-out pass@{k}", series))
            found = interval(series[1].values[:, -1] - series[0].values[:, -1])
            findings.append(compared(f"EBPO minus GRPO, pass@{k} after the last step, {title}", found, +1))
    return Content(shown, findings)


def figure(title: str, claim: str, alt: str, content) -> Figure:
    return Figure(title, f"{claim} ({REVISION}; Qwen3-8B). {WORDS_ONLY}", SETTING, alt, jobs, content)


FIGURES = {
    "gradient_norm": figure(
        "Gradient norm",
        "EBPO keeps healthy gradients, GRPO's are consistently smaller, as groups that fail entirely give it none",
        "Gradient norm over training steps of GRPO and EBPO, at two starts, and divided by the advantages' root mean "
        "square.",
        gradient_norm,
    ),
    "kl": figure(
        "KL per step",
        "The KL of the policy before a step to that after it stays bounded with EBPO, while GRPO destabilises late in "
        "training",
        "KL per step over training steps of GRPO and EBPO, at two starts.",
        kl,
    ),
    "entropy": figure(
        "Entropy",
        "EBPO keeps a higher entropy throughout training",
        "Entropy over training steps of GRPO and EBPO, at two starts, and over success.",
        entropy,
    ),
    "validation": figure(
        "Validation",
        "maj@16 and pass@16 keep rising with EBPO, where GRPO reaches a plateau or falls. (Here: pass@1 and "
        "pass@16, which are exact)",
        "Held-out pass@1 and pass@16 over training steps of GRPO and EBPO, at two starts.",
        validation,
    ),
}
