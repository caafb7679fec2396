"""Whatever a run holds, and of whatever type, is shown as text: no element of it reaches a page, and no page fails."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import orjson
import pytest
from marked_runs import BROKEN, MARK, marked_run

from openrlhf_ebpo.space.app import build
from openrlhf_ebpo.space.links import address, clean
from openrlhf_ebpo.space.pages import PAGES, evaluation, samples
from openrlhf_ebpo.space.runs import Runs
from openrlhf_ebpo.space.session import Session
from openrlhf_ebpo.space.tables import flattened
from openrlhf_ebpo.space.text import HTML, html, joined
from openrlhf_ebpo.space.workspace import Workspace


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    return marked_run(tmp_path_factory.mktemp("runs") / "marked")


def workspace(*paths) -> Workspace:
    return Workspace(Runs([str(path) for path in paths]))


class Foreign(HTMLParser):
    """Elements that MARK brings."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[str] = []
        self.feed(str(text))
        self.close()

    def handle_starttag(self, tag, attrs):
        names = {name for name, _ in attrs}
        self.found += [tag] * ("data-foreign" in names or "onerror" in names)


def views(shown: Workspace) -> list[dict]:
    """Every page, every group of the first run, some questions."""
    groups, _ = shown.index(shown.open(shown.runs.listed()[0])).read()
    places = [f"{step}.{group}" for step, group in zip(groups.step, groups.group, strict=True)]
    found = [{"tab": "dynamics", "more": [MARK]}, {"tab": "dynamics", "x": "time", "log": True}]
    found += [{"tab": "samples", "steps": "all", "at": at, "raw": i % 2} for i, at in enumerate(places)]
    found += [{"tab": "samples", "text": "x", "cluster": MARK, "steps": MARK}, {"tab": "evaluation", "task": MARK}]
    listed = evaluation.render(clean({}), shown)["questions"]
    return found + [
        {"tab": "evaluation", "question": key} for key in re.findall(r"question&#34;: &#34;(\w+)", listed)[:3]
    ]


def show(shown: Workspace, view: dict) -> dict:
    found = PAGES[view["tab"]].render(clean(view), shown)
    orjson.dumps(found, option=orjson.OPT_PASSTHROUGH_SUBCLASS, default=str)  # as the server sends it
    address(clean(view)).encode()
    return found


def test_no_string_of_a_run_becomes_an_element(marked, tmp_path):
    shown = workspace(marked, marked_run(tmp_path / "other", seed=2))
    seen = ""
    for view in views(shown):
        found = show(shown, view)
        for name in found.keys() - {"board"}:
            text = str(HTML.escape(found[name])) if isinstance(found[name], str) else ""
            assert not Foreign(text).found, (view, name)
            seen += text
    assert seen.count("data-foreign") > 500, "it is shown"


def test_the_estimator_of_run_json_is_text(marked):
    shown = samples.render(clean({}), workspace(marked))["answers"]
    legend = shown.rpartition('<p class="more">')[2]
    assert "<img" not in legend and "&#60;img" in legend


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of numbers at the ends of floats
@pytest.mark.parametrize("name", BROKEN)
def test_values_of_other_types_do_not_keep_a_page_from_showing_the_rest(marked, tmp_path, name):
    broken = shutil.copytree(marked, tmp_path / "broken")
    BROKEN[name](broken)
    shown = workspace(broken, marked)
    for view in views(shown):
        found = show(shown, {**view, "runs": shown.runs.listed()})
        if view["tab"] == "samples":
            assert "Answer 1" in found["answers"] or found["notes"], view
        else:
            assert json.loads(found["board"])["sections"], view
        assert not any(Foreign(text).found for text in found.values() if isinstance(text, HTML)), view


def test_lists_in_lists_as_deep_as_json_reads_them():
    for depth in range(700, 1000):
        with contextlib.suppress(RecursionError):
            deepest = json.loads("[" * depth + "]" * depth)
    assert "too deep" in flattened({"x": [[[deepest]]], "y": 1})["x"]


def test_only_literals_are_html():
    assert html("<b>{}</b>", MARK) == html("<b>{}</b>", HTML.escape(MARK)) and not Foreign(html("{}", MARK)).found
    assert not Foreign(joined([HTML("<b>"), MARK]) + MARK).found and not Foreign(MARK + HTML("<b>")).found
    assert not Foreign(HTML("<p>%s</p>") % MARK).found
    assert html("{:.1f} {}", 1.25, html("<i>{}</i>", "${x}")) == "1.2 <i>&#36;&#123;x&#125;</i>"
    assert isinstance(html("{}", 1), HTML) and isinstance(joined([]), HTML)


def test_a_page_that_forgets_to_escape_shows_text(marked, monkeypatch):
    """What reaches the browser as HTML is HTML by its type."""
    shown = workspace(marked)
    careless = replace(PAGES["dynamics"], render=lambda view, workspace: {"notes": f"<b>{MARK}", "board": "{}"})
    monkeypatch.setitem(PAGES, "dynamics", careless)
    demo = build(shown)
    load = next(fn for fn in demo.fns.values() if fn.name == "load").fn
    values = [value for value in load(Session(), SimpleNamespace(query_params={})).values() if isinstance(value, str)]
    assert any("&#60;b&#62;" in value for value in values)
    assert not any(Foreign(value).found for value in values)
