"""One training at a time in a run directory and in a folder of checkpoints."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading

import psutil
import pytest

from openrlhf_ebpo.run import run_lock, run_start
from openrlhf_ebpo.run.run_lock import check_free, hold_lock, is_alive
from openrlhf_ebpo.run.run_log import LOCK, RunDirectoryError, read_run
from openrlhf_ebpo.run.run_settings import RunSettings

HOLD = """
import os, sys, time
from pathlib import Path
from openrlhf_ebpo.run.run_lock import hold_lock
with hold_lock(Path(sys.argv[1])):
    print(flush=True)
    time.sleep(600)
"""
LOOK = """
import os, sys
from pathlib import Path
from openrlhf_ebpo.run import run_lock
os.setuid(65534)
try:
    run_lock.check_free(Path(sys.argv[1]))
except run_lock.RunDirectoryError as error:
    print(error)
"""
ARGS = {
    "actor": {"model_name_or_path": "m"},
    "data": {"prompt_dataset": "d"},
    "train": {"seed": 7},
    "ckpt": {"path": "c"},
}


@contextlib.contextmanager
def another_process(folder):
    """A process that holds `folder`, and is killed in the end."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextlib.contextmanager
def claim(run_dir, ckpt, force=False, resume=True):
    settings = RunSettings(run_dir, ckpt, name="r", resume=resume, force=force)
    locks = run_start.claim(settings, argv=["--x"], args=ARGS)
    try:
        yield locks
    finally:
        for lock in locks:
            run_lock.release(lock)


def test_a_second_training_is_refused_in_the_run_directory_and_in_the_checkpoints(tmp_path):
    run_dir, ckpt = tmp_path / "run", tmp_path / "ckpt"
    for folder in (run_dir, ckpt):
        with another_process(folder) as process:
            for refused in (lambda folder=folder: check_free(folder), lambda: claim(run_dir, ckpt).__enter__()):
                with pytest.raises(
                    RunDirectoryError, match=rf"{folder} is in use by .*\(process {process.pid}, since 2"
                ):
                    refused()
            assert not (run_dir / "run.json").exists()


def test_force_does_not_move_a_run_away_from_under_a_training(tmp_path):
    run_dir, ckpt = tmp_path / "run", tmp_path / "ckpt"
    with claim(run_dir, ckpt):
        pass
    with (
        another_process(run_dir),
        pytest.raises(RunDirectoryError, match="is in use"),
        claim(run_dir, ckpt, force=True),
    ):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt", "run"]
    for turn in range(3):
        with claim(run_dir, ckpt, force=True):
            assert read_run(run_dir)["status"] == "running"
            (run_dir / "metrics.jsonl").write_text(f"{turn}")
    assert len(list(tmp_path.glob("run.*"))) == 3
    assert sorted(path.read_text() for path in tmp_path.glob("run*/metrics.jsonl")) == ["0", "1", "2"]


def test_what_ends_lets_go_also_with_an_error(tmp_path):
    with pytest.raises(KeyError), hold_lock(tmp_path / "run"):
        assert json.loads((tmp_path / "run" / LOCK).read_text())["pid"] == os.getpid()
        raise KeyError
    assert (tmp_path / "run" / LOCK).read_text() == ""
    with another_process(tmp_path / "run"):
        pass


def test_the_lock_of_a_killed_holder_is_free(tmp_path):
    with another_process(tmp_path) as process:
        process.kill()
        process.wait()
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == process.pid
        check_free(tmp_path)
        with hold_lock(tmp_path):
            pass


def test_a_lock_is_held_while_a_process_that_shares_it_lives(tmp_path):
    """The supervisor and its driver."""
    lock = run_lock.acquire_lock(tmp_path)
    shared = os.dup(lock.fileno())
    lock.close()
    with pytest.raises(RunDirectoryError, match="in use"):
        check_free(tmp_path)
    os.close(shared)
    check_free(tmp_path)


@pytest.mark.parametrize(
    ("ends", "holder", "waits"), [(True, {}, 1), (False, {}, 1), (False, {"host": "elsewhere"}, 0)]
)
def test_a_driver_whose_supervisor_was_killed_on_this_host_is_waited_for(
    tmp_path, monkeypatch, capsys, ends, holder, waits
):
    monkeypatch.setattr(run_lock, "ENDING_SECONDS", 20.0 if ends else 0.5)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    lock = run_lock.acquire_lock(tmp_path)
    run_lock.write_holder(lock, pid=dead.pid, **holder)
    if ends:
        threading.Timer(0.5, lock.close).start()
        check_free(tmp_path)
    else:
        with pytest.raises(RunDirectoryError, match="in use"):
            check_free(tmp_path)
        lock.close()
    assert capsys.readouterr().out.count("waiting for the end of a killed training") == waits


