"""The page Compare and the box of a note, as HTML; what is in them comes from runs and from links."""

from __future__ import annotations

import html
import json
import re

import pytest
from space_runs import hostile_run, learning_run

from openrlhf_ebpo.space.links import address, clean, parsed
from openrlhf_ebpo.space.notes import ANY, FILE, Note, Notes
from openrlhf_ebpo.space.pages import compare, samples
from openrlhf_ebpo.space.runs import Runs
from openrlhf_ebpo.space.text import HTML
from openrlhf_ebpo.space.workspace import Workspace

EVIL = "\"'/></textarea><img src=x onerror=alert(1)>{{value}}${alert(1)}"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, pace in (("a", 1.0), ("b", 0.4)):
        learning_run(folder / name, steps=12, seed=1, name=name, prompts=8, pace=pace)
    hostile_run(folder / "evil", megabytes=0.05)
    (folder / "empty").mkdir()
    (folder / "empty" / "metrics.jsonl").write_text('{"step": 1}\n')
    return Workspace(Runs([str(folder)]), Notes(enabled=True))


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
    assert found["sides"].count('class="prompt"') == 1 and found["answers"].count('class="compared"') == 2
    assert not found["notices"]


def test_a_prompt_gives_no_answer(workspace):
    found = show(workspace, marked=0)
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
        assert made <= {
            "div",
            "section",
            "header",
            "h2",
            "h3",
            "small",
            "span",
            "button",
            "i",
            "dl",
            "dt",
            "dd",
            "b",
            "p",
            "code",
            "pre",
            "article",
            "em",
            "ol",
            "li",
            "details",
            "summary",
            "wbr",
        }


def test_a_long_answer_is_cut_and_says_so(workspace, monkeypatch):
    monkeypatch.setattr(compare, "COMPARED", 20)
    assert re.search(r"Compared up to here; [\d,]+ more characters", show(workspace)["answers"])


# the box of a note, in Samples


def look(workspace, **view) -> dict:
    return samples.render(clean({"runs": "a", "steps": "all", **view}), workspace)


def box(found: dict) -> str:
    return re.search(r'<section class="note".*?</section>', str(found["decision"]), re.DOTALL)[0]


@pytest.fixture
def noted(workspace):
    """A note on one group of a."""
    run = workspace.open("a").run
    groups, _ = workspace.index(workspace.open("a")).read()
    workspace.notes.keep(run, (12, 0), groups.prompt_id[groups.step == 12][0], Note(EVIL, (EVIL[:10], "tag, %2C")))
    yield workspace
    (run.path / FILE).unlink()


def test_a_link_carries_the_note_and_the_tags_of_the_group_that_it_shows(noted):
    found = look(noted, at="12.0")
    assert found["view"]["note"] == EVIL and found["view"]["noted"] == "12.0@a"
    link = parsed(address(clean({"runs": "a", **found["view"]})))
    assert clean(link)["tags"] == found["view"]["tags"] and clean(link)["note"] == EVIL
    elsewhere = Workspace(noted.runs)
    theirs = look(elsewhere, **link)
    assert "goes into the link" in box(theirs) and theirs["view"]["note"] == EVIL
    assert look(elsewhere, **{**link, "at": "12.1"})["view"]["note"] == "", "not of another group"


def test_a_note_is_text_wherever_it_stands(noted):
    for found in (look(noted, at="12.0"), look(noted, at="12.0", noted="12.0@a", note=EVIL[::-1] + EVIL, tags=EVIL)):
        assert tags(box(found)) <= {
            "section",
            "header",
            "h3",
            "small",
            "code",
            "blockquote",
            "p",
            "em",
            "label",
            "span",
            "textarea",
            "input",
            "button",
            "wbr",
        }
        assert "{{" not in box(found) and "${" not in box(found)
        assert tags(found["quick"]) <= {"div", "button", "small", "span", "wbr"}


def test_where_link_and_file_differ_both_are_shown(noted):
    found = look(noted, at="12.0", noted="12.0@a", note="what the link says")
    assert "In this link" in box(found) and "what the link says" in box(found) and "&#62;&#60;img" in box(found)
    fresh = look(noted, at="12.1", noted="12.1@a", note="of the link alone")
    assert "In this link" not in box(fresh) and "Save</b> keeps it beside the run" in box(fresh)


def test_groups_are_filtered_by_tag(noted):
    assert "<b>96</b> groups" in look(noted)["groups"]
    for tag in (ANY, "tag %2C"):
        found = look(noted, tag=tag)
        assert "<b>1</b> group" in found["groups"] and found["view"]["at"] == "12.0"
    off = Workspace(noted.runs)
    assert 'class="choices tags"' not in look(off)["quick"] and "<b>0</b> groups" in look(off, tag=ANY)["groups"]


def test_a_notes_file_that_leads_out_of_the_run_is_named_and_the_rest_is_shown(workspace, tmp_path):
    (tmp_path / "outside").write_text("{}")
    path = workspace.open("a").run.path / FILE
    path.symlink_to(tmp_path / "outside")
    found = look(workspace, at="12.0")
    path.unlink()
    assert "leads out of the run" in found["notes"] and "Step 12, group 0" in found["decision"]
