"""The end of a training is named, and the processes that it leaves are ended, but none that got their number since."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time

import psutil
import pytest

from openrlhf_ebpo.run import run_lock
from openrlhf_ebpo.run.run_lock import is_alive
from openrlhf_ebpo.run.run_log import LOCK
from openrlhf_ebpo.run.run_settings import RunSettings
from openrlhf_ebpo.train.supervisor import link
from openrlhf_ebpo.train.supervisor.driver_exit import count_killed_for_memory, describe_death, list_session
from openrlhf_ebpo.train.supervisor.link import end_leftovers
from openrlhf_ebpo.train.supervisor.restarts import how_to_continue

NAMES_ITSELF = (
    "import ctypes, time; ctypes.CDLL(None).prctl(15, b') S 1 1 1 (x', 0, 0, 0); print(flush=True); time.sleep(600)"
)


@pytest.fixture
def other():
    """A process that has begun a session."""
    process = subprocess.Popen([sys.executable, "-c", NAMES_ITSELF], stdout=subprocess.PIPE, start_new_session=True)
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def record(run_dir, session, touched: float = 0.0, **changes) -> None:
    """Read the lock of a killed supervisor; it was touched so many seconds ago."""
    holder = {"host": socket.gethostname(), "pid": 4242, "since": "2026-01-01T00:00:00+00:00", "session": session}
    (run_dir / LOCK).write_text(json.dumps({**holder, **changes}))
    os.utime(run_dir / LOCK, times=(time.time() - touched,) * 2)


def test_a_process_is_found_whatever_it_calls_itself_and_until_it_has_ended(other):
    found = psutil.Process(other.pid)
    assert found.name() == ") S 1 1 1 (x" and list_session(other.pid) == [found]
    assert list_session(other.pid, began_before=found.create_time()) == []
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(found) and list_session(other.pid) == [], "a zombie"
    other.wait()
    assert not is_alive(found)


@pytest.mark.parametrize("changes", [{"touched": 3600.0}, {"host": "another"}])
def test_a_number_that_is_anothers_by_now_is_left_alone(tmp_path, other, changes):
    """A session that began after the lock was touched last, or on another machine."""
    record(tmp_path, other.pid, **changes)
    end_leftovers(tmp_path)
    assert other.poll() is None


@pytest.mark.parametrize("session", [None, "x", True, -1, 0, 1, [1]])
def test_a_lock_that_names_no_session_ends_nothing(tmp_path, session, monkeypatch):
    """0 would be all that was started outside of a container."""
    monkeypatch.setattr(link, "end_session", pytest.fail)
    record(tmp_path, session)
    end_leftovers(tmp_path)


def test_a_session_is_not_ended_while_its_supervisor_lives(tmp_path, other):
    with contextlib.ExitStack() as held:
        lock = held.enter_context(run_lock.acquire_lock(tmp_path))
        run_lock.write_holder(lock, session=other.pid)
        with pytest.raises(ValueError, match="in use"):
            end_leftovers(tmp_path)
    assert other.poll() is None


def test_a_death_names_its_signal_and_memory_where_it_may_be_that():
    assert describe_death(-9, 0).endswith(
        "killed by SIGKILL: by another process, or because the machine or its container ran out of memory"
    )
    assert describe_death(-9, 2).endswith(
        "killed by SIGKILL: the machine ran out of memory, and the kernel ended 2 of its processes"
    )
    assert describe_death(-11, 2) == "the driver was killed by SIGSEGV"
    assert describe_death(-99, 0) == "the driver was killed by signal 99"
    assert "status 1 and gave no reason" in describe_death(1, 0)
    assert count_killed_for_memory() >= 0


def test_how_to_continue_names_the_newest_whole_checkpoint(tmp_path):
    none = (False, f"no checkpoint was complete in {tmp_path} (--ckpt.save_steps is 5)")
    assert how_to_continue(RunSettings(tmp_path / "run", tmp_path), 5) == none
