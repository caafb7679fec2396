"""A process is known by more than its number, which is given to others when it is gone."""

import json
import os
import subprocess
import sys

import psutil
import pytest

from openrlhf_ebpo.record import processes
from openrlhf_ebpo.record.processes import began, is_alive, outlives_training, read_processes, write_processes
from openrlhf_ebpo.supervisor.claims import end_leftovers
from openrlhf_ebpo.supervisor.ends import list_descendants

NAMES_ITSELF = (
    "import ctypes, time; ctypes.CDLL(None).prctl(15, b') S 1 1 1 (x', 0, 0, 0); print(flush=True); time.sleep(600)"
)


@pytest.fixture
def other():
    process = subprocess.Popen([sys.executable, "-c", NAMES_ITSELF], stdout=subprocess.PIPE)
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_process_is_found_whatever_it_calls_itself(other):
    found = psutil.Process(other.pid)
    assert found.name() == ") S 1 1 1 (x" and is_alive(found)
    assert found in list_descendants(began(other.pid)) and found not in list_descendants(began(other.pid) + 1)
    other.kill()
    other.wait()
    assert not is_alive(found) and began(other.pid) is None


def test_a_zombie_is_not_alive(other):
    found = psutil.Process(other.pid)
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert began(other.pid) and not is_alive(found)


def test_what_is_recorded_is_ended_by_the_next_command(tmp_path, other):
    write_processes(tmp_path, [psutil.Process(other.pid)])
    said = []
    end_leftovers(tmp_path, said.append)
    assert other.wait(5) < 0
    assert str(other.pid) in said[0] and str(tmp_path) in said[0]
    end_leftovers(tmp_path, said.append)
    assert len(said) == 1


@pytest.mark.parametrize("change", ["began", "boot", "ids"])
def test_a_number_that_is_anothers_by_now_is_left_alone(tmp_path, other, change):
    write_processes(tmp_path, [psutil.Process(other.pid)])
    path = tmp_path / processes.FILE
    found = json.loads(path.read_text())
    if change == "began":
        found["processes"][0]["began"] -= 1
    else:
        found[change] = "another"
    path.write_text(json.dumps(found))
    end_leftovers(tmp_path, pytest.fail)
    assert other.poll() is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"processes": 3}', "[" * 9999])
def test_a_damaged_record_names_nobody(tmp_path, text):
    (tmp_path / processes.FILE).write_text(text)
    assert read_processes(tmp_path) == []


@pytest.mark.parametrize(
    "row", [{"pid": -1, "began": 0, "name": ""}, {"pid": 1, "began": 0, "name": ""}, {"pid": "x"}, 3]
)
def test_a_record_that_was_tampered_with_ends_no_group_and_not_init(tmp_path, row):
    write_processes(tmp_path, [])
    found = json.loads((tmp_path / processes.FILE).read_text())
    (tmp_path / processes.FILE).write_text(json.dumps({**found, "processes": [row]}))
    assert read_processes(tmp_path) == []


def test_one_that_is_to_outlive_the_training_says_so():
    environment = {**os.environ, processes.OUTLIVES: "1"}
    with subprocess.Popen([sys.executable, "-c", NAMES_ITSELF], stdout=subprocess.PIPE, env=environment) as process:
        process.stdout.readline()
        assert outlives_training(psutil.Process(process.pid))
        process.kill()
    assert not outlives_training(psutil.Process(os.getpid()))
