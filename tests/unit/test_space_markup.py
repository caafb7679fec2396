"""Every value of a run, of any type, is shown as text: no element of it reaches a page, and no page fails."""

import contextlib
import json
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import orjson
import pytest
from marked_runs import MARK, attacks, marked_run
from space_runs import learning_run

from openrlhf_ebpo.space.app import build
from openrlhf_ebpo.space.compared_settings import settings_of, short_text
from openrlhf_ebpo.space.links import Session, address, clean
from openrlhf_ebpo.space.pages import PAGES, evaluation
from openrlhf_ebpo.space.runs import Runs
from openrlhf_ebpo.space.text import HTML, html, join
from openrlhf_ebpo.space.workspace import Workspace


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    return marked_run(tmp_path_factory.mktemp("runs") / "marked")


def workspace(*paths) -> Workspace:
    return Workspace(Runs([str(path) for path in paths]))


TAG_NAMES = """
article aside b br button caption code col colgroup dd del details div dl dt em figcaption figure footer h1 h2
h3 h4 header hr i ins kbd label li mark nav ol input optgroup option p pre q s section select small span strong
sub summary sup table tbody td textarea tfoot th thead time tr u ul wbr a form svg g defs path rect line circle
polyline polygon text tspan title desc lineargradient marker stop math mrow mi mn mo mtext mspace msup msub
msubsup mfrac msqrt mroot mover munder munderover mtable mtr mtd mstyle mpadded menclose semantics
"""
TAGS = frozenset(TAG_NAMES.split())
EVIL = re.compile(
    r"on\w+|src|srcset|srcdoc|action|formaction|xlink:href|background|poster|ping|http-equiv|content|data-foreign"
)
STYLE = re.compile(r"[\w\s:;%.,()#+*/-]*")
OWN = re.compile(r"(\./space/|\?|#)[^\s]*")  # where a link of a page may lead


class Foreign(HTMLParser):
    """Elements and attributes that no page of this app has, and links and styles that lead elsewhere."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[str] = []
        self.feed(str(text))
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found += [tag] * (tag not in TAGS)
        for name, value in attrs:
            leads = name == "href" and not OWN.fullmatch(value or "")
            loads = name == "style" and ("url" in (value or "") or not STYLE.fullmatch(value or ""))
            if EVIL.fullmatch(name) or leads or loads or "<" in name:
                self.found.append(f"{tag} {name}={value}")


def views(shown: Workspace) -> list[dict]:
    """Every page, every group of the first run, some questions."""
    groups, _ = shown.index(shown.open(shown.runs.listed()[0])).read()
    places = [f"{step}.{group}" for step, group in zip(groups.step, groups.group, strict=True)]
    found = [*({"tab": page} for page in PAGES)]
    found += [{"tab": "dynamics", "metric": MARK[:12]}, {"tab": "dynamics", "x": "time", "log": True}]
    found += [{"tab": "samples", "steps": "all", "at": at, "raw": i % 2} for i, at in enumerate(places)]
    found += [{"tab": "samples", "list": "prompts"}, {"tab": "samples", "other_at": "2.0", "other_run": MARK}]
    found += [{"tab": "samples", "text": "x", "cluster": MARK, "steps": MARK}, {"tab": "evaluation", "task": MARK}]
    listed = evaluation.render(clean({}), shown)["questions"]
    return found + [
        {"tab": "evaluation", "question": key} for key in re.findall(r"question&#34;: &#34;(\w+)", listed)[:3]
    ]


def show(shown: Workspace, view: dict) -> dict:
    """Return the page's HTML; nothing of it is foreign."""
    found = PAGES[view["tab"]].render(clean(view), shown)
    orjson.dumps(found, option=orjson.OPT_PASSTHROUGH_SUBCLASS, default=str)  # as the server sends it
    address(clean(view)).encode()
    for name, value in found.items():
        if name == "board":
            assert not list(labels(json.loads(value))), (view, name)
        elif isinstance(value, str):
            assert not Foreign(HTML.escape(value)).found, (view, name)
    return found


