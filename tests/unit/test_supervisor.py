"""The process around a training records how it ended. The training is a stand-in; tests/integration has the real
one."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import psutil
import pytest
from patience import wait_until

from openrlhf_ebpo.command import PAUSED
from openrlhf_ebpo.run import run_lock
from openrlhf_ebpo.run.heartbeat import END_FILE
from openrlhf_ebpo.run.run_lock import check_free, is_alive
from openrlhf_ebpo.run.run_log import LOCK, read_run
from openrlhf_ebpo.train.supervisor.restarts import PAUSE
from openrlhf_ebpo.train.supervisor.watch import ONE_SIGNAL_SECONDS

COMMAND = str(Path(__file__).with_name("supervised_command.py"))
SECONDS = 40


def find(pid: int) -> psutil.Process | None:
    return psutil.Process(pid) if psutil.pid_exists(pid) else None


class Command:
    """A supervised command; `driver` and `left` are what runs below it."""

    def __init__(self, mode: str, folder: Path, *more: str, prefix: tuple[str, ...] = (), python=sys.executable):
        self.mode, self.folder, self.run_dir = mode, folder, folder / "run"
        folder.mkdir(exist_ok=True)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        argv = ["env", "--default-signal=INT,HUP,USR1", *prefix, python, COMMAND, mode, str(folder), *more]
        self.process = subprocess.Popen(argv, **pipes, start_new_session=True)

    def ready(self) -> Command:
        word, pid = self.process.stdout.readline().split()
        assert word == "ready"
        self.driver = find(int(pid))
        self.left = [self.orphan()] if "+orphan" in self.mode else []
        return self

    def orphan(self):
        file = self.folder / "pid"
        wait_until(lambda: file.exists() and file.read_text().endswith("\n"))
        return find(int(file.read_text()))

    def ends(self) -> str:
        """Its exit status and what it said last; nothing of it is left."""
        self.out, self.err = self.process.communicate(timeout=SECONDS)
        self.status = self.process.returncode
        assert not is_alive(self.driver) and not any(is_alive(process) for process in self.left)
        return self.err

    @property
    def run(self) -> dict:
        return read_run(self.run_dir)


@pytest.fixture
def start(tmp_path):
    started = []

    def start(mode: str, *more: str, folder: Path = tmp_path / "x", **how) -> Command:
        started.append(Command(mode, folder, *more, **how))
        return started[-1]

    yield start
    for command in started:
        if command.process.poll() is None:
            command.process.kill()
            command.process.wait()
        if (command.folder / "pid").exists() and (orphan := command.orphan()):
            os.kill(orphan.pid, signal.SIGKILL)
        command.process.stdout.close()
        command.process.stderr.close()


def test_a_training_that_completes_leaves_nothing_and_lets_go(start):
    command = start("completes+orphan").ready()
    assert "ended what the training had left running: 1 process: python" in command.ends()
    assert command.status == 0 and command.run["status"] == "complete" and command.run["error"] is None
    check_free(command.run_dir)
    assert (command.run_dir / LOCK).read_text() == (command.folder / "ckpt" / LOCK).read_text() == ""


def test_the_supervisor_has_the_commands_id_and_is_light(start):
    command = start("waits").ready()
    assert command.driver.ppid() == command.process.pid
    wait_until(lambda: "session" in (command.run_dir / LOCK).read_text())
    maps = Path(f"/proc/{command.process.pid}/maps").read_text()
    assert "psutil" in maps and not any(package in maps for package in ("numpy", "pyarrow", "torch"))
    assert f"(process {command.process.pid}" in refusal(command.run_dir)


def refusal(run_dir: Path) -> str:
    with pytest.raises(ValueError) as error:
        check_free(run_dir)
    return str(error.value)


def test_an_error_of_the_driver_is_its_own_to_say(start):
    command = start("fails").ready()
    assert "error: no more" in command.ends()
    assert command.status == 1 and command.run["status"] == "failed"
    assert command.run["error"] == "ReportedError: no more from http://<redacted>@host"


def test_a_driver_that_is_refused_makes_nothing(start, tmp_path):
    command = start("refused")
    out, err = command.process.communicate(timeout=SECONDS)
    assert (command.process.returncode, out, err) == (1, "", "error: --flag is wrong\n")
    assert not command.run_dir.exists()


def test_a_driver_that_hangs_after_its_error_is_not_called_killed(start):
    command = start("hangs_after_its_error")
    _, err = command.process.communicate(timeout=SECONDS)
    assert (command.process.returncode, err) == (1, "error: Ray did not start\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_driver_is_an_ending_with_its_cause(start, number):
    command = start("waits+orphan").ready()
    os.kill(command.driver.pid, number)
    err = command.ends()
    assert f"error: training stopped: the driver was killed by {number.name}" in err
    assert "no checkpoint was complete in" in err
    assert ("memory" in err) == (number == signal.SIGKILL)
    assert command.status == 1 and command.run["status"] == "failed" and number.name in command.run["error"]


@pytest.mark.parametrize("driver_is_killed", [False, True])
def test_a_dead_ray_is_the_cause_unless_the_driver_was_killed(start, driver_is_killed):
    """Ray's gcs_server dies with the driver that has started it."""
    command = start("starts_ray").ready()
    wait_until(lambda: "session" in (command.run_dir / LOCK).read_text())  # the supervisor knows of the claim
    (gcs,) = command.driver.children()
    cause = f"Ray's gcs_server (process {gcs.pid}) has died"
    if driver_is_killed:
        cause = "the driver was killed by SIGKILL"
        command.process.send_signal(signal.SIGSTOP)  # amid its checks, for all that is known
        command.driver.kill()
        wait_until(lambda: not is_alive(command.driver))
    gcs.kill()
    command.process.send_signal(signal.SIGCONT)
    assert f"training stopped: {cause}" in command.ends() and cause in command.run["error"]
    assert command.status == 1


