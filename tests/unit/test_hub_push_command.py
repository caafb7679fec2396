"""`hub push` as a command, and the process that pushes during a training."""

import json
import os
import shutil
import signal
import subprocess
import sys

import hub_runs
import psutil
import pytest
from commands import refused
from hub_runs import REPO, queue, states
from patience import seconds, wait_until

from openrlhf_ebpo.cli import hub as hub_cli
from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.hub import outbox, pusher
from openrlhf_ebpo.hub_client import hub_api
from openrlhf_ebpo.run.run_lock import write_holder


@pytest.fixture
def client(hub, monkeypatch):
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_TIMEOUT", str(seconds(3)))
    monkeypatch.setattr("openrlhf_ebpo.hub.push.card", lambda run_dir, step, repo, report: {"README.md": b"# card\n"})
    return hub_api(hub.url, hub.token)


# The commands


def hub_command(environment, *argv, **variables):
    command = [sys.executable, "-m", "openrlhf_ebpo.cli.hub", *map(str, argv)]
    fast = {"OPENRLHF_EBPO_HUB_PAUSE": "0.05", "OPENRLHF_EBPO_HUB_TIMEOUT": str(seconds(5)), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env={**environment, **fast, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process):
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err, err
    return process.returncode, out, err


def test_a_push_that_was_killed_is_finished_by_repeating_it(hub, use_hub, hub_environment, make_run, capsys):
    run_dir = make_run()
    fault = hub.fail(r"POST .*/commit/", hang=True)
    process = hub_command(hub_environment, "push", run_dir, "--repo", REPO)
    wait_until(lambda: fault.hits)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not hub.repo(REPO).tags and states(run_dir) == {"4": "pushing"}
    hub_cli.main(["push", str(run_dir)])
    assert "step 4 is at" in capsys.readouterr().out and list(hub.repo(REPO).tags) == ["step-000004"]
    hub_runs.assert_pushed(hub, run_dir, 4)
    assert len(hub.repo(REPO).history()) == 2 and hub.repo(REPO).files()["README.md"].startswith(b"---\n")


def test_a_push_by_xet_that_fails_waits_and_is_finished_without_it(hub, use_hub, hub_environment, make_run):
    """The test server has no Xet, whose errors are of other types than the client's own."""
    run_dir = make_run()
    environment = {**hub_environment, "HF_HUB_DISABLE_XET": "0"}
    code, _, err = finish(hub_command(environment, "push", run_dir, "--repo", REPO, "--attempts", "1"))
    assert code == 1 and "steps 4 are not pushed (pushing to owner/model: no usable answer" in err
    assert not hub.repo(REPO).tags and outbox.pending(run_dir) == 1
    hub_cli.main(["push", str(run_dir)])
    hub_runs.assert_pushed(hub, run_dir, 4)


def test_a_dry_run_lists_sizes_and_leaves_no_trace(hub, use_hub, make_run, capsys):
    run_dir = make_run()
    hub_cli.main(["push", str(run_dir), "--repo", REPO, "--step", "2", "--dry_run"])
    out = capsys.readouterr().out
    assert "1.20 MB  new        model.safetensors" in out and "nothing was sent" in out
    assert not hub.repos and not (run_dir / "hub").exists() and not (run_dir / "hub.json").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--repo", REPO, "--step", "3"], "no saved model of step 3; saved steps: 2, 4"),
        (["--step", "3"], "--step: say where to push, with --repo owner/name"),
        ([], "nothing is queued"),
    ],
)
def test_mistakes_are_explained(hub, use_hub, make_run, argv, words):
    assert words in refused(hub_cli.main, "push", make_run(), *argv) and not hub.repos


def test_a_repo_of_another_run_is_refused_before_anything_is_queued_for_it(hub, use_hub, make_run):
    hub_cli.main(["push", str(make_run("first")), "--repo", REPO])
    second = make_run("second", started="2026-02-02T00:00:00+00:00")
    words = f"error: --repo {REPO}: {REPO} holds another run"
    assert words in refused(hub_cli.main, "push", second, "--repo", REPO)
    hub_cli.main(["push", str(second), "--repo", "owner/second"])
    hub_runs.assert_pushed(hub, second, 4, "owner/second")


def test_a_snapshot_that_waits_is_not_replaced_by_a_push_to_somewhere_else_or_of_less(hub, use_hub, make_run):
    run_dir = make_run()
    queue(run_dir, 4, full_state=[run_dir.parent / "ckpt" / "_actor" / "global_step4"])
    for repo, words in (("owner/other", "waits to be pushed to owner/model"), (REPO, "with the optimizer's state")):
        said = refused(hub_cli.main, "push", run_dir, "--repo", repo)
        assert words in said and f"hub push {run_dir}" in said
    shutil.rmtree(run_dir.parent / "ckpt")  # what waits is all that there is
    hub_cli.main(["push", str(run_dir)])
    assert "full_state/_actor/global_step4/mp_rank_00_model_states.pt" in hub.repo(REPO).files("step-000004")
    assert list(hub.repos) == [("model", REPO)]


def test_a_run_that_was_moved_or_copied_pushes_the_models_beside_it(hub, use_hub, make_run, tmp_path, capsys):
    run_dir = make_run()
    run = json.loads((run_dir / "run.json").read_text())
    run["args"]["logger"]["run_dir"] = str(run_dir)
    write_json(run_dir / "run.json", run)
    copied = shutil.copytree(run_dir.parent, tmp_path / "copied")
    hub_runs.export_model(run_dir.parent / "ckpt" / "global_step4_hf", 99)  # the original goes other ways
    hub.create(REPO)
    hub_cli.main(["push", str(copied / "run"), "--repo", REPO])
    assert hub.repo(REPO).files()["model.safetensors"] == (
        (copied / "ckpt" / "global_step4_hf" / "model.safetensors").read_bytes()
    )
    assert "owner/model exists and is public" in capsys.readouterr().err
    alone = shutil.move(copied / "run", tmp_path / "alone")
    shutil.rmtree(run_dir.parent / "ckpt")
    said = refused(hub_cli.main, "push", alone, "--repo", REPO)
    assert "saved steps: none: step 4 was saved in" in said and "is gone" in said


