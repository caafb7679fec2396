"""Understand: one group under every estimator, live; why centring hides the prior mean; error against the Bayes risk."""

from __future__ import annotations

import gradio as gr
import numpy as np

from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.registry import ESTIMATORS, title

from ..cards import signed
from ..comparison import Line, comparison
from ..estimators import (
    OTHERS,
    WEIGHTS,
    Given,
    Setting,
    World,
    binary_batch,
    centred_batch,
    error_curves,
    given,
    others,
    under_every,
)
from ..figures import board, colour, number, packed, plotly_text
from ..page import Page
from ..parameters import number as within
from ..parts import Parts
from ..picture import Drawn, picture
from ..text import HTML, html, joined

SIZES = np.arange(2, 33)
SHADES = {"group_norm": 1, "dr_grpo": 2, "rloo": 5, "ebpo": 0}  # of the estimators that have a line in the plots
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
    parts.board("board")
    parts.html("centring")


def render(view: dict, workspace: object = None) -> dict:
    """intro: what this is about; story: HTML of one group under every estimator; board: the plots; centring: its text."""
    setting = Setting(view["mean"], view["within"], view["between"])
    return {
        "intro": html('<p class="intro">{}</p>', INTRO),
        "story": story(view, setting),
        "board": board(plots(view, setting)),
        "centring": centring(view, setting),
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
        "<span>V = (1 − S)·μ + S·μ<sub>glob</sub> = <b>{}</b></span></p></div>{}</section>{}",
        *(right, size, dots, _sentence(size, right, found), number(shrinkage), number(baseline), drawn),
        _every(size, right, found),
    )


def _sentence(size: int, right: int, found: dict[str, Given]) -> str:
    if 0 < right < size:
        return f"{right} of {size} answers right. Every estimator learns here; they differ in baseline and scale."
    silent = [title(name) for name, one in found.items() if np.abs(one.advantages[0]).max() < 1e-9]
    most = f"{len(silent)} of {len(found)} estimators, GRPO among them, learn nothing here." if silent else ""
    gained = float(found["ebpo"].advantages[0, 0])
    kind = "right" if right else "wrong"
    return f"All {size} answers are {kind}. {most} EBPO gives each {signed(gained)}."


def _every(size: int, right: int, found: dict[str, Given]) -> HTML:
    kinds = {"right answer": np.arange(size) < right, "wrong answer": np.arange(size) >= right}
    lines = [
        Line(
            title(name),
            ESTIMATORS[name].baseline,
            one.baselines[0],
            [one.advantages[0][mask] for mask in kinds.values()],
            strong=name == "ebpo",
            alone=one.alone,
        )
        for name, one in found.items()
    ]
    note = (
        f"In one batch with {OTHERS} other prompts, whose success rates follow the sliders’ mean and τ². All answers are equally long "
        "and equally likely here: what weighs them by length or by score differs in a run alone."
    )
    shown = comparison(lines, list(kinds), "Baseline and advantages of each estimator")
    return html('<section class="passage every"><h2>Under every estimator</h2><p>{}</p>{}</section>', note, shown)


def plots(view: dict, setting: Setting) -> list[dict]:
    found = {name: by_right_answers(view, setting, name) for name in SHADES}
    return [
        {
            "title": "Advantage by number of right answers",
            "note": "One line an estimator: solid for a right answer, dashed for a wrong one, in a batch with the same other prompts as "
            "above.",
            "kind": "two",
            "panels": [advantage_panel(view, found), baseline_panel(view, found)],
        },
        {
            "title": "How far baselines are off",
            "note": "Mean squared error of the baseline against a prompt’s true success rate, divided by the Bayes risk, the least "
            "there can be: 1 is perfect. Success rates of prompts follow a Beta distribution with the mean μ_glob of the slider and "
            f"the variance τ² = {number(world_of(view).between)}{clipped(view)}; every estimator knows its moments exactly. In the paper σ² is the variance of all rewards and τ² that of group means; “within” takes σ² inside "
            "groups, “corrected” takes the noise σ²/G out of τ².",
            "kind": "two",
            "panels": [error_panel(view), spread_panel(view)],
        },
    ]


