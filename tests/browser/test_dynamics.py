"""Dynamics in a real browser: what lines show, and where they stand."""

import pytest
from panels import lines, panel

DRAWN = ".panel[data-drawn]"
HEADS = "() => [...document.querySelectorAll('.panel .plot')].map(e => e.offsetTop + e.closest('.panel').offsetTop)"


def point(page, name: str, across: float, down: float = 0.5) -> None:
    """The pointer over a plot, at this share of its width and height."""
    box = panel(page, name).locator(".plot .nsewdrag").bounding_box()
    for by in (0, 2):  # Plotly wants a movement
        page.mouse.move(box["x"] + across * box["width"] + by, box["y"] + down * box["height"])


def test_metrics_are_named_and_read(visit):
    page = visit("?tab=dynamics&runs=ebpo,grpo")
    page.wait_for_selector(DRAWN)
    reward = panel(page, "rollout/reward_mean")
    assert [(t["width"], t.get("name")) for t in lines(page, "rollout/reward_mean")] == [
        *((1, None), (1, None), (2, "ebpo"), (2, "grpo"))
    ]
    assert reward.locator(".values .of").all_inner_texts() == ["ebpo", "grpo"]
    at_first = page.locator(".panel").evaluate_all(
        "all => all.filter(p => p.getBoundingClientRect().bottom <= innerHeight).map(p => p.dataset.panel)"
    )
    assert {"rollout/reward_mean", "ebpo/shrinkage", "ebpo/prior_mean"} <= set(at_first), "the estimator is in sight"
    rights = page.locator(".grid").evaluate_all(
        "all => all.map(g => Math.round(g.getBoundingClientRect().right - "
        "g.lastElementChild.getBoundingClientRect().right))"
    )
    assert set(rights[:2]) == {0}, "no row has a hole"

    before, places = reward.locator(".values b").all_inner_texts(), page.evaluate(HEADS)
    point(page, "rollout/reward_mean", 0.5)
    page.wait_for_function("() => document.querySelector('.panel .at').textContent.startsWith('step 2')")
    assert reward.locator(".values b").all_inner_texts() != before
    assert panel(page, "ebpo/shrinkage").locator(".at").inner_text() == reward.locator(".at").inner_text()
    assert not page.locator(".hoverlayer .legend").count(), "no box covers the lines"
    assert page.evaluate(HEADS) == places, "reading moves nothing"
    page.mouse.move(2, 2)
    page.wait_for_function("() => !document.querySelector('.panel .at').textContent")
    assert reward.locator(".values b").all_inner_texts() == before

    page.get_by_role("button", name="hours").click()
    page.wait_for_function("() => document.querySelector('.panel .plot').layout.xaxis.title.text === 'hours'")
    page.get_by_role("button", name="log scale").click()
    page.wait_for_function(
        "() => document.querySelector('[data-panel=response_length] .plot').layout.yaxis.type === 'log'"
    )
    page.get_by_label("Find metrics").fill("ppo_kl")
    page.keyboard.press("Enter")
    panel(page, "ppo_kl").wait_for()
    assert "x=time" in page.url and "log=1" in page.url and "metric=ppo_kl" in page.url


def test_no_name_above_a_plot_is_cut_by_the_style_sheet(visit):
    page = visit("?tab=dynamics&runs=ebpo,troubled")
    page.wait_for_selector(DRAWN)
    cut = page.locator(".panel .of").evaluate_all("all => all.filter(e => e.scrollWidth > e.clientWidth).length")
    assert page.locator(".panel .of").count() > 10 and cut == 0


def test_a_link_without_a_zoom_takes_the_plots_back(visit):
    page = visit("?tab=dynamics&runs=troubled")
    page.wait_for_selector('.panel[data-panel="rollout/reward_mean"][data-drawn]')
    reward = panel(page, "rollout/reward_mean").locator(".plot")
    reward.evaluate("e => Plotly.relayout(e, {'xaxis.range': [10, 20]})")
    page.wait_for_url("**zoom=10*")
    assert [round(end) for end in reward.evaluate("e => e.layout.xaxis.range")] == [10, 20]
    page.get_by_role("tab", name="Overview").click()
    page.get_by_role("button", name="panel").first.click()
    page.wait_for_url(lambda url: "tab=dynamics" in url and "zoom" not in url)
    page.wait_for_function(
        "() => document.querySelector('[data-panel=\"rollout/reward_mean\"] .plot').layout.xaxis.range[0] < 2"
    )


def test_a_spike_is_seen_and_read_where_its_warning_leads(visit):
    page = visit("?tab=overview&runs=troubled")
    page.locator(".warned li", has_text="Gradient spike").get_by_role("button", name="panel").click()
    page.wait_for_selector('.panel[data-panel="actor_grad_norm"][data-drawn]')
    spike = panel(page, "actor_grad_norm")
    _, high = spike.locator(".plot").evaluate("e => e.layout.yaxis.range")
    assert high > 9, "the axis reaches the spike"
    start, end = spike.locator(".plot").evaluate("e => e.layout.xaxis.range")
    point(page, "actor_grad_norm", (31 - start) / (end - start))
    page.wait_for_function("() => document.querySelector('.panel .at').textContent === 'step 31'")
    assert spike.locator(".values b").inner_text() == "9", "the value of the step, not of the moving mean"
    width = page.locator(".panel").evaluate("e => e.getBoundingClientRect().width")
    assert width < 500, "a lone panel keeps its width"


def test_back_after_a_zoom_goes_back(visit):
    page = visit("?tab=dynamics&runs=ebpo")
    page.wait_for_selector('.panel[data-panel="rollout/reward_mean"][data-drawn]')
    panel(page, "rollout/reward_mean").locator(".plot").evaluate("e => Plotly.relayout(e, {'xaxis.range': [10, 20]})")
    page.wait_for_url("**zoom=10*")
    page.go_back()
    page.wait_for_url(lambda url: "zoom" not in url)
    page.wait_for_function(
        "() => document.querySelector('[data-panel=\"rollout/reward_mean\"] .plot').layout.xaxis.range[0] < 2"
    )


@pytest.mark.parametrize("kind", ["phone"])
def test_on_a_phone_the_first_plot_is_in_the_first_half(visit, kind):
    page = visit("?tab=dynamics&runs=ebpo,grpo", kind=kind)
    page.wait_for_selector(DRAWN)
    assert page.locator(".panel .plot").first.bounding_box()["y"] < 844 / 2
    assert not page.get_by_label("Find metrics").is_visible()
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Find metrics").wait_for()
