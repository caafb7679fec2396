"""Several visitors of one app: what one opens is theirs alone, and none takes more than a share of the server."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from space_runs import learning_run

from openrlhf_ebpo.space import fetched
from openrlhf_ebpo.space.app import build
from openrlhf_ebpo.space.errors import RunError
from openrlhf_ebpo.space.runs import Runs
from openrlhf_ebpo.space.session import Session
from openrlhf_ebpo.space.workspace import Workspace

SECRET = "friends/their-own-run"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name in ("mine", "remote"):
        learning_run(folder / name, steps=2, seed=1, name=name, prompts=2)
    return folder


@pytest.fixture
def workspace(folder):
    return Workspace(Runs([str(folder / "mine")], ["friends"], fetch=lambda repo, cache: (folder / "remote", [])))


def events(workspace) -> dict:
    return {each.name: each.fn for each in build(workspace).fns.values()}


def loads(event, session: Session, **parameters) -> str:
    """All that a visitor gets."""
    return str([str(each) for each in event["load"](session, SimpleNamespace(query_params=parameters)).values()])


def test_a_run_that_one_visitor_adds_is_in_no_others_page(workspace):
    event, one, other = events(workspace), Session(), Session()
    loads(event, one)
    added = event["clicked"](one, "", SimpleNamespace(_data={"add": SECRET, "order": 1}))
    assert SECRET in str([str(each) for each in added.values()])
    for tab in ("dynamics", "samples", "evaluation"):
        assert SECRET not in loads(event, other, tab=tab) and other.view["runs"] == []
        assert SECRET in loads(event, other, tab=tab, runs=SECRET), "whoever knows its name may open it"
    assert SECRET not in loads(event, Session()) and workspace.runs.listed() == ["mine"]


def test_colours_of_added_runs_depend_on_the_view_alone(workspace):
    numbers = lambda *runs: [run.run.number for run in workspace.open_all({"runs": list(runs)})[0]]  # noqa: E731
    assert numbers("friends/a", "mine", "friends/b") == [1, 0, 2]
    assert numbers("friends/b") == [1]


def test_copies_of_added_runs_are_bounded_and_those_of_given_ones_stay(folder, monkeypatch):
    monkeypatch.setattr(fetched, "ADDED", 2)
    dropped = []
    runs = Runs(["given/run"], ["friends"], fetch=lambda repo, cache: (folder / "remote", []))
    runs._fetched.drop = lambda repo, cache: dropped.append(repo)
    for name in ("given/run", "friends/a", "friends/b", "friends/a", "friends/c"):
        runs.get(name)
    assert dropped == ["friends/b"] and runs.known("friends/b") is None and runs.known("given/run")


def test_a_repo_that_cannot_be_fetched_is_not_asked_for_at_every_click():
    asked = []

    def fetch(repo, cache):
        asked.append(repo)
        raise RunError("It is not there.")

    runs = Runs([], ["friends"], fetch=fetch)
    for _ in range(3):
        with pytest.raises(RunError, match="not there"):
            runs.get("friends/nothing")
    assert asked == ["friends/nothing"]


def test_one_download_at_a_time_and_the_copy_that_is_there_meanwhile(folder, monkeypatch):
    monkeypatch.setattr(fetched, "_WAIT", 0.01)
    runs = Runs([], ["friends"], fetch=lambda repo, cache: (folder / "remote", []))
    runs.get("friends/a")
    runs._fetched.copies["friends/a"].at -= 10_000
    with runs._fetched._one:
        assert runs.get("friends/a").path == Path(folder / "remote")
        with pytest.raises(RunError, match="other runs are being fetched"):
            runs.get("friends/b")
