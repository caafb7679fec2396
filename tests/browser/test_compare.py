"""Compare and the export of rollouts in a real browser."""

from __future__ import annotations

from pathlib import Path


def test_answers_are_chosen_side_by_side_and_a_link_keeps_it(visit):
    page = visit("?tab=compare&runs=a,b&run_a=a&at_a=7.3&run_b=b")
    page.locator(".pane .reading").nth(1).wait_for()
    before = page.locator(".pane.b h3").inner_text()
    page.locator(".side.b .strip button").nth(3).focus()
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.pane.b h3').innerText.includes('answer 4')")
    assert before != page.locator(".pane.b h3").inner_text() and "pick_b=3" in page.url
    linked = visit(page.url.split("/", 3)[3])
    linked.locator(".pane .reading").nth(1).wait_for()
    assert linked.locator(".pane.b h3").inner_text() == page.locator(".pane.b h3").inner_text()


def test_hostile_answers_stay_text(visit):
    page = visit("?tab=compare&runs=hard&run_a=hard&at_a=1.0")
    page.locator(".pane .reading").nth(1).wait_for()
    page.wait_for_function("() => document.querySelector('.pane.a .reading').innerText.includes('<script>')")
    assert page.evaluate("document.querySelectorAll('.own img, .own script, .own a').length") == 0
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.documentElement.scrollWidth") <= 1440


def test_the_rollouts_of_a_step_are_downloaded(visit, runs):
    page = visit("?tab=samples&runs=b&steps=4")
    page.wait_for_selector(".answer")
    with page.expect_download() as download:
        page.get_by_role("button", name="Parquet of step 4").click()
    assert Path(download.value.path()).read_bytes() == (runs / "b" / "rollouts" / "step-000004.parquet").read_bytes()
    assert download.value.suggested_filename == "b-step-000004.parquet"