def test_no_run_is_made_where_the_directory_was_moved_away(start):
    command = start("waits", "0.01", "0.05").ready()
    moved = command.run_dir.rename(command.folder / "moved")
    command.ends()
    assert command.status == 1 and not command.run_dir.exists()
    assert read_run(moved)["status"] == "running"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_the_training_once(start, number):
    """A batch system sends SIGTERM to every process."""
    command = start("waits").ready()
    os.kill(command.process.pid, number)
    if number != signal.SIGINT:
        os.kill(command.driver.pid, signal.SIGTERM)
    command.ends()
    assert command.status == 130 and command.run["status"] == "interrupted"
    assert command.run["error"] == f"ended by {number.name}"


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP])
def test_a_schedulers_signal_lets_the_training_save_and_end(start, restarts, number):
    command = start("saves").ready()
    os.kill(command.process.pid, number)
    os.kill(command.process.pid, number)  # `timeout` signals the process, and its group
    name = number.name
    assert f"{name}: saving after the current step, then ending; phase: generating, 5 responses" in command.ends()
    assert command.status == PAUSED and command.run["status"] == "paused"
    assert command.run["error"] == f"saved step 3 and ended, as {name} asked"
    assert "restarts" not in command.run and not (command.run_dir / END_FILE).exists()


def test_a_terminal_that_is_closed_lets_the_training_save_and_end(tmp_path):
    """Nothing can be printed from then on."""
    terminal, theirs = pty.openpty()
    argv = ["env", "--default-signal=HUP", sys.executable, COMMAND, "saves", str(tmp_path)]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    process = subprocess.Popen(
        argv, start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0), **streams
    )
    os.close(theirs)
    with open(terminal, "rb") as lines:
        assert lines.readline().startswith(b"ready")
    assert process.wait(SECONDS) == PAUSED
    assert read_run(tmp_path / "run")["error"] == "saved step 3 and ended, as SIGHUP asked"


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_training_that_has_not_saved_yet(start, second):
    command = start("waits").ready()
    os.kill(command.process.pid, signal.SIGUSR1)
    wait_until((command.run_dir / END_FILE).exists)
    os.kill(command.process.pid, signal.SIGUSR1)  # once more changes nothing
    time.sleep(ONE_SIGNAL_SECONDS)
    assert is_alive(command.driver)
    os.kill(command.process.pid, second)
    command.ends()
    assert command.status == 130 and command.run["status"] == "interrupted"
    assert not (command.run_dir / END_FILE).exists()


