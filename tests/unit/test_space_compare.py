"""The page Compare as HTML; what is in it comes from runs and from links."""

from __future__ import annotations

import html
import json
import re

import pytest
from space_runs import hostile_run, learning_run

from openrlhf_ebpo.space.links import address, clean, parsed
from openrlhf_ebpo.space.pages import compare
from openrlhf_ebpo.space.runs import Runs
from openrlhf_ebpo.space.text import HTML
from openrlhf_ebpo.space.workspace import Workspace

EVIL = "\"'/></textarea><img src=x onerror=alert(1)>{{value}}${alert(1)}"

TAGS = "div section header h2 h3 small span button i dl dt dd b p code pre article em ol li details summary wbr"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, pace in (("a", 1.0), ("b", 0.4)):
        learning_run(folder / name, steps=12, seed=1, name=name, prompts=8, pace=pace)
    hostile_run(folder / "evil", megabytes=0.05)
    (folder / "empty").mkdir()
    (folder / "empty" / "metrics.jsonl").write_text('{"step": 1}\n')
    return Workspace(Runs([str(folder)]))


def show(workspace, **view) -> dict:
    return compare.render(clean({"runs": "a,b", **view}), workspace)


def settings(found: HTML) -> list[dict]:
    return [json.loads(html.unescape(text)) for text in re.findall(r'data-set="([^"]*)"', str(found))]


def tags(found: HTML) -> set[str]:
    return set(re.findall(r"<(\w+)", str(found)))


def test_without_a_wish_it_shows_two_groups_and_its_address_names_them(workspace):
    found = show(workspace)
    assert found["view"]["run_a"] == "a" and found["view"]["at_a"] and found["view"]["at_b"]
    again = show(workspace, **parsed(address(clean({"runs": "a,b", **found["view"]}))))
    assert {name: again[name] for name in ("sides", "answers", "view")} == {
        name: found[name] for name in ("sides", "answers", "view")
    }
    assert found["sides"].count('class="prompt"') == 1 and found["answers"].count('class="reading"') == 2
    assert not found["notices"]


def test_a_prompt_gives_no_answer(workspace):
    found = show(workspace, pick_a=0)
    assert "data-given" not in found["sides"] and found["answers"].count("data-given") == 2


def test_another_run_and_another_step_keep_the_other_side(workspace):
    found = show(workspace, run_a="a", at_a="7.3")
    across = next(each for each in settings(found["sides"]) if each.get("run_b") == "b")
    other = show(workspace, **{**found["view"], **across})
    assert other["view"]["run_b"] == "b" and other["view"]["at_a"] == "7.3" and not other["notices"]
    turned = show(workspace, **{**other["view"], "run_a": "b", "at_a": "", "pick_a": None})
    assert turned["view"]["run_a"] == "b" and turned["view"]["at_b"] == other["view"]["at_b"]
    assert not turned["notices"], "the prompt stays"


def test_two_prompts_are_shown_both_and_said(workspace):
    found = show(workspace, run_a="a", at_a="1.0", run_b="b", at_b="1.1")
    assert "two different prompts" in found["notices"] and found["sides"].count('class="prompt"') == 2


@pytest.mark.parametrize(
    ("view", "said"),
    [
        ({"run_a": "a", "at_a": "99.0"}, "no group 99.0 in a"),
        ({"run_a": "a", "at_a": "1.0", "run_b": "b", "at_b": "1.99"}, "no group 1.99 in b"),
        ({"runs": "empty"}, "no rollouts"),
        ({"runs": "gone"}, "no run called"),
    ],
)
def test_what_is_not_there_is_said(workspace, view, said):
    found = show(workspace, **view)
    assert said in found["notices"] and not found["answers"]


def test_the_other_side_stays_when_one_is_missing(workspace):
    found = show(workspace, run_a="a", at_a="1.0", run_b="b", at_b="1.99")
    assert found["view"]["at_a"] == "1.0" and "choose another run" in found["sides"]


def test_no_text_of_a_run_becomes_html(workspace):
    for group in range(8):
        found = show(workspace, runs="evil", run_a="evil", at_a=f"1.{group}", marked=group % 2)
        assert all(isinstance(found[name], HTML) or not found[name] for name in ("notices", "sides", "answers"))
        made = tags(found["sides"]) | tags(found["answers"])
        assert made <= set(TAGS.split())