def test_a_zombie_holder_has_been_killed_and_is_waited_for(tmp_path, monkeypatch, capsys):
    """Its parent has not asked for its status yet, as in a container without an init."""
    monkeypatch.setattr(run_lock, "ENDING_SECONDS", 20.0)
    zombie = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    lock = run_lock.acquire_lock(tmp_path)
    run_lock.write_holder(lock, pid=zombie.pid)
    threading.Timer(0.5, lock.close).start()
    check_free(tmp_path)
    zombie.wait()
    assert "killed training" in capsys.readouterr().out


@pytest.mark.parametrize(("host", "refused"), [(socket.gethostname(), False), ("elsewhere", True)])
def test_only_the_supervisor_of_this_host_is_the_parent(tmp_path, host, refused):
    """On a shared disk another host's supervisor may have the same number."""
    lock = run_lock.acquire_lock(tmp_path)
    run_lock.write_holder(lock, pid=os.getppid(), host=host)
    with pytest.raises(RunDirectoryError, match="elsewhere") if refused else contextlib.nullcontext():
        check_free(tmp_path)
    run_lock.release(lock)


def test_a_process_that_has_got_the_number_of_another_is_not_that_one():
    process = psutil.Process()
    assert is_alive(process)
    process._ident = (process.pid, process.create_time() - 100)  # of the one that had it before
    assert not is_alive(process)


def test_one_folder_for_both_is_held_once(tmp_path):
    with claim(tmp_path / "run", tmp_path / "x" / ".." / "run"), pytest.raises(subprocess.CalledProcessError):
        subprocess.run([sys.executable, "-c", HOLD, tmp_path / "run"], check=True, capture_output=True)


def test_a_lock_file_alone_is_no_foreign_folder(tmp_path):
    (tmp_path / LOCK).touch()
    with claim(tmp_path, tmp_path / "ckpt") as locks:
        assert read_run(tmp_path)["status"] == "running" and len(locks) == 2


def test_on_a_disk_without_locks_a_training_begins_with_a_warning(tmp_path, monkeypatch, capsys):
    def no_locks(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with hold_lock(tmp_path):
        check_free(tmp_path)
    assert "[Errno 37]" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "\0" * 9000, '{"host": "\\u001b[31m", "pid": {"a": 1}}'])
def test_a_lock_file_of_nonsense_does_not_block_and_is_printed_harmlessly(tmp_path, text, capsys):
    (tmp_path / LOCK).write_text(text)
    with hold_lock(tmp_path):
        pass
    assert "\x1b" not in capsys.readouterr().out


def test_a_folder_that_cannot_be_made_is_a_warning(tmp_path, capsys):
    """Checkpoints may lie on a disk that the driver's node does not have."""
    (tmp_path / "file").touch()
    with hold_lock(tmp_path / "file" / "ckpt"):
        assert "not protected" in capsys.readouterr().out


def test_force_moves_another_runs_checkpoints_aside_unless_it_goes_on_from_them(tmp_path):
    (tmp_path / "ckpt" / "_actor" / "global_step9").mkdir(parents=True)
    with claim(tmp_path / "run", tmp_path / "ckpt", force=True, resume=True):
        assert (tmp_path / "ckpt" / "_actor" / "global_step9").is_dir()
    with claim(tmp_path / "run", tmp_path / "ckpt", force=True, resume=False):
        assert not (tmp_path / "ckpt" / "_actor").exists()
    assert len(list((tmp_path / "ckpt").glob("_actor.*/global_step9"))) == 1


def test_force_does_not_move_the_checkpoints_away_that_a_resume_needs(tmp_path):
    run, checkpoint = tmp_path / "run", tmp_path / "run" / "ckpt" / "_actor" / "global_step9"
    checkpoint.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    for path in (run, run / "ckpt"):
        with pytest.raises(RunDirectoryError, match="--force would move"), claim(run, path, force=True):
            pass
    assert checkpoint.is_dir()


def test_the_lock_of_another_user_is_seen_though_it_cannot_be_taken(tmp_path):
    """In a folder that all may write to."""
    if os.getuid():
        pytest.skip("only root can be two users")
    with another_process(tmp_path) as holder:
        tmp_path.chmod(0o777)
        for parent in tmp_path.parents:
            if parent.owner() == "root" and str(parent).startswith("/tmp/"):
                parent.chmod(0o755)
        alive = subprocess.run([sys.executable, "-c", LOOK, str(tmp_path)], capture_output=True, text=True)
        assert f"(process {holder.pid}, since" in alive.stdout, alive.stdout + alive.stderr
