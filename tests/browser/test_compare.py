"""Compare and exports in a real browser, over runs of this module's own."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    import space_runs

    folder = tmp_path_factory.mktemp("kept")
    for name, pace in (("a", 1.0), ("b", 0.4)):
        space_runs.learning_run(folder / name, steps=8, seed=1, name=name, prompts=8, pace=pace)
    hard_run(folder / "hard", space_runs.EVIL)
    return folder


def hard_run(folder: Path, evil) -> None:
    """A pair of hostile answers to one prompt."""
    table = {
        "group": [0, 0],
        "prompt": ["evil", "evil"],
        "response": ["\n".join(evil), "\n".join(reversed(evil)) + "A" * 30_000],
        "reward": [1.0, 0.0],
        "prompt_id": ["evil", "evil"],
    }
    (folder / "rollouts").mkdir(parents=True)
    (folder / "run.json").write_text('{"schema": 1, "status": "complete"}')
    pq.write_table(pa.table(table), folder / "rollouts" / "step-000001.parquet")


@pytest.fixture(scope="module")
def kept(serve, folder):
    return serve("--runs", str(folder))


def test_answers_are_chosen_side_by_side_and_a_link_keeps_it(visit, kept):
    page = visit("?tab=compare&runs=a,b&run_a=a&at_a=7.3&run_b=b", base=kept)
    page.locator(".pane .reading").nth(1).wait_for()
    before = page.locator(".pane.b h3").inner_text()
    page.locator(".side.b .strip button").nth(3).focus()
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.pane.b h3').innerText.includes('answer 4')")
    assert before != page.locator(".pane.b h3").inner_text() and "pick_b=3" in page.url
    linked = visit(page.url.split("/", 3)[3], base=kept)
    linked.locator(".pane .reading").nth(1).wait_for()
    assert linked.locator(".pane.b h3").inner_text() == page.locator(".pane.b h3").inner_text()


def test_hostile_answers_stay_text(visit, kept):
    page = visit("?tab=compare&runs=hard&run_a=hard&at_a=1.0", base=kept)
    page.locator(".pane .reading").nth(1).wait_for()
    page.wait_for_function("() => document.querySelector('.pane.a .reading').innerText.includes('<script>')")
    assert page.evaluate("document.querySelectorAll('.own img, .own script, .own a').length") == 0
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.documentElement.scrollWidth") <= 1440


def test_the_rollouts_of_a_step_are_downloaded(visit, kept, folder):
    page = visit("?tab=samples&runs=b&steps=4", base=kept)
    page.wait_for_selector(".answer")
    with page.expect_download() as download:
        page.get_by_role("button", name="Parquet of step 4").click()
    assert Path(download.value.path()).read_bytes() == (folder / "b" / "rollouts" / "step-000004.parquet").read_bytes()
    assert download.value.suggested_filename == "b-step-000004.parquet"