@pytest.mark.parametrize("mode", ["starts", "saves_nothing"])
def test_a_training_that_could_save_nothing_ends_at_once(start, mode):
    command = start(mode).ready()
    os.kill(command.process.pid, signal.SIGUSR1)
    assert "saving after the current step" not in command.ends()
    assert command.status == 130 and command.run["status"] == "interrupted"


def test_the_schedulers_signal_does_not_kill_the_driver(start):
    """Slurm's --signal=USR1 without B: is for every process of the step."""
    command = start("saves").ready()
    os.kill(command.driver.pid, signal.SIGUSR1)
    time.sleep(0.2)
    assert is_alive(command.driver)
    os.kill(command.process.pid, signal.SIGUSR1)
    command.ends()
    assert command.status == PAUSED


def test_nohup_stays(start):
    command = start("waits", prefix=("nohup",)).ready()
    os.kill(command.process.pid, signal.SIGHUP)
    time.sleep(0.5)
    assert is_alive(command.driver)
    os.kill(command.process.pid, signal.SIGINT)
    command.ends()
    assert command.status == 130


def test_a_killed_supervisor_ends_the_driver_and_the_next_command_the_rest(start):
    first = start("waits+orphan").ready()
    wait_until(lambda: f'"session": {first.driver.pid}' in (first.run_dir / LOCK).read_text())
    first.process.kill()
    wait_until(lambda: not is_alive(first.driver))
    assert first.run["status"] == "interrupted" and "the supervisor is gone" in first.run["error"]
    assert is_alive(first.left[0])
    (first.folder / "pid").unlink()
    second = start("completes", folder=first.folder).ready()
    err = second.ends()
    assert f"ended what an earlier training in {first.run_dir} had left running: 1 process: " in err
    assert not is_alive(first.left[0]) and second.run["status"] == "complete"


@pytest.mark.parametrize("mode", ["waits", "fails_then_waits"])
def test_a_driver_that_outlives_its_supervisor_holds_the_lock(start, restarts, monkeypatch, mode):
    """Also one that was started after a failure."""
    command = start(mode).ready()
    if mode == "fails_then_waits":
        command.ready()
    wait_until(lambda: f'"session": {command.driver.pid}' in (command.run_dir / LOCK).read_text())
    command.driver.suspend()
    command.process.kill()
    command.process.wait()
    monkeypatch.setattr(run_lock, "ENDING_SECONDS", 0.1)
    assert "is in use" in refusal(command.run_dir) and "is in use" in refusal(command.folder / "ckpt")
    command.driver.resume()
    wait_until(lambda: not is_alive(command.driver))
    check_free(command.run_dir)


def test_a_training_that_stands_still_says_what_it_waits_for_and_is_ended_at_the_limit(start):
    command = start("waits", "0.01", "0.05").ready()
    wait_until(lambda: "stalled" in (command.run or {}))
    stalled = command.run["stalled"]
    assert (
        stalled["step"] == 3 and "(the last was 3); phase: generating, 5 responses unfinished, since" in stalled["what"]
    )
    err = command.ends()
    assert stalled["what"] in err
    assert "error: training stopped: nothing has changed for 3 s (--train.stall_limit); phase: generating" in err
    assert command.status == 1 and command.run["status"] == "failed" and "stalled" not in command.run


def test_a_driver_that_cannot_be_started_again_is_an_ending(start, restarts):
    command = start("cannot_fork").ready()
    err = command.ends()
    assert "restart 1 of 2" in err and err.endswith("error: [Errno 12] Cannot allocate memory\n")
    assert command.status == 1 and command.run["status"] == "failed"
    assert command.run["error"] == "it could not be started again: [Errno 12] Cannot allocate memory"
    check_free(command.run_dir)


def test_a_closed_stdout_is_no_error(start, tmp_path):
    command = start("completes", prefix=("bash", "-c", 'exec "$@" >&-', "bash"))
    assert (command.process.wait(SECONDS), command.process.stderr.read()) == (0, "")
    assert command.run["status"] == "complete"


