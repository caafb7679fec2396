"""A training's saved models go to the Hub while it trains, which never waits for it: flags, access, the child."""

import argparse
import signal
import subprocess
import sys
import threading
import time

import hub_runs
import pytest
from hub_repos import File
from hub_runs import REPO, model_of, push, push_of
from patience import seconds, wait_until, wait_until_gone

from openrlhf_ebpo.command import nested
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import append_json_line, write_json
from openrlhf_ebpo.hub import training
from openrlhf_ebpo.hub.content import Publishable
from openrlhf_ebpo.hub.hub_settings import HubSettings, add_flags
from openrlhf_ebpo.hub_client import hub_api
from openrlhf_ebpo.run.run_log import read_run


def settings(*argv) -> HubSettings:
    """As the parser of a training makes them from the flags `argv`."""
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return HubSettings.from_args(nested(vars(parser.parse_args(argv))))


@pytest.fixture(autouse=True)
def small_card(monkeypatch):
    """The picture of a real one takes half a second."""
    monkeypatch.setattr("openrlhf_ebpo.hub.push.card", lambda *_: Publishable({"README.md": b"# card\n"}))


@pytest.fixture
def pushed(hub, use_hub, make_run):
    """A run directory whose steps 2 and 4 are at owner/model."""
    run_dir = make_run()
    push(run_dir)
    return run_dir


def test_nothing_happens_without_a_repo(hub, tmp_path, capsys):
    settings().check(2, False)
    assert settings() == HubSettings() and settings().check_access({}) == []
    pushes = training.Pushes(settings(), tmp_path)
    pushes.start()
    pushes.finish()
    assert pushes.process is None and pushes.when_stopped() == capsys.readouterr().out == ""
    assert not hub.requests and not list(tmp_path.iterdir())


def test_private_is_the_default_and_can_be_turned_off():
    assert settings().public is False and settings("--hub.public").public is True


@pytest.mark.parametrize(
    ("argv", "save_hf", "words"),
    [
        (["--hub.repo", "nonsense"], True, "--hub.repo nonsense"),
        (["--hub.repo", REPO], False, "add --ckpt.save_hf"),
    ],
)
def test_flags_that_cannot_work(argv, save_hf, words):
    with pytest.raises(UsageError, match=words):
        settings(*argv).check(2, save_hf)


def test_only_the_final_model_is_pushed_where_none_is_saved_before():
    settings("--hub.repo", REPO).check(-1, False)


def test_a_wrong_token_stops_and_a_hub_that_is_away_warns(hub, use_hub, monkeypatch):
    to_repo = settings("--hub.repo", REPO)
    assert to_repo.check_access({}) == [f"pushing to {REPO}, a new repo: private"]
    monkeypatch.setenv("HF_TOKEN", hub.read_token)
    with pytest.raises(UsageError, match="may only read"):
        to_repo.check_access({})
    hub.stop()
    (warning,) = to_repo.check_access({})
    assert warning.startswith("warning: the Hub cannot be reached") and hub.read_token not in warning


def test_an_existing_repo_is_described_and_another_runs_repo_is_refused(hub, pushed):
    hub.create("owner/public")
    hub.create("owner/old", private=True)
    assert "is public" in settings("--hub.repo", "owner/public").check_access({})[0]
    assert settings("--hub.repo", "owner/old").check_access({})[0].endswith("which exists: private")
    with pytest.raises(UsageError, match="holds another run"):
        settings("--hub.repo", REPO).check_access({})
    renamed = {**read_run(pushed), "name": "resumed under another name"}
    assert "which exists: private" in settings("--hub.repo", REPO).check_access(renamed)[0]
    for name, text in {"words": b"not JSON", "deep": b"[" * 100_000, "list": b"[]"}.items():
        hub.create(f"owner/{name}").commit("main", {"run.json": File(text, False)}, "m")
        with pytest.raises(UsageError, match="holds another run"):
            settings("--hub.repo", f"owner/{name}").check_access(renamed)


@pytest.fixture
def run_dir(make_run):
    """Of a training that is under way."""
    return hub_runs.set_repo(make_run(status="running"))


# The loop of the child


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(training, "POLL_SECONDS", 0.02)
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_PAUSE", "0.01")


def test_it_pushes_during_a_training_and_ends_after_it(hub, use_hub, quick, run_dir):
    said = []
    pusher = threading.Thread(
        target=training.push_while_training, args=(push_of(run_dir, hub_api(), said),), daemon=True
    )
    pusher.start()
    wait_until(lambda: ("model", REPO) in hub.repos and list(hub.repo(REPO).tags) == ["step-000002", "step-000004"])
    model = hub_runs.export_model(run_dir.parent / "ckpt" / "global_step6_hf", 6)
    append_json_line(run_dir / "checkpoints.jsonl", {"step": 6, "tag": "global_step6", "model": str(model)})
    wait_until(lambda: "step-000006" in hub.repo(REPO).tags)
    requests = len(hub.requests)
    time.sleep(0.2)
    assert pusher.is_alive() and len(hub.requests) - requests < 9  # nothing new is not asked for
    complete(run_dir)
    pusher.join(seconds(60))
    assert not pusher.is_alive()
    hub_runs.assert_pushed(hub, run_dir, 6)


