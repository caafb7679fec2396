"""Understand: one group of answers, its mean, the prior and the baseline between them, under sliders."""

from __future__ import annotations

import gradio as gr

from openrlhf_ebpo.estimator.shrinkage import shrinkage_weight

from ..figures import number, signed
from ..page import Page, Parts
from ..parameters import number as within
from ..picture import picture
from ..text import HTML, html, join

INTRO = HTML(
    "For each prompt the policy writes G answers, its group; a right one gets reward 1, a wrong one 0. An "
    "answer’s advantage is its "
    "reward minus a baseline. The group’s own mean μ is a noisy baseline, and no signal at all where all "
    "answers are alike. EBPO "
    "(empirical Bayes policy optimisation) moves it towards the mean of all rewards so far, μ<sub>glob</sub>, "
    "the more, the noisier a "
    "group’s mean is (σ²/G) and the less prompts differ (τ²)."
)
PARAMETERS = {
    "g": (4, within(2, 32, whole=True)),
    "right": (0, within(0, 32, whole=True)),
    "mean": (0.35, within(0.01, 0.99)),
    "within": (0.16, within(0, 0.25)),
    "between": (0.06, within(0, 0.25)),
}


def reconcile(view: dict) -> None:
    view["right"] = min(view["right"], view["g"])


def lay_out(parts: Parts, workspace: object) -> None:
    parts.html("intro")
    with gr.Row(elem_classes=["controls", "sliders"]):
        parts.control("g", gr.Slider(2, 32, 4, step=1, label="Group size G"), "input")
        parts.control("right", gr.Slider(0, 4, 0, step=1, label="Right answers"), "input")
        parts.control("mean", gr.Slider(0.01, 0.99, 0.35, step=0.01, label="Prior mean"), "input")
        parts.control("within", gr.Slider(0, 0.25, 0.16, step=0.005, label="Within variance σ²"), "input")
        parts.control("between", gr.Slider(0, 0.25, 0.06, step=0.005, label="Between variance τ²"), "input")
    parts.html("story")


def render(view: dict, workspace: object = None) -> dict:
    """intro: what this is about; story: one group and its baseline."""
    return {
        "intro": html('<p class="intro">{}</p>', INTRO),
        "story": story(view),
        "controls": {"right": {"maximum": view["g"], "value": view["right"]}},
    }


def story(view: dict) -> HTML:
    size, right, prior = view["g"], view["right"], view["mean"]
    shrinkage, mean = float(shrinkage_weight(view["within"], view["between"], size, 1.0)), right / size
    baseline = (1 - shrinkage) * mean + shrinkage * prior
    drawn = picture(mean, baseline, shrinkage, prior, view["within"], view["between"], size)
    dots = join(html('<i class="{}"></i>', "hit" if i < right else "miss") for i in range(size))
    return html(
        '<section class="story"><div class="head"><div class="dots" role="img" aria-label="{} of {} answers '
        'right">{}</div>'
        '<p>{}</p><p class="formula"><span>S = (σ²/G) / (σ²/G + τ²) = <b>{}</b></span>'
        "<span>V = (1 − S)·μ + S·μ<sub>glob</sub> = <b>{}</b></span></p></div>{}</section>",
        *(right, size, dots, _sentence(size, right, baseline), number(shrinkage), number(baseline), drawn),
    )


def _sentence(size: int, right: int, baseline: float) -> str:
    if 0 < right < size:
        return (
            f"{right} of {size} answers right. Right ones get r − V = {signed(1 - baseline)}, wrong ones "
            f"{signed(-baseline)}, "
            "before EBPO standardises over the batch."
        )
    kind, gained = ("right", 1 - baseline) if right else ("wrong", -baseline)
    return (
        f"All {size} answers are {kind}. GRPO subtracts the group’s mean and learns nothing here. EBPO gives each "
        f"r − V = {signed(gained)}, before it standardises over the batch."
    )


PAGE = Page("understand", PARAMETERS, lay_out, render, reconcile, reads=())
