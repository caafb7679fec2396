"""Real trainings, killed in their parts: each end is said, and nothing is left."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from openrlhf_ebpo.generation.cluster import address_to_join
from openrlhf_ebpo.run.heartbeat import read_beat
from openrlhf_ebpo.run.run_log import LOCK, read_metrics, read_run
from openrlhf_ebpo.supervisor.ends import is_alive
from openrlhf_ebpo.supervisor.restarts import PAUSE

HANGS = """
import time
def reward_func(queries, prompts, labels, **kwargs):
    if prompts[0][0] in "ab":
        time.sleep(3600)
    return {"rewards": 0.0}
"""


def wait_until(condition, training, seconds: float = 150) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert training.process.poll() is None and time.monotonic() < until, training.output[-5000:]
        time.sleep(0.1)


def driver_of(training) -> int:
    """The supervisor has the command's process id; the driver is its child."""
    return psutil.Process(training.process.pid).children()[0].pid


@pytest.fixture(scope="module")
def restarted(train, command, tmp_path_factory):
    """The driver is killed (SIGKILL) after step 2; every step is saved, and one restart is allowed."""
    output = tmp_path_factory.mktemp("restarted")
    run_dir = output / "model" / "run"
    argv = command(output, ckpt__save_steps=1, train__max_restarts=1, data__max_samples=48, force=True)
    training = train(argv, **{PAUSE: "0.5"})
    training.wait_for_step(run_dir, 2)
    os.kill(driver_of(training), signal.SIGKILL)
    wait_until(lambda: read_run(run_dir).get("restarts"), training)
    first = read_run(run_dir)
    training.succeed()
    return SimpleNamespace(**locals())


def test_a_killed_driver_is_restarted_from_the_newest_checkpoint_and_completes(restarted):
    (restart,) = read_run(restarted.run_dir)["restarts"]
    assert "the driver was killed by SIGKILL" in restart["cause"] and restart["from"].startswith("global_step")
    said = restarted.training.output
    assert "error: training stopped: the driver was killed by SIGKILL" in said
    assert f"restart 1 of 1 (--train.max_restarts) in 0 s, from {restart['from']}" in said
    assert f"resuming from {restart['from']} of" in said


def test_the_restarted_run_is_one_run_without_a_gap(restarted):
    run = read_run(restarted.run_dir)
    assert restarted.first["status"] == "running" and run["status"] == "complete" and len(run["resumed"]) == 1
    assert [row["step"] for row in read_metrics(restarted.run_dir)] == [1, 2, 3, 4, 5, 6]
    assert len(list(restarted.run_dir.parent.glob("run*"))) == 1  # --force was for the first start
    assert read_beat(restarted.run_dir).step >= 5  # a thread writes it; the last one may go with its process


@pytest.mark.nightly  # daily: unit/test_supervisor.py, integration/test_which_ray.py
@pytest.mark.timeout(400)
def test_a_dead_gcs_ends_a_training_in_its_own_ray_and_nobody_joins_that(train, command, tmp_path, monkeypatch):
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
    wait_until(
        lambda: " outstanding, since " in ((read_run_json(run_dir).get("stalled") or {}).get("what", "")), training
    )
    stalled = read_run(run_dir)["stalled"]["what"]
    assert "; phase: rewards, 32 of 32 outstanding, since " in stalled and stalled in training.output

    os.kill(training.process.pid, signal.SIGINT)
    training.fail()
    run = read_run(run_dir)
    assert training.process.returncode == 130 and "stalled" not in run
    assert (run["status"], run["error"]) == ("interrupted", "ended by SIGINT")


def read_run_json(run_dir: Path) -> dict:
    return read_run(run_dir) or {}