def test_what_can_never_be_pushed_does_not_keep_it_waiting_after_the_training(hub, use_hub, quick, make_run):
    run_dir = hub_runs.set_repo(make_run())
    (model_of(run_dir, 4) / "chat_template.jinja").write_text("{# gh" + "p_" + "NEEDLE" * 6 + " #}")
    loop = push_of(run_dir, hub_api())
    with pytest.raises(UsageError, match=r"chat_template\.jinja"):
        training.push_while_training(loop)
    assert loop.left == "4" and list(hub.repo(REPO).tags) == ["step-000002"]


def test_a_list_that_cannot_be_read_does_not_end_it(hub, use_hub, quick, run_dir):
    said, listed = [], (run_dir / "checkpoints.jsonl").read_text()
    (run_dir / "checkpoints.jsonl").write_text("no JSON\n")
    pusher = threading.Thread(target=training.push_while_training, args=(push_of(run_dir, hub_api()),), daemon=True)
    training.report, unchanged = said.append, training.report
    try:
        pusher.start()
        wait_until(lambda: "checkpoints.jsonl is damaged" in "".join(said))
        (run_dir / "checkpoints.jsonl").write_text(listed)
        wait_until(lambda: ("model", REPO) in hub.repos and len(hub.repo(REPO).tags) == 2)
        complete(run_dir)
        pusher.join(seconds(60))
    finally:
        training.report = unchanged


# The process


@pytest.fixture
def pushes(hub, hub_environment, run_dir, tmp_path, monkeypatch):
    """The pushes of a training with the environment of a user."""
    (tmp_path / "light").mkdir()
    (tmp_path / "light" / "transformers.py").write_text("raise ImportError\n")  # importing it takes long
    fast = {"OPENRLHF_EBPO_HUB_PAUSE": "0.05", "PYTHONPATH": str(tmp_path / "light"), "OMP_NUM_THREADS": "1"}
    for name, value in {**hub_environment, **fast}.items():
        monkeypatch.setenv(name, value)
    pushes = training.Pushes(settings("--hub.repo", REPO), run_dir)
    yield pushes
    if pushes.process:
        pushes.process.kill()
        pushes.process.wait()


def complete(run_dir) -> None:
    write_json(run_dir / "run.json", {**read_run(run_dir), "status": "complete"})


def test_a_child_pushes_what_is_saved_and_the_command_ends_with_the_last(hub, pushes, run_dir, capfd):
    pushes.start()
    wait_until(lambda: ("model", REPO) in hub.repos and list(hub.repo(REPO).tags) == ["step-000002", "step-000004"])
    assert pushes.process.poll() is None  # it watches on, as the training trains on
    complete(run_dir)
    pushes.finish()
    out = capfd.readouterr().out
    assert pushes.process.returncode == 0 and f"all 2 saved steps are pushed and verified at {REPO}" in out
    assert "step 2 is at" in out and "push what is left" not in out
    assert [c.subject for c in hub.repo(REPO).history()] == ["step 4", "step 2", "initial commit"]


def test_after_the_time_limit_the_command_says_what_is_left(hub, pushes, run_dir, capfd, monkeypatch):
    monkeypatch.setattr(training, "WAIT_SECONDS", 2)  # nothing arrives within it
    fault = hub.fail(r"^PUT /lfs/", hang=True, times=99)
    complete(run_dir)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for what it runs in the background
    pushes.start()
    signal.signal(signal.SIGINT, before)
    wait_until(lambda: fault.hits)
    pushes.finish()
    out = capfd.readouterr().out
    assert "hub: not pushed: steps 2, 4" in out
    assert f"push what is left with: openrlhf-ebpo hub push {run_dir}" in out
    assert pushes.when_stopped().endswith(f"openrlhf-ebpo hub push {run_dir}")


def test_the_child_ends_with_its_training(hub, pushes, run_dir, tmp_path):
    """The next start, or hub push, sends what an interrupted push was sending."""
    code = (
        "from openrlhf_ebpo.hub.hub_settings import HubSettings; from openrlhf_ebpo.hub.training import Pushes; "
        f"import os, signal; pushes = Pushes(HubSettings({REPO!r}), {str(run_dir)!r}); pushes.start(); "
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(pushes.process.pid)); signal.pause()"
    )
    fault = hub.fail(r"^PUT /lfs/", hang=True)
    driver = subprocess.Popen([sys.executable, "-c", code])
    wait_until(lambda: fault.hits)
    driver.kill()
    driver.wait()
    wait_until_gone([int((tmp_path / "pid").read_text())])
    assert not hub.repo(REPO).tags


def test_what_cannot_be_started_is_said_and_ends_no_training(pushes, monkeypatch, capsys):
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    pushes.start()
    pushes.finish()
    out = capsys.readouterr().out
    assert "warning: hub: nothing is pushed during the training" in out and "push what is left with" in out