def test_only_one_process_pushes(hub, use_hub, make_run):
    run_dir = make_run()
    with outbox.take_lock(run_dir) as lock:
        write_holder(lock)
        assert f"process {os.getpid()} is pushing this run" in refused(hub_cli.main, "push", run_dir, "--repo", REPO)
    assert outbox.items(run_dir) == []


def test_the_final_model_of_a_run_that_saved_nothing_else(hub, use_hub, make_run, capsys):
    run_dir = make_run(steps=())
    assert "saved steps: none: train with --ckpt.save_hf" in refused(hub_cli.main, "push", run_dir, "--repo", REPO)
    hub_runs.export_model(run_dir.parent / "model", 7)
    (run_dir / "metrics.jsonl").write_text('{"step": 7, "time": 1}\n')
    hub_cli.main(["push", str(run_dir.parent), "--repo", REPO, "--public"])
    hub_runs.assert_pushed(hub, run_dir, 7)
    assert not hub.repo(REPO).private
    hub_cli.main(["push", str(run_dir)])
    assert "nothing is waiting; step 7: pushed" in capsys.readouterr().out


# The process beside a training


@pytest.fixture
def beside(hub, hub_environment, monkeypatch):
    """Starts the process in the environment of a user; what it leaves behind is ended."""
    started = []

    def start(run_dir, seconds):
        for name, value in {**hub_environment, "OPENRLHF_EBPO_HUB_PAUSE": "0.05"}.items():
            monkeypatch.setenv(name, value)
        pusher.start(run_dir, seconds)
        started.append(run_dir)

    yield start
    for run_dir in started:
        if idle(run_dir):
            continue
        os.kill(int(outbox.who_pushes(run_dir)), signal.SIGKILL)


def idle(run_dir):
    lock = outbox.take_lock(run_dir)
    if lock:
        lock.close()
    return bool(lock)


def test_it_pushes_during_a_training_and_ends_after_it(hub, beside, make_run):
    run_dir = make_run(status="running")
    beside(run_dir, 60)
    assert not idle(run_dir)
    queue(run_dir, 2)
    wait_until(lambda: states(run_dir) == {"2": "pushed"})
    assert not idle(run_dir)
    queue(run_dir, 4)
    run = json.loads((run_dir / "run.json").read_text())
    write_json(run_dir / "run.json", {**run, "status": "complete"})
    wait_until(lambda: idle(run_dir))
    assert states(run_dir) == {"2": "pushed", "4": "pushed"}
    hub_runs.assert_pushed(hub, run_dir, 4)


def test_a_hub_that_stays_away_is_given_up_some_time_after_the_training_and_nothing_is_lost(
    hub, use_hub, beside, make_run
):
    run_dir = make_run(status="complete")
    queue(run_dir, 2)
    hub.stop()
    beside(run_dir, 0.5)
    wait_until(lambda: idle(run_dir))
    assert states(run_dir) == {"2": "failed"} and "time is up" in (run_dir / "hub" / "push.log").read_text()
    hub.start()
    hub_cli.main(["push", str(run_dir)])
    hub_runs.assert_pushed(hub, run_dir, 2)


def test_it_outlives_a_training_that_was_killed(hub, hub_environment, make_run):
    run_dir = make_run(status="running")
    queue(run_dir, 2, 4)
    start = f"from pathlib import Path; from openrlhf_ebpo.hub import pusher; pusher.start(Path({str(run_dir)!r}), 60)"
    kill = "; import os, signal; os.killpg(os.getpid(), signal.SIGKILL)"
    driver = subprocess.run([sys.executable, "-c", start + kill], env=hub_environment, start_new_session=True)
    assert driver.returncode == -signal.SIGKILL and not idle(run_dir)
    wait_until(lambda: idle(run_dir))
    assert states(run_dir) == {"2": "pushed", "4": "pushed"}
    hub_runs.assert_pushed(hub, run_dir, 4)


def test_a_training_that_was_killed_and_that_nobody_asks_for_is_over(make_run):
    run_dir = make_run(status="running")
    driver = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    clock = pusher.Clock(run_dir, psutil.Process(driver.pid), 60)
    assert not clock.over()
    driver.kill()
    wait_until(lambda: psutil.Process(driver.pid).status() == psutil.STATUS_ZOMBIE)
    assert clock.over() and not clock.expired()
    driver.communicate()


def test_an_error_in_the_process_itself_does_not_end_it(hub, client, make_run, monkeypatch):
    run_dir, lines = make_run(), []
    queue(run_dir, 2)
    unreadable = run_dir / "hub.json"
    unreadable.mkdir()
    clock = pusher.Clock(run_dir, None, 60)
    monkeypatch.setattr(clock, "sleep", lambda _: unreadable.is_dir() and unreadable.rmdir())
    monkeypatch.setattr(pusher, "hub_api", lambda: client)
    pusher.work(run_dir, clock, report=lines.append)
    assert "IsADirectoryError" in lines[0] and states(run_dir) == {"2": "pushed"}


def test_a_log_that_the_disk_has_no_room_for_does_not_end_it():
    code = (
        "from openrlhf_ebpo.hub.pusher import log; import os; log('no room'); os.write(2, b'still there'); os._exit(7)"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (7, b"still there")
