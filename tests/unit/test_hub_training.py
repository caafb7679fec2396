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

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.hub import resume, settings, training
from openrlhf_ebpo.hub.exports import Export, is_locked, who_pushes
from openrlhf_ebpo.run import run_lock
from openrlhf_ebpo.run.run_log import read_run


def flags(*argv, **others):
    """The flat namespace of a training with the Hub's flags `argv`."""
    parser = argparse.ArgumentParser()
    settings.add_flags(parser)
    known = {
        "ckpt.save_steps": 2,
        "ckpt.save_hf": True,
        "ckpt.disable_ds": False,
        "ckpt.path": "ckpt",
        "ckpt.load_enable": False,
        "logger.run_dir": "run",
        "force": False,
        "actor.model_name_or_path": None,
        "algo.advantage.estimator": "ebpo",
        "algo.advantage.ebpo.init_prior": None,
        "algo.advantage.ebpo.reset_prior": False,
    }
    return {**vars(parser.parse_args(argv)), **known, **others}


@pytest.fixture
def pushed(hub, use_hub, make_run, monkeypatch):
    """A run directory whose steps 2 and 4 are at owner/model."""
    monkeypatch.setattr("openrlhf_ebpo.hub.push.card", lambda *_: {"README.md": b"# card\n"})
    run_dir = make_run()
    push(run_dir)
    return run_dir


def test_nothing_happens_without_a_repo(hub):
    values = flags()
    settings.check_flags(values)
    assert settings.check_access(values) == [] and resume.resolve_resume(values) == [] and not hub.requests


def test_private_is_the_default_and_can_be_turned_off():
    assert flags()["hub.private"] is flags("--hub.private")["hub.private"] is True
    assert flags("--hub.private", "false")["hub.private"] is False
    with pytest.raises(SystemExit):
        flags("--hub.private", "maybe")


@pytest.mark.parametrize(
    ("argv", "others", "words"),
    [
        (["--hub.repo", "nonsense"], {}, "--hub.repo nonsense"),
        (["--hub.repo", REPO], {"ckpt.save_hf": False}, "add --ckpt.save_hf"),
        (["--hub.repo", REPO, "--hub.every", "0"], {}, "--hub.every is 0"),
        (["--hub.repo", REPO, "--hub.wait", "-1"], {}, "--hub.wait is -1"),
    ],
)
def test_flags_that_cannot_work(argv, others, words):
    with pytest.raises(UsageError, match=words):
        settings.check_flags(flags(*argv, **others))


def test_only_the_final_model_is_pushed_where_none_is_saved_before():
    settings.check_flags(flags("--hub.repo", REPO, **{"ckpt.save_steps": -1, "ckpt.save_hf": False}))


def test_a_wrong_token_stops_and_a_hub_that_is_away_warns(hub, use_hub, monkeypatch):
    values = flags("--hub.repo", REPO)
    assert settings.check_access(values) == [f"models will be pushed to {REPO}, a new private repo"]
    monkeypatch.setenv("HF_TOKEN", hub.read_token)
    with pytest.raises(UsageError, match="may only read"):
        settings.check_access(values)
    hub.stop()
    (warning,) = settings.check_access(values)
    assert warning.startswith("warning: the Hub cannot be reached") and hub.read_token not in warning


def test_an_existing_repo_is_described_and_another_runs_repo_is_refused(hub, pushed):
    hub.create("owner/public")
    assert "is public" in settings.check_access(flags("--hub.repo", "owner/public"))[0]
    with pytest.raises(UsageError, match="holds another run"):
        settings.check_access(flags("--hub.repo", REPO))
    own = {"logger.run_dir": str(pushed), "ckpt.load_enable": True}
    run = json.loads((pushed / "run.json").read_text())
    write_json(pushed / "run.json", {**run, "name": "resumed under another name"})
    assert "which exists and is private" in settings.check_access(flags("--hub.repo", REPO, **own))[0]
    with pytest.raises(UsageError, match="another run"):
        settings.check_access(flags("--hub.repo", REPO, **own, force=True))
    for name, text in {"words": b"not JSON", "deep": b"[" * 100_000, "list": b"[]"}.items():
        hub.create(f"owner/{name}").commit("main", {"run.json": File(text, False)}, "m")
        with pytest.raises(UsageError, match="holds another run"):
            settings.check_access(flags("--hub.repo", f"owner/{name}", **own))


def test_what_stays_private_although_it_was_to_be_public_is_said(hub, use_hub):
    hub.create("owner/old", private=True)
    (warning,) = settings.check_access(flags("--hub.repo", "owner/old", "--hub.private", "false"))
    assert warning.startswith("warning: owner/old exists and is private")


