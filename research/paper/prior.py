"""The worth of the prior: by group size, and on, off, or another one."""

from __future__ import annotations

import numpy as np

from lab.cells import Cell
from lab.jobs import Learning
from lab.measured import Measured
from lab.plots import Panel, Series
from lab.statistics import interval
from paper import reported
from paper.catalogue import REPORTED, Content, Figure, Finding, Size, compared
from paper.dynamics import EBPO, GRPO, LABELS, learning

GROUPS, PROMPTS = (4, 8, 16, 32), 32
PRIORS = {  # compared with GRPO
    "grpo_batch_norm": "off, S = 0",
    "ebpo.release": "new each batch",
    "ebpo": "of the run",
    "ebpo.revision": "Beta-Binomial",
    "global_mean": "alone, S = 1",
}
PAIRS = (  # and the sign that the paper says
    ("ebpo", "grpo_batch_norm", 1),
    ("ebpo.revision", "ebpo", 1),
    ("ebpo", "ebpo.release", 0),
    ("global_mean", "ebpo", 0),
)
POINTS = "percentage points"


def of_group(group: int, estimator: str, size: Size) -> Learning:
    """As in the paper, the prompts of a step stay the same and their responses grow in number."""
    return Learning(Cell(0.05, group=group, steps=size.group_steps, rollouts=PROMPTS * group), estimator)


def group_jobs(size: Size) -> list[Learning]:
    return [of_group(group, estimator, size) for group in GROUPS for estimator in LABELS]


def ends(measured: Measured, job: Learning) -> np.ndarray:
    return 100 * measured.values(job, "pass@1")[:, -1]


def in_points(what: str, differences: np.ndarray, expected: int) -> Finding:
    """Of (seeds,) paired differences in percentage points."""
    return compared(what, interval(differences), expected, POINTS, digits=2)


def group_size(measured: Measured, size: Size) -> Content:
    by_estimator = {e: np.stack([ends(measured, of_group(g, e, size)) for g in GROUPS], 1) for e in LABELS}
    success = [Series(LABELS[e], LABELS[e], GROUPS, values) for e, values in by_estimator.items()]
    lead = by_estimator[EBPO] - by_estimator[GRPO]
    theirs = {g: reported.average("EBPO-topic", g) - reported.average("GRPO", g) for g in GROUPS}
    g, words = "G, responses per prompt", "EBPO − GRPO, points"
    panels = [
        Panel("after the last step", g, "held-out success, %", success, powers=True),
        Panel("the lead, here", g, words, [Series("here", "EBPO", GROUPS, lead)], powers=True, level=0),
        reported.panel(
            f"the lead, {REPORTED}", g, words, theirs, f"{reported.MODEL}, EBPO by topic", powers=True, level=0
        ),
    ]
    findings = [
        in_points(f"EBPO minus GRPO at G = {group} (the paper: {their:+.2f})", lead[:, i], int(np.sign(their)))
        for i, (group, their) in enumerate(theirs.items())
    ]
    return Content(panels, findings)


def prior_jobs(size: Size) -> list[Learning]:
    return [learning(0.05, estimator, size) for estimator in (GRPO, *PRIORS)]


def prior(measured: Measured, size: Size) -> Content:
    base = ends(measured, learning(0.05, GRPO, size))
    lead = np.stack([ends(measured, learning(0.05, name, size)) - base for name in PRIORS], 1)
    grpo = reported.average("GRPO")
    theirs = {
        PRIORS["grpo_batch_norm"]: reported.BATCH_NORMALISED - grpo,
        PRIORS["ebpo"]: reported.average("EBPO-topic") - grpo,
        PRIORS["ebpo.revision"]: reported.BETA_BINOMIAL - grpo,
    }
    words = "success − GRPO's, points"
    panels = [
        Panel("here", "prior", words, [Series("here", "EBPO", [*PRIORS.values()], lead)], bars=True, level=0),
        reported.panel(REPORTED, "prior", words, theirs, bars=True, level=0),
    ]
    findings = []
    for i, (name, label) in enumerate(PRIORS.items()):
        said = f" (the paper: {theirs[label]:+.2f})" if label in theirs else ""
        expected = {"ebpo": 1, "ebpo.revision": 1}.get(name, 0)
        findings.append(in_points(f"Prior {label}, minus GRPO{said}", lead[:, i], expected))
    ends_by_prior = dict(zip(PRIORS, lead.T, strict=True))
    for one, other, expected in PAIRS:
        said = f" (the paper: {theirs[PRIORS[one]] - theirs[PRIORS[other]]:+.2f})" if expected else ""
        difference = ends_by_prior[one] - ends_by_prior[other]
        findings.append(in_points(f"Prior {PRIORS[one]} minus {PRIORS[other]}{said}", difference, expected))
    return Content(panels, findings)


FIGURES = {
    "group_size": Figure(
        "Group size, 4 to 32",
        "EBPO leads GRPO by 5.67 points at G = 4, by 11.28 at G = 8 and by 1.48 at G = 16, and is behind by 0.50 at G "
        "= 32: averages of five benchmarks, Qwen3-8B (arXiv 2602.05165 for G = 4, its later revision for the others)",
        "In one process: the small network, start 5 %, {group_steps} steps of 32 prompts with G responses each, "
        "so that a larger G is also more responses, as in the paper. Adam, learning rate 8e-4. Seeds are paired.",
        "Success after training of GRPO and EBPO for group sizes 4 to 32, EBPO's lead here, and the lead that the "
        "authors report.",
        group_jobs,
        group_size,
    ),
    "prior": Figure(
        "Prior on and off",
        "Standardising over the batch without a prior (GRPO + BN) is 1.01 points below GRPO, EBPO 5.67 above, EBPO "
        "with a Beta-Binomial prior 6.97 above: averages of five benchmarks, Qwen3-8B, G = 4 (arXiv 2602.05165 and "
        "its later revision). By its text EBPO has a prior of the run; the authors' released code makes a new one for "
        "each batch",
        "In one process: the small network, start 5 %, {steps} steps of 32 prompts × G = 4. All standardise over the "
        "batch but GRPO. Off: S = 0, the group's mean. New each batch: preset `release`, as the authors' released "
        "code does. Of the run: preset `paper`. Beta-Binomial: preset `revision`. Alone: S = 1, the mean of the "
        "batch. Seeds are paired.",
        "Success after training minus GRPO's for five priors, and the differences that the authors report for three.",
        prior_jobs,
        prior,
    ),
}
