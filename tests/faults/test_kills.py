"""A kill at a moment that is not left to chance: in the middle of saving the second checkpoint, with prompts in flight. The
long run, of every kind of process at random moments: bash scripts/faults.sh."""

import subprocess
import sys

import campaign
import pytest
from patience import seconds

from openrlhf_ebpo.files import read_json_lines
from openrlhf_ebpo.seams.stack import is_cpu_stack

pytestmark = [
    pytest.mark.nightly,  # daily: integration/test_train_and_resume.py, integration/test_supervisor.py, unit/test_checkpoint.py
    pytest.mark.timeout(seconds(600)),
]

PLAN = ["policy@saving:2"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    if not is_cpu_stack():
        pytest.skip("its GPUs are logical only")
    folder = tmp_path_factory.mktemp("faults")
    command = [sys.executable, campaign.__file__, "--dir", str(folder), "--modes", "async", "--episodes", "1"]
    done = subprocess.run([*command, "--forked", "--plan", *PLAN], capture_output=True, text=True, timeout=seconds(550))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return read_json_lines(folder / "results.jsonl")


def test_the_kill_ended_the_command_and_it_went_on_when_repeated(rows):
    (kill,) = [row for row in rows if row["event"] == "kill"]
    assert (kill["kind"], kill["outcome"], kill["step"]) == ("policy", "ended", 2)
    assert [row for row in rows if row["event"] in ("failed", "hung", "stuck")] == []


def test_nothing_is_lost(rows):
    *_, end = [row for row in rows if row["event"] == "end"]
    assert end["problems"] == [] and end["steps"] == campaign.workshop.STEPS