def test_resuming_takes_weights_and_prior_of_the_step(pushed, tmp_path):
    values = flags("--hub.resume_from", f"{REPO}@2", **{"ckpt.path": str(tmp_path / "new")})
    resume.resolve_resume(values)
    folder = Path(values["actor.model_name_or_path"])
    assert folder == tmp_path / "new" / "hub" / "owner--model@step-000002"
    assert json.loads((folder / "config.json").read_text())["step"] == 2
    assert json.loads(Path(values["algo.advantage.ebpo.init_prior"]).read_text())["batches"] == 2
    assert not values["ckpt.load_enable"]


@pytest.mark.parametrize(
    ("argv", "others", "words"),
    [
        (["--hub.resume_from", f"{REPO}@2"], {"actor.model_name_or_path": "base"}, "give one of them"),
        (["--hub.resume_from", f"{REPO}@3"], {}, "no revision step-000003; it has main, step-000002, step-000004"),
        (["--hub.resume_from", "nonsense"], {}, "--hub.resume_from nonsense"),
    ],
)
def test_what_cannot_be_resumed_from(pushed, tmp_path, argv, others, words):
    with pytest.raises(UsageError, match=words):
        resume.resolve_resume(flags(*argv, **{"ckpt.path": str(tmp_path / "new"), **others}))


def test_what_was_pulled_before_does_without_the_hub(hub, pushed, tmp_path):
    values = {"ckpt.path": str(tmp_path / "new")}
    resume.resolve_resume(flags("--hub.resume_from", f"{REPO}@2", **values))
    hub.stop()
    notices = resume._pull_once(REPO, "step-000002", tmp_path / "new/hub/owner--model@step-000002", "it", False)
    assert "cannot be reached" in notices[0]


def test_a_run_that_is_resumed_keeps_the_weights_it_began_with(hub, pushed, tmp_path):
    new = tmp_path / "new"
    resume.resolve_resume(flags("--hub.resume_from", REPO, **{"ckpt.path": str(new)}))
    before = (new / "hub" / "owner--model@main" / "model.safetensors").read_bytes()
    push(pushed, wanted=[Export(6, hub_runs.export_model(pushed.parent / "later", 6))])  # main has moved on
    shutil.copytree(pushed.parent / "ckpt" / "_actor", new / "_actor")
    resumed = {"ckpt.path": str(new), "ckpt.load_enable": True}
    notices = resume.resolve_resume(flags("--hub.resume_from", REPO, **resumed))
    assert "is used as it is" in notices[0]
    assert (new / "hub" / "owner--model@main" / "model.safetensors").read_bytes() == before


# Driver and trainer


@pytest.fixture
def trainer(make_run, sections):
    run_dir = make_run(status="running")
    args = sections(
        **{
            **{name: value for name, value in flags("--hub.repo", REPO, "--hub.wait", "0").items() if "hub." in name},
            "ckpt.path": str(run_dir.parent / "ckpt"),
            "ckpt.save_steps": 2,
            "ckpt.save_hf": True,
            "ckpt.output_dir": str(run_dir.parent / "model"),
            "logger.run_dir": str(run_dir),
        }
    )
    return args, run_dir, training.Pushes(args)


def test_what_is_not_recorded_as_pushed_is_counted(trainer, use_hub):
    args, run_dir, pushes = trainer
    assert pushes.metrics() == {"hub/pending": 2, "hub/failed": 0}
    (run_dir / "hub.json").write_text("damaged")
    assert pushes.metrics() == {"hub/pending": 2, "hub/failed": 0}
    push(run_dir)
    assert pushes.metrics() == {"hub/pending": 0, "hub/failed": 0}
    args.hub.repo = None
    assert pushes.metrics() == {}


def test_what_cannot_be_counted_stops_no_training(trainer, capsys):
    _, run_dir, pushes = trainer
    (run_dir / "checkpoints.jsonl").write_text("no JSON\n")
    assert pushes.metrics() == {} and "warning: hub: RunDirectoryError" in capsys.readouterr().out


def test_a_secret_in_the_tokenizers_files_is_told_at_the_start_and_stops_no_training(hub, use_hub, trainer):
    _, run_dir, pushes = trainer
    model = run_dir.parent / "ckpt" / "global_step2_hf"
    write_json(model / "tokenizer_config.json", {"token": "whatever", "pad_token": "<pad>"})
    link = run_dir.parent / "snapshot"
    link.mkdir()
    (link / "tokenizer_config.json").symlink_to(model / "tokenizer_config.json")  # as in the cache of the Hub's client
    for base in (model, link):
        _, warning = settings.check_access(flags("--hub.repo", REPO, **{"actor.model_name_or_path": str(base)}))
        assert (
            warning.startswith("warning: ") and f"{base}/tokenizer_config.json keeps a secret under 'token'" in warning
        )
    said = "\n".join(push(run_dir))
    assert "tokenizer_config.json keeps a secret under 'token'" in said and "whatever" not in said
    assert pushes.metrics() == {"hub/pending": 1, "hub/failed": 1}


