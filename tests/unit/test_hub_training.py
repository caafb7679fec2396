"""The Hub's flags of a training, and what driver and trainer do with them."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import hub_runs
import pytest
from hub_repos import File
from hub_runs import REPO, push
from patience import seconds, wait_until

from openrlhf_ebpo.cli.train_flags import resume_from_hub
from openrlhf_ebpo.command import nested
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.hub import training
from openrlhf_ebpo.hub.exports import Export, is_locked, who_pushes
from openrlhf_ebpo.hub.pull import pull_start
from openrlhf_ebpo.hub.settings import HubSettings, add_flags
from openrlhf_ebpo.run import run_lock
from openrlhf_ebpo.run.run_log import read_run


def settings(*argv) -> HubSettings:
    """As the parser of a training makes them from the flags `argv`."""
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return HubSettings.from_args(nested(vars(parser.parse_args(argv))))


@pytest.fixture(autouse=True)
def small_card(monkeypatch):
    """The picture of a real one takes half a second."""
    monkeypatch.setattr("openrlhf_ebpo.hub.push.card", lambda *_: {"README.md": b"# card\n"})


@pytest.fixture
def pushed(hub, use_hub, make_run):
    """A run directory whose steps 2 and 4 are at owner/model."""
    run_dir = make_run()
    push(run_dir)
    return run_dir


def test_nothing_happens_without_a_repo(hub, tmp_path, capsys):
    settings().check(2, False)
    assert settings() == HubSettings() and settings().check_access({}, None) == []
    pushes = training.Pushes(settings(), tmp_path)
    pushes.start_watch()
    pushes.after_saving()
    pushes.finish()
    assert pushes.metrics() == {} and pushes.when_stopped() == capsys.readouterr().out == ""
    assert not hub.requests and not list(tmp_path.iterdir())


def test_private_is_the_default_and_can_be_turned_off():
    assert settings().private is settings("--hub.private").private is True
    assert settings("--hub.private", "false").private is False
    with pytest.raises(SystemExit):
        settings("--hub.private", "maybe")


@pytest.mark.parametrize(
    ("argv", "save_hf", "words"),
    [
        (["--hub.repo", "nonsense"], True, "--hub.repo nonsense"),
        (["--hub.resume_from", "nonsense"], True, "--hub.resume_from nonsense"),
        (["--hub.repo", REPO], False, "add --ckpt.save_hf"),
        (["--hub.repo", REPO, "--hub.every", "0"], True, "--hub.every is 0"),
        (["--hub.repo", REPO, "--hub.wait", "-1"], True, "--hub.wait is -1"),
    ],
)
def test_flags_that_cannot_work(argv, save_hf, words):
    with pytest.raises(UsageError, match=words):
        settings(*argv).check(2, save_hf)


def test_only_the_final_model_is_pushed_where_none_is_saved_before():
    settings("--hub.repo", REPO).check(-1, False)


def test_a_wrong_token_stops_and_a_hub_that_is_away_warns(hub, use_hub, monkeypatch):
    to_repo = settings("--hub.repo", REPO)
    assert to_repo.check_access({}, None) == [f"models will be pushed to {REPO}, a new private repo"]
    monkeypatch.setenv("HF_TOKEN", hub.read_token)
    with pytest.raises(UsageError, match="may only read"):
        to_repo.check_access({}, None)
    hub.stop()
    (warning,) = to_repo.check_access({}, None)
    assert warning.startswith("warning: the Hub cannot be reached") and hub.read_token not in warning


def test_an_existing_repo_is_described_and_another_runs_repo_is_refused(hub, pushed):
    hub.create("owner/public")
    hub.create("owner/old", private=True)
    assert "is public" in settings("--hub.repo", "owner/public").check_access({}, None)[0]
    (warning,) = settings("--hub.repo", "owner/old", "--hub.private", "false").check_access({}, None)
    assert warning.startswith("warning: owner/old exists and is private")
    with pytest.raises(UsageError, match="holds another run"):
        settings("--hub.repo", REPO).check_access({}, None)
    renamed = {**read_run(pushed), "name": "resumed under another name"}
    assert "which exists and is private" in settings("--hub.repo", REPO).check_access(renamed, None)[0]
    for name, text in {"words": b"not JSON", "deep": b"[" * 100_000, "list": b"[]"}.items():
        hub.create(f"owner/{name}").commit("main", {"run.json": File(text, False)}, "m")
        with pytest.raises(UsageError, match="holds another run"):
            settings("--hub.repo", f"owner/{name}").check_access(renamed, None)


# A start from the Hub


def flags(tmp_path, resume_from: str, **others):
    """The arguments of a training, as far as a start from the Hub reads them."""
    values = {"ckpt.path": str(tmp_path / "new"), "ckpt.load_enable": False, "actor.model_name_or_path": None}
    prior = {"algo.advantage.ebpo.init_prior": None, "algo.advantage.ebpo.reset_prior": False}
    values |= {"hub.resume_from": resume_from, "algo.advantage.estimator": "ebpo"}
    return nested({**values, **prior, **others})


def test_resuming_takes_weights_and_prior_of_the_step(pushed, tmp_path):
    args = flags(tmp_path, f"{REPO}@2")
    (notice,) = resume_from_hub(args)
    folder = Path(args.actor.model_name_or_path)
    assert folder == tmp_path / "new" / "hub" / "owner--model@step-000002" and "weights and prior" in notice
    assert json.loads((folder / "config.json").read_text())["step"] == 2
    assert json.loads(Path(args.algo.advantage.ebpo.init_prior).read_text())["batches"] == 2
    args = flags(tmp_path, f"{REPO}@2", **{"algo.advantage.ebpo.reset_prior": True})
    (notice,) = resume_from_hub(args)
    assert "the prior is not" in notice and args.algo.advantage.ebpo.init_prior is None


@pytest.mark.parametrize(
    ("step", "others", "words"),
    [
        (2, {"actor.model_name_or_path": "base"}, "give one of them"),
        (3, {}, "no revision step-000003; it has main, step-000002, step-000004"),
    ],
)
def test_what_cannot_be_resumed_from(pushed, tmp_path, step, others, words):
    with pytest.raises(UsageError, match=words):
        resume_from_hub(flags(tmp_path, f"{REPO}@{step}", **others))


def test_what_was_pulled_before_does_without_the_hub(hub, pushed, tmp_path):
    first = pull_start(f"{REPO}@2", tmp_path, False)
    hub.stop()
    again = pull_start(f"{REPO}@2", tmp_path, False)
    assert again.model == first.model and "cannot be reached" in again.notices[0]


def test_a_run_that_is_resumed_keeps_the_weights_it_began_with(hub, pushed, tmp_path):
    new = tmp_path / "new"
    resume_from_hub(flags(tmp_path, REPO))
    before = (new / "hub" / "owner--model@main" / "model.safetensors").read_bytes()
    push(pushed, wanted=[Export(6, hub_runs.export_model(pushed.parent / "later", 6))])  # main has moved on
    shutil.copytree(pushed.parent / "ckpt" / "_actor", new / "_actor")
    notices = resume_from_hub(flags(tmp_path, REPO, **{"ckpt.load_enable": True}))
    assert "is used as it is" in notices[0]
    assert (new / "hub" / "owner--model@main" / "model.safetensors").read_bytes() == before


# Driver and trainer


@pytest.fixture
def pushes(make_run):
    """Of a training that is under way."""
    return training.Pushes(settings("--hub.repo", REPO, "--hub.wait", "0"), make_run(status="running"))


def test_what_is_not_recorded_as_pushed_is_counted(pushes, use_hub):
    assert pushes.metrics() == {"hub/pending": 2, "hub/failed": 0}
    (pushes.run_dir / "hub.json").write_text("damaged")
    assert pushes.metrics() == {"hub/pending": 2, "hub/failed": 0}
    push(pushes.run_dir)
    assert pushes.metrics() == {"hub/pending": 0, "hub/failed": 0}


def test_what_cannot_be_counted_stops_no_training(pushes, capsys):
    (pushes.run_dir / "checkpoints.jsonl").write_text("no JSON\n")
    assert pushes.metrics() == {} and "warning: hub: RunDirectoryError" in capsys.readouterr().out


def test_a_secret_in_the_tokenizers_files_is_told_at_the_start_and_stops_no_training(hub, use_hub, pushes):
    run_dir = pushes.run_dir
    model = run_dir.parent / "ckpt" / "global_step2_hf"
    write_json(model / "tokenizer_config.json", {"token": "whatever", "pad_token": "<pad>"})
    link = run_dir.parent / "snapshot"
    link.mkdir()
    (link / "tokenizer_config.json").symlink_to(model / "tokenizer_config.json")  # as in the cache of the Hub's client
    for base in (model, link):
        _, warning = settings("--hub.repo", REPO).check_access({}, str(base))
        assert (
            warning.startswith("warning: ") and f"{base}/tokenizer_config.json keeps a secret under 'token'" in warning
        )
    said = "\n".join(push(run_dir))
    assert "tokenizer_config.json keeps a secret under 'token'" in said and "whatever" not in said
    assert pushes.metrics() == {"hub/pending": 1, "hub/failed": 1}


def test_a_push_is_reported_once(hub, pushes, use_hub, capsys):
    hub.fail(r"POST .*/commit/", 503)
    push(pushes.run_dir)
    assert pushes.metrics() == {"hub/pending": 2, "hub/failed": 1}
    assert "step 2 is not pushed, will be repeated" in capsys.readouterr().out
    push(pushes.run_dir)
    pushes.metrics()
    pushes.metrics()
    assert capsys.readouterr().out.count("step 2 is pushed and verified") == 1
    assert (
        training.Pushes(pushes.settings, pushes.run_dir).metrics()["hub/pending"] == 0 and capsys.readouterr().out == ""
    )


def test_the_end_names_what_is_left_and_the_command_for_it(pushes, capsys):
    pushes.finish()
    command = f"finish with: openrlhf-ebpo hub push {pushes.run_dir}"
    assert f"not pushed yet: steps 2, 4; {command}" in capsys.readouterr().out
    assert command in pushes.when_stopped()


def test_a_disk_without_locks_is_told_and_stops_nothing(pushes, monkeypatch, capsys):
    def refuse(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    pushes = training.Pushes(settings("--hub.repo", REPO, "--hub.wait", "1"), pushes.run_dir)
    pushes.start_watch()
    pushes.after_saving()
    pushes.finish()
    assert pushes.metrics()["hub/pending"] == 2 and "steps 2, 4" in capsys.readouterr().out


# The process


@pytest.fixture
def running(hub, hub_environment, pushes, tmp_path, monkeypatch):
    """`pushes` with the environment of a user. A process that is left behind is ended."""
    run_dir = hub_runs.set_repo(pushes.run_dir)
    (tmp_path / "light").mkdir()
    (tmp_path / "light" / "transformers.py").write_text("raise ImportError\n")  # importing it takes long
    fast = {"OPENRLHF_EBPO_HUB_PAUSE": "0.05", "PYTHONPATH": str(tmp_path / "light"), "OMP_NUM_THREADS": "1"}
    for name, value in {**hub_environment, **fast}.items():
        monkeypatch.setenv(name, value)
    yield training.Pushes(settings("--hub.repo", REPO, "--hub.wait", str(seconds(60))), run_dir)
    end(run_dir)
    end(run_dir)


def end(run_dir) -> bool:
    if not is_locked(run_dir) or not (pid := who_pushes(run_dir)).isdigit():
        return False
    os.kill(int(pid), signal.SIGKILL)
    wait_until(lambda: not is_locked(run_dir) or who_pushes(run_dir) != pid)
    return True


def test_a_process_pushes_what_is_saved_and_is_started_again_when_it_was_killed(hub, running, capsys):
    run_dir = running.run_dir
    fault = hub.fail(r"^PUT /lfs/", hang=True)
    with run_lock.held(run_dir):
        running.start_watch()
        assert is_locked(run_dir)  # at once
        running.start_watch()  # one is enough
        wait_until(lambda: fault.hits)
        started = time.monotonic()
        for _ in range(20):
            running.after_saving()
            running.metrics()
        assert time.monotonic() - started < seconds(2)  # a Hub that hangs delays no save
        assert end(run_dir)
        running.after_saving()
        running.after_saving()
        wait_until(lambda: hub_runs.states(run_dir) == {"2": "pushed", "4": "pushed"})
        assert is_locked(run_dir)  # it watches on, as the training trains on
    assert capsys.readouterr().out.count("has ended") == 1
    write_json(run_dir / "run.json", {**read_run(run_dir), "status": "complete"})
    running.finish()
    assert f"hub: 2 pushed and verified at {REPO}: steps 2, 4" in capsys.readouterr().out
    assert [c.title for c in hub.repo(REPO).history()] == ["step 4", "step 2", "initial commit"]


def test_it_outlives_a_training_that_was_killed(hub, running):
    run_dir = running.run_dir
    start = (
        "from openrlhf_ebpo.hub.settings import HubSettings; from openrlhf_ebpo.hub.training import Pushes; "
        f"import os, signal; Pushes(HubSettings({REPO!r}), {str(run_dir)!r}).start_watch(); "
        "os.killpg(os.getpid(), signal.SIGKILL)"
    )
    driver = subprocess.run([sys.executable, "-c", start], start_new_session=True)
    assert driver.returncode == -signal.SIGKILL and is_locked(run_dir)
    wait_until(lambda: not is_locked(run_dir))
    assert hub_runs.states(run_dir) == {"2": "pushed", "4": "pushed"}
    hub_runs.assert_pushed(hub, run_dir, 4)


def test_what_cannot_be_started_is_said_and_ends_no_training(running, monkeypatch, capsys):
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    running.start_watch()
    assert "warning: hub: FileNotFoundError" in capsys.readouterr().out and not is_locked(running.run_dir)
