"""hub status compares what a run has exported with what the Hub has, and never says more than it knows."""

import shutil

import hub_runs
import pytest
from commands import refused
from hub_repos import File
from hub_runs import REPO, model_of, push

from openrlhf_ebpo.cli import hub as hub_cli
from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.hub.exports import take_lock
from openrlhf_ebpo.run import run_lock


@pytest.fixture
def status(use_hub, capsys):
    """Exit status and output of the command."""

    def ask(run_dir, *flags):
        with pytest.raises(SystemExit) as stopped:
            hub_cli.main(["status", str(run_dir), *flags])
        return stopped.value.code, capsys.readouterr().out

    return ask


@pytest.fixture
def run_dir(make_run, monkeypatch):
    monkeypatch.setattr("openrlhf_ebpo.hub.push.card", lambda *_: {"README.md": b"# card\n"})  # drawn for a second
    return hub_runs.set_repo(make_run())


def test_from_the_first_export_to_the_last_push(hub, run_dir, status):
    code, out = status(run_dir)
    assert code == 1 and "0 of 2 steps pushed" in out
    assert f"no process pushes; finish with: openrlhf-ebpo hub push {run_dir}" in out
    with take_lock(run_dir) as lock:
        run_lock.write_holder(lock)
        code, out = status(run_dir)
    assert code == 3 and "2  missing" in out and "pusher  process" in out
    push(run_dir)
    code, out = status(run_dir)
    assert (
        code == 0 and "all that was saved is pushed" in out and f"4  pushed    {hub.url}/{REPO}/tree/step-000004" in out
    )


@pytest.mark.parametrize("lost", ["tag", "file", "weights", "other weights here", "repo"])
def test_what_is_missing_is_never_called_pushed(hub, run_dir, status, lost):
    push(run_dir)
    repo = hub.repo(REPO)
    files = dict(repo.find("step-000004").files)
    if lost == "tag":
        del repo.tags["step-000004"]
    elif lost in ("file", "weights"):
        change = {} if lost == "file" else {"model.safetensors": File(b"other", True)}
        kept = {name: file for name, file in files.items() if name != "prior.json"}
        repo.tags["step-000004"] = repo.commit("side", {**kept, **change}, "by hand").id
    elif lost == "repo":
        hub.repos.clear()
    else:
        hub_runs.export_model(model_of(run_dir, 4), 9)
    code, out = status(run_dir)
    assert code == 1 and "4  missing" in out


def test_a_hub_that_cannot_be_asked_leaves_it_unknown(hub, run_dir, status):
    push(run_dir)
    hub.stop()
    code, out = status(run_dir)
    assert code == 1 and out.count("unknown") >= 2


def test_a_repo_of_another_run_is_no_push(hub, run_dir, make_run, status):
    push(run_dir)
    other = hub_runs.set_repo(make_run("other", started="2026-02-02T00:00:00+00:00"))
    code, out = status(other)
    assert code == 1 and "holds another run" in out and "0 of 2 steps pushed" in out


def test_a_failure_is_told_with_its_cause(hub, run_dir, status):
    hub.fail(r"POST .*/commit/", 503, times=9, headers={"X-Error-Message": "busy \x1b[2J"})
    push(run_dir)
    code, out = status(run_dir)
    assert code == 1 and "2  failed" in out and "(503: busy" in out and "\x1b" not in out
    assert "0 of 2 steps pushed" in out


def test_a_model_that_was_deleted_here_is_judged_by_its_tag(hub, run_dir, status):
    shutil.rmtree(model_of(run_dir, 2))
    code, out = status(run_dir)
    assert code == 1 and "2  gone" in out
    hub_runs.export_model(model_of(run_dir, 2), 2)
    push(run_dir)
    shutil.rmtree(model_of(run_dir, 2))
    code, out = status(run_dir)
    assert code == 0 and "only its tag was looked for" in out


@pytest.mark.parametrize("value", [[], {"steps": {"2": {"state": "pushed", "url": 1}}}, {"steps": []}, "x"], ids=str)
def test_a_record_of_another_shape_is_no_traceback(run_dir, status, value):
    write_json(run_dir / "hub.json", value)
    assert status(run_dir)[0] == 1


def test_it_changes_nothing(run_dir, status):
    before = sorted(path.name for path in run_dir.rglob("*"))
    status(run_dir)
    assert sorted(path.name for path in run_dir.rglob("*")) == before


def test_a_run_without_a_repo_needs_its_name(hub, make_run, status):
    run_dir = make_run()
    assert "name the repo with --repo" in refused(hub_cli.main, "status", run_dir)
    push(run_dir)
    assert status(run_dir, "--repo", REPO)[0] == 0
    assert "nothing has been saved yet" in status(make_run("new", steps=()), "--repo", REPO)[1]
