"""Real trainings that lose Ray or hang: each end is said, and nothing is left. test_restarts.py has the daily story."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from openrlhf_ebpo.engines.cluster import address_to_join
from openrlhf_ebpo.run.run_lock import is_alive
from openrlhf_ebpo.run.run_log import LOCK, read_run

HANGS = """
import time
def reward_func(queries, prompts, labels, **kwargs):
    if prompts[0][0] in "ab":
        time.sleep(3600)
    return {"rewards": 0.0}
"""


@pytest.mark.nightly  # daily: unit/test_supervisor.py, integration/test_restarts.py, integration/test_which_ray.py
@pytest.mark.timeout(400)
def test_a_dead_gcs_ends_a_training_in_its_own_ray_and_no_process_joins_that(train, command, tmp_path, monkeypatch):
    run_dir = tmp_path / "model" / "run"
    training = train(command(tmp_path, train__num_episodes=1000), RAY_ADDRESS="local")
    training.wait_for_step(run_dir, 1)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    private = {each: each.name() for each in psutil.Process(training.process.pid).children(recursive=True)}
    gcs = next(process for process, name in private.items() if name == "gcs_server")
    assert any(name.startswith("VLLM::EngineCor") for name in private.values())
    addresses = {word for process, name in private.items() if name == "raylet" for word in words(process.pid)}
    assert addresses and f"--gcs-address={address_to_join()}" not in addresses

    os.kill(gcs.pid, signal.SIGKILL)
    output = training.fail()
    assert f"error: training stopped: Ray's gcs_server (process {gcs.pid}) has died\n" in output
    run = read_run(run_dir)
    assert run["status"] == "failed" and "gcs_server" in run["error"]
    assert [process for process in private if is_alive(process)] == []
    assert (run_dir / LOCK).read_text() == ""


def words(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[1:]


@pytest.mark.nightly  # daily: unit/test_stalls.py, unit/test_supervisor.py
def test_hanging_rewards_are_said_and_a_signal_ends_the_training(train, command, tmp_path):
    run_dir = tmp_path / "model" / "run"
    (tmp_path / "reward.py").write_text(HANGS)
    changes = {"reward__remote_url": tmp_path / "reward.py", "reward__timeout": 3000, "logger__stall_minutes": 0.05}
    training = train(command(tmp_path, data__order="as_is", **changes))
    training.wait_until(
        lambda: " outstanding, since " in ((read_run(run_dir) or {}).get("stalled") or {}).get("what", "")
    )
    stalled = read_run(run_dir)["stalled"]["what"]
    assert "; phase: rewards, 32 of 32 outstanding, since " in stalled and stalled in training.output

    os.kill(training.process.pid, signal.SIGINT)
    training.fail()
    run = read_run(run_dir)
    assert training.process.returncode == 130 and "stalled" not in run
    assert (run["status"], run["error"]) == ("interrupted", "ended by SIGINT")