def _trace(name: str, x, y, shade: int, dash: str = "solid", width: float = 2.0, **more) -> dict:
    return {
        **{
            "type": "scatter",
            "mode": "lines",
            "x": packed(np.asarray(x)),
            "y": packed(np.asarray(y)),
            "name": plotly_text(name),
        },
        **{"line": {"color": f"@{colour(shade)}", "dash": dash, "width": width}, "hovertemplate": "%{y:.3~f}"},
        **more,
    }


def _names(shades: dict[str, int], values: dict[str, str]) -> list[dict]:
    return [{"name": name, "color": colour(shades[name]), "text": values.get(name, "")} for name in shades]


def by_right_answers(view: dict, setting: Setting, name: str) -> list[Given]:
    """What a group with 0 to G right answers gets, among the others."""
    size, rest = view["g"], others(world_of(view), view["g"])
    saved = setting.state() if name == "ebpo" else None
    return [given(name, binary_batch(np.append(k, rest), size), EstimatorConfig(size), saved) for k in range(size + 1)]


def advantage_panel(view: dict, found: dict[str, list[Given]]) -> dict:
    size, traces = view["g"], []
    counts = np.arange(size + 1)
    for name, each in found.items():
        right = [one.advantages[0, 0] if k else np.nan for k, one in enumerate(each)]
        wrong = [one.advantages[0, -1] if k < size else np.nan for k, one in enumerate(each)]
        traces += [
            _trace(f"{title(name)}, right", counts, right, SHADES[name]),
            _trace(f"{title(name)}, wrong", counts, wrong, SHADES[name], "dash"),
        ]
    names = _names({title(name): shade for name, shade in SHADES.items()}, {})
    return _whole_ticks(_panel("advantages", "Advantage", traces, "right answers of the group", names), size)


def baseline_panel(view: dict, found: dict[str, list[Given]]) -> dict:
    counts, shown = np.arange(view["g"] + 1), {"group_norm": "GRPO, Dr. GRPO: μ", "ebpo": "EBPO: V"}
    traces = [
        _trace(text, counts, [one.baselines[0, 0] for one in found[name]], SHADES[name]) for name, text in shown.items()
    ]
    names = _names({text: SHADES[name] for name, text in shown.items()}, {})
    return _whole_ticks(_panel("baselines", "Baseline", traces, "right answers of the group", names), view["g"])


