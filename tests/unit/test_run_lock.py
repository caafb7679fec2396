"""One training at a time in a run directory and in a folder of checkpoints."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from openrlhf_ebpo.record import run_lock
from openrlhf_ebpo.record.run_lock import check_free, claimed, held
from openrlhf_ebpo.record.run_log import LOCK, RunDirectoryError, read_run

HOLD = """
import os, sys, time
from pathlib import Path
from openrlhf_ebpo.record.run_lock import held
with held(Path(sys.argv[1])):
    forked = os.fork() if sys.argv[2] == "fork" else -1
    if forked:
        print(forked, flush=True)
    time.sleep(600)
"""
LOOK = """
import os, sys
from pathlib import Path
from openrlhf_ebpo.record import run_lock
os.setuid(65534)
run_lock.SILENCE_SECONDS = 15
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
def another_process(folder, fork: str = "no"):
    """A process that holds `folder`, and the id of its forked child; both are killed in the end."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder), fork], stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if child > 0:
            os.kill(child, signal.SIGKILL)
        process.stdout.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(run_lock, "SILENCE_SECONDS", 0.5)
    run_lock._is_silent.cache_clear()


def claim(run_dir, ckpt, force=False, resume=True):
    return claimed(run_dir, ckpt, name="r", argv=["--x"], args=ARGS, resume=resume, force=force)


def foreign(folder, **changes):
    """What a process of another kernel has left."""
    folder.mkdir(exist_ok=True)
    holder = {"host": "node7", "pid": 4242, "since": "2026-01-01T00:00:00+00:00", "boot": "another", **changes}
    (folder / LOCK).write_text(json.dumps(holder))


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
    with claim(run_dir, ckpt, force=True):
        assert read_run(run_dir)["status"] == "running"
    assert len(list(tmp_path.glob("run.*"))) == 1


def test_what_ends_lets_go_also_with_an_error(tmp_path):
    with pytest.raises(KeyError), claim(tmp_path / "run", tmp_path / "ckpt"):
        assert json.loads((tmp_path / "run" / LOCK).read_text())["pid"] == os.getpid()
        raise KeyError
    assert (tmp_path / "run" / LOCK).read_text() == (tmp_path / "ckpt" / LOCK).read_text() == ""
    with another_process(tmp_path / "run"):
        pass


@pytest.mark.parametrize("fork", ["no", "fork"])
def test_a_killed_holder_blocks_nobody_and_neither_does_its_child(tmp_path, fork, capsys):
    with another_process(tmp_path, fork) as process:
        process.kill()
        process.wait()
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == process.pid
        check_free(tmp_path)
        with held(tmp_path):
            pass
    assert capsys.readouterr().out == ""


def test_one_folder_for_both_is_held_once(tmp_path):
    with claim(tmp_path / "run", tmp_path / "x" / ".." / "run"), pytest.raises(subprocess.CalledProcessError):
        subprocess.run([sys.executable, "-c", HOLD, tmp_path / "run", "no"], check=True, capture_output=True)


def test_a_lock_file_alone_is_no_foreign_folder(tmp_path):
    (tmp_path / LOCK).touch()
    with claim(tmp_path, tmp_path / "ckpt") as run:
        assert run["status"] == "running"


def test_a_file_that_a_dead_host_left_is_watched_for_a_while_and_then_taken(tmp_path, capsys):
    foreign(tmp_path)
    check_free(tmp_path)
    assert "in use by a training on host node7 (process 4242" in (said := capsys.readouterr().out)
    assert "watching for 0.5 s" in said
    with held(tmp_path):
        pass
    assert capsys.readouterr().out == ""  # asked once


def test_a_host_that_still_beats_holds_it_where_the_disk_carries_no_locks(tmp_path, monkeypatch):
    foreign(tmp_path)
    monkeypatch.setattr(run_lock, "BEAT_SECONDS", 0.02)
    with open(tmp_path / LOCK) as file, run_lock._beating(file), pytest.raises(RunDirectoryError, match="host node7"):
        check_free(tmp_path)


def test_on_a_disk_without_locks_the_beat_decides_also_on_one_host(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(run_lock, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr("fcntl.lockf", no_locks)
    with held(tmp_path), pytest.raises(RunDirectoryError, match=f"process {os.getpid()}"):
        check_free(tmp_path)
    with held(tmp_path):  # it was let go of
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "\0" * 9000, '{"host": "\\u001b[31m", "pid": {"a": 1}}'])
def test_a_lock_file_of_nonsense_stops_nobody_and_is_printed_harmlessly(tmp_path, text, capsys):
    (tmp_path / LOCK).write_text(text)
    with held(tmp_path):
        pass
    assert "\x1b" not in capsys.readouterr().out


def test_a_folder_that_cannot_be_made_is_a_warning(tmp_path, capsys):
    """Checkpoints may lie on a disk that the driver's node does not have."""
    (tmp_path / "file").touch()
    with held(tmp_path / "file" / "ckpt"):
        assert "is not protected against a second training" in capsys.readouterr().out


def test_no_thread_is_left(tmp_path):
    before = threading.active_count()
    with held(tmp_path):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


def test_force_moves_another_runs_checkpoints_aside_unless_it_goes_on_from_them(tmp_path):
    (tmp_path / "ckpt" / "_actor" / "global_step9").mkdir(parents=True)
    with claim(tmp_path / "run", tmp_path / "ckpt", force=True, resume=True):
        assert (tmp_path / "ckpt" / "_actor" / "global_step9").is_dir()
    with claim(tmp_path / "run", tmp_path / "ckpt", force=True, resume=False):
        assert not (tmp_path / "ckpt" / "_actor").exists()
    assert len(list((tmp_path / "ckpt").glob("_actor.*/global_step9"))) == 1


def test_the_lock_of_another_user_is_seen_though_it_cannot_be_taken(tmp_path):
    """In a folder that all may write to. Whether its holder lives is told by the file's time."""
    if os.getuid():
        pytest.skip("only root can be two users")
    with another_process(tmp_path) as holder:
        tmp_path.chmod(0o777)
        for parent in tmp_path.parents:
            if parent.owner() == "root" and str(parent).startswith("/tmp/"):
                parent.chmod(0o755)
        alive = subprocess.run([sys.executable, "-c", LOOK, str(tmp_path)], capture_output=True, text=True)
        assert f"(process {holder.pid}, since" in alive.stdout, alive.stdout + alive.stderr
