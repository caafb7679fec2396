"""Compare and exports in a real browser, over runs of this module's own."""

from __future__ import annotations

import io
from pathlib import Path

import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

COMPARED = ".difference[data-compared]"
FOREIGN = (
    "document.querySelectorAll('.compared :not(span, ins, del, wbr, button), .own img, .own script, .own a').length"
)
HARD = {  # a kind of pair: what is said about it
    "words": "difference",
    "lines": "whole lines are marked",
    "none": "both as written",
    "same": "Both answers are the same text.",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    import space_runs

    folder = tmp_path_factory.mktemp("kept")
    for name, pace in (("a", 1.0), ("b", 0.4)):
        space_runs.learning_run(folder / name, steps=8, seed=1, name=name, prompts=8, pace=pace)
    hard_run(folder / "hard", space_runs.EVIL)
    return folder


def hard_run(folder: Path, evil) -> None:
    """Pairs of answers: one difference in a long text, too many words, too many lines, none; and hostile ones."""
    near = " ".join(f"w{i % 977}" for i in range(20_000))
    pairs = {
        "words": (near, near.replace("w500 ", "another ", 1)),
        "lines": tuple(
            "\n".join(" ".join(f"{s}{(i * j) % 7919}" for j in range(400)) for i in range(60)) for s in "ab"
        ),
        "none": tuple("\n".join(f"{s}{(i * i) % 99991}" for i in range(25_000)) for s in "ab"),
        "same": (near[:500], near[:500]),
        "evil": ("\n".join(evil), "\n".join(reversed(evil)) + "A" * 30_000),
    }
    rows = [(g, kind, text) for g, (kind, both) in enumerate(pairs.items()) for text in both]
    columns = dict(zip(("group", "prompt", "response"), map(list, zip(*rows, strict=True)), strict=True))
    table = {**columns, "reward": [1.0, 0.0] * len(pairs), "prompt_id": columns["prompt"]}
    (folder / "rollouts").mkdir(parents=True)
    (folder / "run.json").write_text('{"schema": 1, "status": "complete"}')
    pq.write_table(pa.table(table), folder / "rollouts" / "step-000001.parquet")


@pytest.fixture(scope="module")
def kept(serve, folder):
    return serve("--runs", str(folder))


def verdict(page) -> str:
    page.wait_for_selector(COMPARED)
    return page.locator(".verdict").inner_text()


def test_differences_are_marked_and_walked_through_and_a_link_keeps_it(visit, kept):
    page = visit("?tab=compare&runs=a,b&run_a=a&at_a=7.3&run_b=b", base=kept)
    assert "in common" in verdict(page)
    assert page.locator(".compared del").count() == page.locator(".compared ins").count() > 0
    page.get_by_role("button", name="Next difference").click()
    assert "Difference 1 of" in page.locator(".verdict").inner_text() and page.locator(".compared .here").count() == 2
    before = page.locator(".pane.b h3").inner_text()
    page.locator(".side.b .strip button").nth(3).focus()
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.pane.b h3').innerText.includes('answer 4')")
    assert before != page.locator(".pane.b h3").inner_text() and "pick_b=3" in page.url
    page.get_by_role("button", name="Side by side").click()
    page.locator(".pane .reading").nth(1).wait_for()
    linked = visit(page.url.split("/", 3)[3], base=kept)
    linked.locator(".pane .reading").nth(1).wait_for()
    assert linked.locator(".pane.b h3").inner_text() == page.locator(".pane.b h3").inner_text()


def test_pairs_that_are_hard_to_compare_are_still_shown(visit, kept):
    page = visit("?tab=compare&runs=hard&run_a=hard&at_a=1.0", base=kept)
    for group, (kind, said) in enumerate(HARD.items()):
        if group:
            page.goto(f"{kept}/?tab=compare&runs=hard&run_a=hard&at_a=1.{group}")
        assert said in verdict(page), kind
        lengths = page.locator(".compared").evaluate_all("all => all.map(each => each.textContent.length)")
        assert min(lengths) > 400
    page.goto(f"{kept}/?tab=compare&runs=hard&run_a=hard&at_a=1.0")
    assert verdict(page).startswith("1 difference") and page.locator(".compared .fold").count() == 4
    page.locator(".pane.a .fold").first.click()
    assert page.locator(".compared .fold").count() == 2, "both sides unfold"


def test_hostile_answers_stay_text(visit, kept):
    page = visit("?tab=compare&runs=hard&run_a=hard&at_a=1.4", base=kept)
    verdict(page)
    assert page.evaluate(FOREIGN) == 0 and page.evaluate("window.hacked") is None
    assert "<script>" in page.locator(".pane.a .compared").inner_text()
    page.get_by_role("button", name="Side by side").click()
    page.locator(".pane .reading").nth(1).wait_for()
    assert page.evaluate(FOREIGN) == 0 and page.evaluate("window.hacked") is None
    assert page.evaluate("document.documentElement.scrollWidth") <= 1440


def test_a_selection_is_downloaded(visit, kept):
    page = visit("?tab=samples&runs=b&steps=1-4", base=kept)
    page.locator(".exports summary").click()
    assert "32 groups, 128 responses" in page.locator(".exports").inner_text()
    for name, read in (("CSV", pandas.read_csv), ("Parquet", pandas.read_parquet)):
        with page.expect_download() as download:
            page.locator(".exports button", has_text=name).click()
        rows = read(io.BytesIO(Path(download.value.path()).read_bytes()))
        assert len(rows) == 128 and set(rows["step"]) == {1, 2, 3, 4}, name
    assert download.value.suggested_filename == "b-rollouts.parquet"
