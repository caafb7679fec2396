"""Several visitors of one app: they share what is rendered and fetched."""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from space_runs import learning_run

from openrlhf_ebpo.space import runs as runs_module
from openrlhf_ebpo.space.app import build
from openrlhf_ebpo.space.errors import RunError
from openrlhf_ebpo.space.groups import Index
from openrlhf_ebpo.space.links import Session, clean
from openrlhf_ebpo.space.pages import PAGES
from openrlhf_ebpo.space.runs import Runs
from openrlhf_ebpo.space.workspace import Rendered, Workspace


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name in ("mine", "remote"):
        learning_run(folder / name, steps=2, seed=1, name=name, prompts=2)
    return folder


@pytest.fixture
def workspace(folder):
    return Workspace(Runs([str(folder / "mine"), "friends/run"], fetch=lambda repo: (folder / "remote", [])))


def events(workspace) -> dict:
    return {each.name: each.fn for each in build(workspace).fns.values()}


def loads(event, session: Session, **parameters) -> str:
    """All that a visitor gets."""
    sent = event["load"](session, SimpleNamespace(query_params=parameters)).values()
    return str([str(each) for each in sent if isinstance(each, (str, dict))])


def test_a_control_works_after_the_server_has_forgotten_the_view(workspace):
    """After a restart, or 500 other visitors, its first event brings the view along."""
    session, forgotten, again = Session(), Session(), Session()
    loads(events(workspace), session, tab="dynamics", x="time")
    edit = next(each.fn for each in build(workspace).fns.values() if getattr(each.fn, "args", None) == ("smooth",))
    assert len(edit(forgotten, session.sent, 0.2)) > 1
    assert (forgotten.view["smooth"], forgotten.view["x"], forgotten.view["tab"]) == (0.2, "time", "dynamics")
    assert edit(again, session.sent, 0.05) == edit(again, "", 0.2) and again.view is None, "nothing was changed"


def test_visitors_add_listed_runs_alone_and_nothing_else_is_fetched(folder):
    runs = Runs([str(folder / "mine")], fetch=lambda repo: pytest.fail("fetched"))
    event, session = events(Workspace(runs)), Session()
    loads(event, session)
    for odd in ("strangers/run", "<img src=x>/a", ["friends/a"], {"friends": 1}, 7):
        shown = event["clicked"](session, "", SimpleNamespace(_data={"add": odd, "order": 1}))
        said = str([str(each) for each in shown.values()])
        assert ("no run called" in said and "<img" not in said) == isinstance(odd, str)
        session.view["runs"] = []
    assert runs.listed() == ["mine"]


def test_one_download_at_a_time_and_the_copy_that_is_there_meanwhile(folder, monkeypatch):
    monkeypatch.setattr(runs_module, "_WAIT", 0.01)
    monkeypatch.setattr(runs_module, "_AGAIN", 0.0)
    runs = Runs(["friends/a", "friends/b"], fetch=lambda repo: (folder / "remote", []))
    runs.get("friends/a")
    with runs._downloading:
        assert runs.get("friends/a").path == Path(folder / "remote")
        with pytest.raises(RunError, match="other runs are being fetched"):
            runs.get("friends/b")


def test_a_view_is_rendered_once_for_all_while_its_files_are_the_same(folder, monkeypatch):
    workspace = Workspace(Runs([str(folder / "mine")]))
    event, times = events(workspace), []
    page = PAGES["dynamics"]
    monkeypatch.setitem(PAGES, "dynamics", replace(page, render=lambda *given: times.append(1) or page.render(*given)))
    first = loads(event, Session(), tab="dynamics")
    assert loads(event, Session(), tab="dynamics") == first and len(times) == 1
    loads(event, Session(), tab="dynamics", smooth="0.2")
    assert len(times) == 2
    with open(folder / "mine" / "metrics.jsonl", "a") as file:
        file.write('{"step": 3, "rollout/reward_mean": 0.5}\n')
    assert loads(event, Session(), tab="dynamics") != first and len(times) == 3


@pytest.mark.parametrize("part", ["page", "bar of runs"])
def test_a_page_that_cannot_be_made_says_so_and_is_tried_again(folder, monkeypatch, capsys, part):
    event, session = events(Workspace(Runs([str(folder / "mine")]))), Session()

    def fails(*_):
        raise KeyError("step")

    with monkeypatch.context() as broken:
        if part == "page":
            broken.setitem(PAGES, "samples", replace(PAGES["samples"], render=fails))
        else:
            broken.setattr("openrlhf_ebpo.space.app.bar", fails)
        assert "could not be made (KeyError)" in loads(event, session, tab="samples") and not session.busy
    assert "Traceback" in capsys.readouterr().err
    assert "could not be made" not in str([str(each) for each in event["tick"](session).values()])


def test_samples_of_a_run_that_grows_meanwhile_are_those_of_one_reading(folder, tmp_path, monkeypatch):
    path = shutil.copytree(folder / "mine", tmp_path / "mine")
    read = Index.read

    def read_and_grow(index):
        found = read(index)
        step = int(found[0].step.max()) + 1
        shutil.copy(path / "rollouts" / "step-000001.parquet", path / "rollouts" / f"step-{step:06d}.parquet")
        return found

    monkeypatch.setattr(Index, "read", read_and_grow)
    found = PAGES["samples"].render(clean({"steps": "all"}), Workspace(Runs([str(path)])))
    assert "step 2" in found["groups"] and "step 3" not in found["groups"]


def test_visitors_who_ask_at_once_wait_for_one_rendering_and_its_failure_is_not_kept():
    rendered, begun, go = Rendered(), threading.Event(), threading.Event()

    def render():
        begun.set()
        go.wait(30)
        raise OSError("gone")

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(rendered.get, "view", render)
        begun.wait(30)
        other = pool.submit(rendered.get, "view", lambda: {})
        go.set()
        assert isinstance(one.exception(30), OSError) and other.result(30) == {}


def test_what_is_kept_of_pages_has_an_end(monkeypatch):
    monkeypatch.setattr("openrlhf_ebpo.space.workspace.MAX_KEPT_PAGES", 2)
    now, made = [0.0], []
    rendered = Rendered(clock=lambda: now[0])
    for key in ("a", "b", "b", "c", "a"):
        rendered.get(key, lambda key=key: made.append(key) or {})
    assert made == ["a", "b", "c", "a"]
    now[0] += 100
    rendered.get("a", lambda: made.append("again") or {})
    assert made[-1] == "again"