def _whole_ticks(panel: dict, size: int) -> dict:
    panel["figure"]["layout"]["xaxis"] |= {"dtick": max(1, size // 8), "tick0": 0}
    return panel


def world_of(view: dict) -> World:
    """The sliders' Beta distribution; a variance that no Beta distribution has is brought within its limits."""
    most = view["mean"] * (1 - view["mean"])
    return World(view["mean"], float(np.clip(view["between"], _SPREAD[0] * most, _SPREAD[1] * most)))


def clipped(view: dict) -> str:
    """What happened to the slider's variance on its way to a Beta distribution."""
    most = view["mean"] * (1 - view["mean"])
    near = abs(world_of(view).between - view["between"]) < 1e-9
    return "" if near else f" (a mean of {number(view['mean'])} leaves room for τ² between 0 and {number(most)})"


def error_panel(view: dict) -> dict:
    curves = error_curves(world_of(view), SIZES)
    return _error_panel("error", "by group size G", curves, SIZES, "group size G", view["g"])


def spread_panel(view: dict) -> dict:
    """The same for one G, over how much prompts differ in difficulty."""
    most = view["mean"] * (1 - view["mean"])
    shares = np.linspace(0.03, 0.97, 48)
    each = [error_curves(World(view["mean"], share * most), np.array([view["g"]])) for share in shares]
    curves = {name: np.array([one[name][0] for one in each]) for name in WEIGHTS}
    at = world_of(view).between
    return _error_panel("spread", f"by spread τ², G = {view['g']}", curves, shares * most, "between variance τ²", at)


def _error_panel(name: str, title: str, curves: dict, x: np.ndarray, axis: str, at: float) -> dict:
    shades = dict(zip(curves, (1, 0, 2, 5, 4), strict=False))
    best = "within σ², corrected τ²"  # lies on 1: under the others
    order = [best, *[each for each in curves if each != best]]
    traces = [
        _trace(each, x, curves[each], shades[each], "dash" if each == best else "solid", 3 if "paper" in each else 1.6)
        for each in order
    ]
    here = {each: number(float(np.interp(at, x, values))) for each, values in curves.items()}
    panel = _panel(name, f"Error over Bayes risk {title}", traces, axis, _names(shades, here))
    top = max(min(3.0, max(float(values.max()) for values in curves.values())), 1.1)
    panel["figure"]["layout"] |= {
        "yaxis": {"range": [0.96, top + 0.05]},
        "shapes": [
            {
                "type": "line",
                "x0": at,
                "x1": at,
                "y0": 0,
                "y1": 1,
                "yref": "paper",
                "line": {"color": "@muted", "width": 1, "dash": "dot"},
            }
        ],
    }
    return panel


def _panel(name: str, title: str, traces: list[dict], axis: str, values: list[dict]) -> dict:
    layout = {"xaxis": {"title": {"text": axis}}, "height": 300, "hovermode": "x unified", "uirevision": name}
    summary = f"{title} over {axis}: " + "; ".join(f"{value['name']} {value['text']}".strip() for value in values)
    return {
        "id": name,
        "title": title,
        "values": values,
        "summary": summary,
        "figure": {"data": traces, "layout": layout},
    }


def centring(view: dict, setting: Setting) -> HTML:
    """A batch of eight groups under two prior means: baselines move, final advantages do not."""
    size = view["g"]
    batch = np.unique(np.append(np.linspace(0, size, 6).round().astype(int), view["right"]))
    shifted = Setting(
        min(setting.prior_mean + 0.3, 1.0) if setting.prior_mean < 0.7 else setting.prior_mean - 0.3,
        setting.within,
        setting.between,
    )
    here, there = (centred_batch(batch, size, each) for each in (setting, shifted))
    rows = joined(
        html(
            '<tr><th scope="row">{} of {}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>',
            *(k, size, number(here[0][i]), number(there[0][i]), _pair(here, i), _pair(there, i)),
        )
        for i, k in enumerate(batch)
    )
    return html(
        '<section class="passage centring"><h2>Why the prior mean cancels</h2>'
        "<p>With one S for the batch and groups of one size, standardising subtracts the batch’s mean advantage, and μ<sub>glob</sub> with it:</p>"
        '<p class="identity">A − mean A = r − [(1 − S)·μ<sub>m</sub> + S·mean of this batch’s rewards]</p>'
        "<p>So only S carries history into the update. Below, a batch of groups under two prior means: every baseline moves, and no "
        "final advantage does. The prior mean does matter without centring, for groups of unequal size, and for a prior per cluster.</p>"
        '<div class="scroll" tabindex="0" role="region" aria-label="A batch under two prior means"><table><caption>A batch under two prior means</caption>'
        '<thead><tr><th scope="col">right answers</th><th scope="col">V, μ<sub>glob</sub> = {0}</th>'
        '<th scope="col">V, μ<sub>glob</sub> = {1}</th><th scope="col">final A, right / wrong, μ<sub>glob</sub> = {0}</th>'
        '<th scope="col">final A, μ<sub>glob</sub> = {1}</th></tr></thead><tbody>{2}</tbody></table></div></section>',
        *(number(setting.prior_mean), number(shifted.prior_mean), rows),
    )


def _pair(batch: tuple, i: int) -> str:
    values = [signed(float(v)) for v in (batch[1][i], batch[2][i]) if np.isfinite(v)]
    return " / ".join(values)


PAGE = Page("understand", PARAMETERS, lay_out, render, settle, reads=())