def test_a_push_is_reported_once(hub, trainer, use_hub, capsys):
    _, run_dir, pushes = trainer
    hub.fail(r"POST .*/commit/", 503)
    push(run_dir)
    assert pushes.metrics() == {"hub/pending": 2, "hub/failed": 1}
    assert "step 2 is not pushed, will be repeated" in capsys.readouterr().out
    push(run_dir)
    pushes.metrics()
    pushes.metrics()
    assert capsys.readouterr().out.count("step 2 is pushed and verified") == 1
    assert training.Pushes(pushes.args).metrics()["hub/pending"] == 0 and capsys.readouterr().out == ""


def test_the_end_names_what_is_left_and_the_command_for_it(trainer, capsys):
    args, run_dir, _ = trainer
    training.finish(args)
    out = capsys.readouterr().out
    assert f"not pushed yet: steps 2, 4; finish with: openrlhf-ebpo hub push {run_dir}" in out
    assert f"hub push {run_dir}" in training.when_stopped(args)
    args.hub.repo = None
    training.finish(args)
    assert training.when_stopped(args) == capsys.readouterr().out == ""


def test_a_disk_without_locks_is_told_and_stops_nothing(trainer, monkeypatch, capsys):
    args, _, pushes = trainer

    def refuse(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    args.hub.wait = 1.0
    training.start_watch(args)
    pushes.after_saving()
    training.finish(args)
    out = capsys.readouterr().out
    assert "the disk has no locks" in out and "not pushed yet: steps 2, 4" in out


# The process


@pytest.fixture
def running(hub, hub_environment, trainer, tmp_path, monkeypatch):
    """A training that is under way: it holds the lock of its run directory. A process that is left behind is ended."""
    args, run_dir, _ = trainer
    hub_runs.set_repo(run_dir)
    (tmp_path / "light").mkdir()
    (tmp_path / "light" / "transformers.py").write_text("raise ImportError\n")  # importing it takes long
    fast = {"OPENRLHF_EBPO_HUB_PAUSE": "0.05", "PYTHONPATH": str(tmp_path / "light"), "OMP_NUM_THREADS": "1"}
    for name, value in {**hub_environment, **fast}.items():
        monkeypatch.setenv(name, value)
    args.hub.wait = seconds(60)
    yield args, run_dir
    end(run_dir)
    end(run_dir)


def end(run_dir) -> bool:
    if not is_locked(run_dir) or not (pid := who_pushes(run_dir)).isdigit():
        return False
    os.kill(int(pid), signal.SIGKILL)
    wait_until(lambda: not is_locked(run_dir) or who_pushes(run_dir) != pid)
    return True


def test_a_process_pushes_what_is_saved_and_is_started_again_when_it_was_killed(hub, running, capsys):
    args, run_dir = running
    fault = hub.fail(r"^PUT /lfs/", hang=True)
    with run_lock.held(run_dir):
        training.start_watch(args)
        assert is_locked(run_dir)  # at once
        training.start_watch(args)  # one is enough
        wait_until(lambda: fault.hits)
        assert end(run_dir)
        pushes = training.Pushes(args)
        pushes.after_saving()
        pushes.after_saving()
        wait_until(lambda: hub_runs.states(run_dir) == {"2": "pushed", "4": "pushed"})
        assert is_locked(run_dir)  # it watches on, as the training trains on
    assert capsys.readouterr().out.count("has ended") == 1
    write_json(run_dir / "run.json", {**read_run(run_dir), "status": "complete"})
    training.finish(args)
    assert f"hub: 2 pushed and verified at {REPO}: steps 2, 4" in capsys.readouterr().out
    assert [c.title for c in hub.repo(REPO).history()] == ["step 4", "step 2", "initial commit"]


def test_it_outlives_a_training_that_was_killed(hub, running):
    _, run_dir = running
    start = (
        "from types import SimpleNamespace as N; from openrlhf_ebpo.hub import training; import os, signal; "
        f"training.start_watch(N(hub=N(repo={REPO!r}), logger=N(run_dir={str(run_dir)!r}))); "
        "os.killpg(os.getpid(), signal.SIGKILL)"
    )
    driver = subprocess.run([sys.executable, "-c", start], start_new_session=True)
    assert driver.returncode == -signal.SIGKILL and is_locked(run_dir)
    wait_until(lambda: not is_locked(run_dir))
    assert hub_runs.states(run_dir) == {"2": "pushed", "4": "pushed"}
    hub_runs.assert_pushed(hub, run_dir, 4)


def test_what_cannot_be_started_is_said_and_ends_no_training(running, monkeypatch, capsys):
    args, run_dir = running
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    training.start_watch(args)
    assert "warning: hub: FileNotFoundError" in capsys.readouterr().out and not is_locked(run_dir)


def test_a_hub_that_hangs_delays_no_save(hub, running):
    args, run_dir = running
    hub.fail(".*", hang=True, times=10**6)
    with run_lock.held(run_dir):
        training.start_watch(args)
        pushes, started = training.Pushes(args), time.monotonic()
        for _ in range(20):
            pushes.after_saving()
            pushes.metrics()
        assert time.monotonic() - started < seconds(2)
