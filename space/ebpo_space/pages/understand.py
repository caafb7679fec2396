"""Understand: one group under every estimator, live; why centring hides the prior mean; error against the Bayes risk."""

from __future__ import annotations

import numpy as np

from ..cards import signed
from ..estimators import ESTIMATORS, FORMULAS, WEIGHTS, Estimated, Setting, World, centred_batch, ebpo, error_curves
from ..figures import board, colour, number, packed, plotly_text
from ..picture import Drawn, picture
from ..text import HTML, html, joined

SIZES = np.arange(2, 33)
SHADES = {"GRPO": 1, "Dr. GRPO": 2, "RLOO": 5, "EBPO": 0}
INTRO = HTML(
    "For each prompt the policy writes G answers, its group; a right one gets reward 1, a wrong one 0. An answer’s advantage is its "
    "reward minus a baseline. The group’s own mean μ is a noisy baseline, and no signal at all where all answers are alike. EBPO "
    "(empirical Bayes policy optimisation) moves it towards the mean of all rewards so far, μ<sub>glob</sub>, the more, the noisier a "
    "group’s mean is (σ²/G) and the less prompts differ (τ²)."
)
_SPREAD = (0.002, 0.98)  # of mean·(1 − mean), where a Beta distribution exists


def render(view: dict, workspace: object = None) -> dict:
    """intro: what this is about; story: HTML of one group under every estimator; board: the plots; centring: its text."""
    setting = Setting(view["mean"], view["within"], view["between"])
    rewards = (np.arange(view["g"]) < view["right"]).astype(float)
    return {
        "intro": html('<p class="intro">{}</p>', INTRO),
        "story": story(rewards, setting),
        "board": board(plots(view, setting)),
        "centring": centring(view, setting),
    }


def story(rewards: np.ndarray, setting: Setting) -> HTML:
    size, right = len(rewards), int(rewards.sum())
    shrinkage, mean = setting.shrinkage(size), float(rewards.mean())
    baseline = float(ESTIMATORS["EBPO"](rewards, setting).baselines[0])
    drawn = picture(Drawn(mean, baseline, shrinkage, setting.prior_mean, setting.within, setting.between, size))
    dots = joined(html('<i class="{}"></i>', "hit" if r else "miss") for r in rewards)
    return html(
        '<section class="story"><div class="head"><div class="dots" role="img" aria-label="{} of {} answers right">{}</div>'
        '<p>{}</p><p class="formula"><span>S = (σ²/G) / (σ²/G + τ²) = <b>{}</b></span>'
        "<span>V = (1 − S)·μ + S·μ<sub>glob</sub> = <b>{}</b></span></p></div>{}</section>"
        '<h2 class="sr">Baseline and advantages of each estimator</h2><section class="estimators">{}</section>',
        *(right, size, dots, _sentence(rewards, setting), number(shrinkage), number(baseline), drawn),
        _rows(rewards, setting),
    )


def _sentence(rewards: np.ndarray, setting: Setting) -> str:
    size, right = len(rewards), int(rewards.sum())
    found = {name: float(np.abs(estimate(rewards, setting).advantages).max()) for name, estimate in ESTIMATORS.items()}
    silent = [name for name, widest in found.items() if widest < 1e-9]
    if not silent:
        return f"{right} of {size} answers right. Every estimator learns here; they differ in baseline and scale."
    kind = "wrong" if right == 0 else "right"
    others = f" EBPO gives each {signed(float(ebpo(rewards, setting).advantages[0]))}." if "EBPO" not in silent else ""
    return f"All {size} answers are {kind}. {_listed(silent)} learn nothing here.{others}"


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _rows(rewards: np.ndarray, setting: Setting) -> HTML:
    """One card per estimator; the bars of all share one scale."""
    found = {name: estimate(rewards, setting) for name, estimate in ESTIMATORS.items()}
    widest = max(0.5, *(float(np.abs(each.advantages).max()) for each in found.values()))
    return joined(_row(name, rewards, each, widest) for name, each in found.items())


def _row(name: str, rewards: np.ndarray, found: Estimated, widest: float) -> HTML:
    """Baseline and advantages of one estimator, as numbers and bars around zero."""
    kinds = [("right", rewards > 0.5), ("wrong", rewards < 0.5)]
    bars = joined(
        _bar(kind, float(found.advantages[mask][0]), float(found.baselines[mask][0]), widest)
        for kind, mask in kinds
        if mask.any()
    )
    return html(
        '<div class="estimator" style="--shade:var(--{})"><h3>{}</h3><small>{}</small>{}</div>',
        *(colour(SHADES.get(name, 3)), name, FORMULAS.get(name, ""), bars),
    )


def _bar(kind: str, advantage: float, baseline: float, widest: float) -> HTML:
    half = abs(advantage) / widest * 50
    left = 50 if advantage >= 0 else 50 - half
    return html(
        '<div class="gain"><span>{} answer<small>baseline {}</small></span>'
        '<span class="track"><i style="left:{:.1f}%;width:{:.1f}%"></i></span><b>{}</b></div>',
        *(kind, number(baseline), left, half, signed(advantage)),
    )


def plots(view: dict, setting: Setting) -> list[dict]:
    return [
        {
            "title": "Advantage by number of right answers",
            "note": "One line an estimator: solid for a right answer, dashed for a wrong one. EBPO’s advantage is shown as r − V; the batch is "
            "standardised after that, as the table at the end shows.",
            "kind": "two",
            "panels": [advantage_panel(view["g"], setting), baseline_panel(view["g"], setting)],
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
    return [
        {"name": name, "color": colour(shades[name]), "text": f"{name} {values.get(name, '')}".strip()}
        for name in shades
    ]


def advantage_panel(size: int, setting: Setting) -> dict:
    counts, traces = np.arange(size + 1), []
    for name, estimate in ESTIMATORS.items():
        found = [estimate((np.arange(size) < k).astype(float), setting).advantages for k in counts]
        right = [a[0] if k else np.nan for k, a in zip(counts, found, strict=True)]
        wrong = [a[-1] if k < size else np.nan for k, a in zip(counts, found, strict=True)]
        traces += [
            _trace(f"{name}, right", counts, right, SHADES[name]),
            _trace(f"{name}, wrong", counts, wrong, SHADES[name], "dash"),
        ]
    return _whole_ticks(
        _panel("advantages", "Advantage", traces, "right answers of the group", _names(SHADES, {})), size
    )


def baseline_panel(size: int, setting: Setting) -> dict:
    counts = np.arange(size + 1)
    traces, shown = [], {"GRPO": "GRPO, Dr. GRPO: μ", "EBPO": "EBPO: V"}
    for name in shown:
        found = [ESTIMATORS[name]((np.arange(size) < k).astype(float), setting).baselines[0] for k in counts]
        traces.append(_trace(shown[name], counts, found, SHADES[name]))
    shades = {shown[name]: SHADES[name] for name in shown}
    return _whole_ticks(_panel("baselines", "Baseline", traces, "right answers of the group", _names(shades, {})), size)


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
    summary = f"{title} over {axis}: " + "; ".join(value["text"] for value in values)
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
