"""Understand: one group of answers, its mean, the prior and the baseline between them, under sliders."""

from __future__ import annotations

import gradio as gr
import numpy as np

from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.registry import title

from ..cards import signed
from ..estimators import (
    Given,
    Setting,
    World,
    binary_batch,
    others,
    under_every,
)
from ..figures import number
from ..page import Page
from ..parameters import number as within
from ..parts import Parts
from ..picture import Drawn, picture
from ..text import HTML, html, joined

INTRO = HTML(
    "For each prompt the policy writes G answers, its group; a right one gets reward 1, a wrong one 0. An answer’s advantage is its "
    "reward minus a baseline. The group’s own mean μ is a noisy baseline, and no signal at all where all answers are alike. EBPO "
    "(empirical Bayes policy optimisation) moves it towards the mean of all rewards so far, μ<sub>glob</sub>, the more, the noisier a "
    "group’s mean is (σ²/G) and the less prompts differ (τ²)."
)
_SPREAD = (0.002, 0.98)  # of mean·(1 − mean), where a Beta distribution exists
PARAMETERS = {
    "g": (4, within(2, 32, whole=True)),
    "right": (0, within(0, 32, whole=True)),
    "mean": (0.35, within(0.01, 0.99)),
    "within": (0.16, within(0, 0.25)),
    "between": (0.06, within(0, 0.25)),
}


def settle(view: dict) -> None:
    view["right"] = min(view["right"], view["g"])


def lay_out(parts: Parts, workspace: object) -> None:
    parts.html("intro")
    with gr.Row(elem_classes=["controls", "sliders"]):
        parts.control("g", gr.Slider(2, 32, 4, step=1, label="Group size G"), "input")
        parts.control("right", gr.Slider(0, 4, 0, step=1, label="Right answers"), "input")
        parts.control("mean", gr.Slider(0.01, 0.99, 0.35, step=0.01, label="Prior mean μ_glob"), "input")
        parts.control("within", gr.Slider(0, 0.25, 0.16, step=0.005, label="Within variance σ²"), "input")
        parts.control("between", gr.Slider(0, 0.25, 0.06, step=0.005, label="Between variance τ²"), "input")
    parts.html("story")


def render(view: dict, workspace: object = None) -> dict:
    """intro: what this is about; story: one group, its baseline and its advantages."""
    setting = Setting(view["mean"], view["within"], view["between"])
    return {
        "intro": html('<p class="intro">{}</p>', INTRO),
        "story": story(view, setting),
        "controls": {"right": {"maximum": view["g"], "value": view["right"]}},
    }


def under_all(view: dict, setting: Setting) -> dict[str, Given]:
    """The visitor's group, the first of a batch, under every estimator."""
    size = view["g"]
    batch = binary_batch(np.append(view["right"], others(world_of(view), size)), size)
    return under_every(batch, EstimatorConfig(size), {"ebpo": setting.state()})[0]


def story(view: dict, setting: Setting) -> HTML:
    size, right = view["g"], view["right"]
    found = under_all(view, setting)
    shrinkage, mean, baseline = setting.shrinkage(size), right / size, float(found["ebpo"].baselines[0, 0])
    drawn = picture(Drawn(mean, baseline, shrinkage, setting.prior_mean, setting.within, setting.between, size))
    dots = joined(html('<i class="{}"></i>', "hit" if i < right else "miss") for i in range(size))
    return html(
        '<section class="story"><div class="head"><div class="dots" role="img" aria-label="{} of {} answers right">{}</div>'
        '<p>{}</p><p class="formula"><span>S = (σ²/G) / (σ²/G + τ²) = <b>{}</b></span>'
        "<span>V = (1 − S)·μ + S·μ<sub>glob</sub> = <b>{}</b></span></p></div>{}</section>",
        *(right, size, dots, _sentence(size, right, found), number(shrinkage), number(baseline), drawn),
    )


def _sentence(size: int, right: int, found: dict[str, Given]) -> str:
    if 0 < right < size:
        return f"{right} of {size} answers right. Every estimator learns here; they differ in baseline and scale."
    silent = [title(name) for name, one in found.items() if np.abs(one.advantages[0]).max() < 1e-9]
    most = f"{len(silent)} of {len(found)} estimators, GRPO among them, learn nothing here." if silent else ""
    gained = float(found["ebpo"].advantages[0, 0])
    kind = "right" if right else "wrong"
    return f"All {size} answers are {kind}. {most} EBPO gives each {signed(gained)}."


def world_of(view: dict) -> World:
    """The sliders' Beta distribution; a variance that no Beta distribution has is brought within its limits."""
    most = view["mean"] * (1 - view["mean"])
    return World(view["mean"], float(np.clip(view["between"], _SPREAD[0] * most, _SPREAD[1] * most)))


PAGE = Page("understand", PARAMETERS, lay_out, render, settle, reads=())