def labels(value, key: str = "", drawn: bool = False) -> Iterator[str]:
    """Texts of figures that Plotly would read as its kind of HTML."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from labels(each, name, drawn or name == "figure")
    elif isinstance(value, list):
        for each in value:
            yield from labels(each, key, drawn)
    elif drawn and isinstance(value, str) and re.search(r"<\s*(a|b|i|img|script)\b", value):
        yield f"{key}: {value}"


@pytest.mark.parametrize(
    "text", [MARK, '<p onclick="x">', "<a href=//evil.test>", '<i style="background:url(//x)">', "<x-y>"]
)
def test_what_is_foreign_would_be_found(text):
    assert Foreign(text).found and list(labels({"figure": [{"name": text}]})) == [f"name: {text}"] * (
        "<p" not in text and "<x" not in text
    )


def test_no_field_of_a_run_becomes_an_element_alone(tmp_path):
    """Each string and number of each file, one after the other; of files of a kind in one."""
    run = learning_run(tmp_path / "run", steps=1, seed=1, name="run", prompts=2, size=2)
    for folder in sorted((run / "eval").glob("*/*/*"))[1:]:
        shutil.rmtree(folder)
    key = re.search(r"question&#34;: &#34;(\w+)", evaluation.render(clean({}), workspace(run))["questions"])[1]
    more = {"samples": {"at": "1.1"}, "evaluation": {"question": key}}
    pages = [name for name, page in PAGES.items() if page.reads]
    fields = []
    for field in attacks(run):
        fields.append(field)
        for name in pages:
            try:
                show(workspace(run), {"tab": name, **more.get(name, {})})
            except Exception as error:
                raise AssertionError(f"{name} with {field}") from error
    assert len(fields) > 120 and len({field.partition(":")[0] for field in fields}) == 7


@pytest.mark.parametrize("status", ["running", "failed", "interrupted", "stalled"])
def test_what_a_run_says_of_itself_is_text(marked, tmp_path, status):
    run = shutil.copytree(marked, tmp_path / "run")
    about = json.loads((run / "run.json").read_text())
    about |= {"status": "running" if status == "stalled" else status, "error": MARK, "started": MARK}
    about |= {"stalled": {"time": MARK, "what": MARK}} if status == "stalled" else {}
    (run / "run.json").write_text(json.dumps(about))
    beat = {"step": 2, "phase": MARK, "detail": MARK, "since": time.time(), "time": time.time()}
    (run / "heartbeat.json").write_text(json.dumps(beat))
    assert "&#60;img data-foreign" in show(workspace(run), {"tab": "overview"})["cards"]


def test_no_string_of_a_run_becomes_an_element(marked, tmp_path):
    shown = workspace(marked, marked_run(tmp_path / "other", seed=2))
    seen = "".join(str(text) for view in views(shown) for text in show(shown, view).values() if isinstance(text, HTML))
    assert seen.count("data-foreign") > 500, "it is shown"


def test_lists_in_lists_as_deep_as_json_reads_them():
    for depth in range(700, 1000):
        with contextlib.suppress(RecursionError):
            deepest = json.loads("[" * depth + "]" * depth)
    assert "too deep" in short_text(settings_of({"args": {"x": [[[deepest]]], "y": 1}})["x"])


def test_only_literals_are_html():
    assert html("<b>{}</b>", MARK) == html("<b>{}</b>", HTML.escape(MARK)) and not Foreign(html("{}", MARK)).found
    assert not Foreign(join([HTML("<b>"), MARK]) + MARK).found and not Foreign(MARK + HTML("<b>")).found
    assert not Foreign(HTML("<p>%s</p>") % MARK).found
    assert html("{:.1f} {}", 1.25, html("<i>{}</i>", "${x}")) == "1.2 <i>&#36;&#123;x&#125;</i>"
    assert isinstance(html("{}", 1), HTML) and isinstance(join([]), HTML)


def test_a_page_that_forgets_to_escape_shows_text(marked, monkeypatch):
    """Only values of the type HTML reach the browser as HTML."""
    shown = workspace(marked)
    careless = replace(PAGES["overview"], render=lambda view, workspace: {"notes": f"<b>{MARK}"})
    monkeypatch.setitem(PAGES, "overview", careless)
    demo = build(shown)
    load = next(fn for fn in demo.fns.values() if fn.name == "load").fn
    values = [value for value in load(Session(), SimpleNamespace(query_params={})).values() if isinstance(value, str)]
    assert any("&#60;b&#62;" in value for value in values)
    assert not any(Foreign(value).found for value in values)
