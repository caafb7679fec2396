"""Training dynamics: runs overlaid, one panel a metric."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from .. import results
from ..errors import RunError
from ..figures import Line, board, line_panel
from ..links import AXES
from ..metrics import Metrics
from ..tables import NO_RUNS, choice, empty, notices, settings_table
from ..text import HTML, html, joined
from ..workspace import Opened, Workspace

HELD_OUT = re.compile(r"eval_.*_pass1")
SECTIONS = (
    (
        "Outcome",
        "Faint: every step. Bold: the moving mean. The numbers are where it ends, in the runs’ colours.",
        (
            ("rollout/reward_mean", "Mean reward", "of a step’s responses"),
            ("held_out", "Held-out success", "pass@1, mean over tasks"),
            ("response_length", "Response length", "tokens"),
            ("truncated", "Truncated", "fraction of responses cut at the token limit"),
        ),
    ),
    (
        "Updates",
        "",
        (
            ("actor_grad_norm", "Gradient norm", "of the policy"),
            ("policy/entropy", "Entropy", "of the policy, nats a token"),
            ("policy/kl_per_step", "KL per step", "policy before ‖ after the step, a token"),
            ("ppo_clip_ratio", "Clipped tokens", "fraction whose update was clipped"),
        ),
    ),
    (
        "Estimator",
        "EBPO only. A group’s baseline is V = (1 − S)·group mean + S·prior mean, with S = (σ²/G) / (σ²/G + τ²).",
        (
            ("ebpo/shrinkage", "Shrinkage S", "0: the group’s mean alone; 1: the prior’s"),
            ("ebpo/prior_mean", "Prior mean μ_glob", "of all rewards so far"),
            ("ebpo/within_variance", "Within variance σ²", "of all rewards so far"),
            ("ebpo/between_variance", "Between variance τ²", "of all group means so far"),
        ),
    ),
    (
        "Groups",
        "A group is all answers to one prompt in one step. Where all fail or all pass, GRPO’s advantages are zero.",
        (
            ("ebpo/all_fail_fraction", "All-fail groups", "fraction of groups"),
            ("ebpo/all_pass_fraction", "All-pass groups", "fraction of groups"),
            ("ebpo/rescued_fraction", "Rescued responses", "fraction: zero under GRPO, not under EBPO"),
            ("ebpo/reward_error_fraction", "Reward errors", "fraction of responses"),
        ),
    ),
)
FALLBACKS = {
    "rollout/reward_mean": "reward",
    "response_length": "rollout/response_length_mean",
    "truncated": "rollout/truncated_rate",
}


def render(view: dict, workspace: Workspace) -> dict:
    """board: the panels; table: differing settings; notes: problems, or what to do when nothing is there; metrics: all
    names that can be added."""
    if not workspace.runs.listed() and not view["runs"]:
        return {"board": board([]), "table": "", "notes": NO_RUNS, "metrics": [], "quick": ""}
    opened, problems = workspace.open_all(view)
    present = [run for run in opened if len(run.metrics.steps)]
    notes = notices(problems)
    if opened and not present:
        notes += empty("No steps yet", "These runs have no metrics so far. The page looks again every few seconds.")
    return {
        "board": board(sections(present, view), AXES[view["x"]], zoomed(view)),
        "table": settings_table([(run.run.key, run.run.number, run.about) for run in opened]),
        "notes": notes,
        "quick": quick(view),
        "metrics": sorted({name for run in present for name in run.metrics.columns} - {"time"}),
    }


def quick(view: dict) -> HTML:
    """What stands on the x axis, and the log scale."""
    axes = joined(choice({"x": name, "zoom": ""}, shown, name == view["x"]) for name, shown in AXES.items())
    log = choice({"log": not view["log"]}, "log scale", view["log"])
    return html(
        '<div class="pair"><div class="choices" role="group" aria-label="Over">{}</div><div class="choices">{}</div></div>',
        *(axes, log),
    )


def sections(runs: Sequence[Opened], view: dict) -> list[dict]:
    """All panels that at least one run has values for; asked-for metrics first."""
    extra = [(name, name, "") for name in view["more"] if _has(runs, name)]
    chosen = [("Chosen metrics", "", tuple(extra)), *SECTIONS]
    return [
        {"title": title, "note": note, "panels": [panel for entry in entries if (panel := _panel(runs, view, *entry))]}
        for title, note, entries in chosen
    ]


def zoomed(view: dict) -> tuple[float, float] | None:
    """The part of the x axis that is looked at."""
    low, _, high = view["zoom"].partition(":")
    return (float(low), float(high)) if high else None


def _has(runs: Sequence[Opened], name: str) -> bool:
    return any(len(run.metrics.series(name)[0]) for run in runs)


def _panel(runs: Sequence[Opened], view: dict, name: str, title: str, note: str) -> dict | None:
    lines = [line for run in runs if (line := _held_out(run, view) if name == "held_out" else _line(run, name, view))]
    share = 0 if name == "held_out" else view["smooth"]
    if not lines:
        return None
    return line_panel(
        name, title, lines, unit=AXES[view["x"]], share=share, log=view["log"], note=note, zoom=zoomed(view)
    )


def _line(run: Opened, name: str, view: dict) -> Line | None:
    steps, values = run.metrics.series(name)
    if not len(steps) and name in FALLBACKS:
        steps, values = run.metrics.series(FALLBACKS[name])
    return Line(run.run.key, run.run.number, positions(run.metrics, steps, view["x"]), values) if len(steps) else None


def _held_out(run: Opened, view: dict) -> Line | None:
    """Evaluation during training (the mean over data sets), or the saved results of eval/ (the mean over tasks)."""
    names = [name for name in run.metrics.columns if HELD_OUT.fullmatch(name)]
    if names:
        stacked = np.stack([run.metrics.columns[name] for name in names])
        present = np.isfinite(stacked).all(0)
        steps, values = run.metrics.steps[present], stacked[:, present].mean(0)
    else:
        steps, values = _saved_results(run)
    if not len(steps):
        return None
    return Line(run.run.key, run.run.number, positions(run.metrics, steps, view["x"]), values)


def _saved_results(run: Opened) -> tuple[np.ndarray, np.ndarray]:
    try:
        found, _ = results.find(run.run)
    except RunError:
        found = []
    shown = results.largest_protocol(found)
    tasks = {result.task for result in found if result.protocol == shown}
    by_step: dict[int, list[float]] = {}
    for result in found:
        if result.protocol == shown and "pass@1" in result.metrics:
            by_step.setdefault(result.step, []).append(result.metrics["pass@1"]["value"])
    whole = sorted(step for step, values in by_step.items() if len(values) == len(tasks))
    return np.array(whole, int), np.array([np.mean(by_step[step]) for step in whole])


def positions(metrics: Metrics, steps: np.ndarray, axis: str) -> np.ndarray:
    """Where steps stand on the x axis: the step, responses so far, or hours since the first step."""
    if axis == "step" or not len(metrics.steps):
        return steps
    name = "time" if axis == "time" else "rollout/num_samples"
    column = metrics.columns.get(name)
    if column is None:
        return steps
    along = (column - np.nanmin(column)) / 3600 if axis == "time" else np.nancumsum(column)
    known = np.isfinite(along)
    return np.interp(steps, metrics.steps[known], along[known], left=0.0) if known.any() else steps