def test_a_closed_stderr_is_no_error(start, tmp_path):
    command = start("vanishes", prefix=("bash", "-c", 'exec "$@" 2>&-', "bash"))
    assert command.process.wait(SECONDS) == 1 and "gave no reason" in command.process.stdout.read()
    assert command.run["status"] == "failed" and "gave no reason" in command.run["error"]


def test_what_was_there_before_the_command_is_not_its_to_end(start, tmp_path):
    """A shell that becomes the command, by `exec` or as the entry of a container, leaves it its children: `ray
    start`."""
    shell = ("bash", "-c", f'(sleep 600 & sleep 600) >/dev/null 2>&1 & echo $! > {tmp_path}/shell; exec "$@"', "bash")
    command = start("completes+orphan", prefix=shell).ready()
    earlier = find(int((tmp_path / "shell").read_text()))
    family = [earlier, *earlier.children(recursive=True)]
    try:
        assert earlier.ppid() == command.process.pid and len(family) >= 2
        assert "had left running: 1 process: python" in command.ends()
        assert all(is_alive(process) for process in family)
    finally:
        for process in family:
            os.kill(process.pid, signal.SIGKILL)


def test_a_pipe_without_a_reader_ends_it_as_a_shell_reports(start):
    command = start("talks").ready()
    command.process.stdout.close()
    command.process.wait(SECONDS)
    assert command.process.returncode == 141 and not is_alive(command.driver)


def test_a_driver_that_does_not_end_is_killed(start, tmp_path):
    command = start("waits").ready()
    os.kill(command.driver.pid, signal.SIGSTOP)
    os.kill(command.process.pid, signal.SIGINT)
    os.kill(command.driver.pid, signal.SIGKILL)  # as the supervisor does after END_SECONDS
    command.ends()
    assert command.status == 130
    assert json.loads((command.run_dir / "run.json").read_text())["error"] == "ended by SIGINT"


@pytest.fixture
def restarts(monkeypatch):
    monkeypatch.setenv("MAX_RESTARTS", "2")
    monkeypatch.setenv(PAUSE, "0.1")


def test_an_unexplained_failure_is_restarted(start, restarts):
    command = start("fails_once").ready()
    assert "restart 1 of 2 (--train.max_restarts) in 0 s, from step 0" in command.ends()
    (restart,) = command.run["restarts"]
    assert command.status == 0 and command.run["status"] == "complete" and command.run["error"] is None
    assert restart["cause"] == "ReportedError: no more from http://<redacted>@host" and restart["from"] is None
    assert len(command.run["resumed"]) == 1


def test_a_request_to_end_outlives_a_restart(start, restarts):
    command = start("asked_to_end").ready()
    assert "restart 1 of 2" in command.ends() and command.status == PAUSED
    assert command.run["error"] == f"saved step 3 and ended, as the file {END_FILE} asked"


def test_there_are_at_most_max_restarts_restarts(start, restarts):
    command = start("fails").ready()
    err = command.ends()
    assert [f"restart {number} of 2" in err for number in (1, 2, 3)] == [True, True, False]
    assert command.status == 1 and command.run["status"] == "failed" and len(command.run["restarts"]) == 2


def test_a_mistake_that_a_restart_finds_is_not_repeated(start, restarts):
    command = start("refused_later").ready()
    err = command.ends()
    assert err.count("restart 1 of 2") == err.count("error: --flag is wrong") == 1 and "restart 2" not in err
    assert "error: training stopped: it could not be started again, for the reason above\nno checkpoint was" in err
    assert (command.status, command.run["status"], command.run["error"]) == (1, "failed", "--flag is wrong")


def test_a_restart_that_comes_too_early_is_repeated(start, restarts):
    command = start("starts_late").ready()
    err = command.ends()
    assert "restart 1 of 2" in err and "Ray did not start" in err and "restart 2 of 2" in err
    assert command.status == 0 and command.run["status"] == "complete"


def test_a_signal_ends_the_pause_before_a_restart(start, restarts, monkeypatch):
    monkeypatch.setenv(PAUSE, "300")
    command = start("fails").ready()
    wait_until(lambda: command.run.get("restarts"))
    command.process.terminate()
    command.ends()
    assert command.status == 130 and command.run["status"] == "interrupted"
