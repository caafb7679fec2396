"""A step that is not finite, and engines that are killed, on the real stack: nothing saved is lost, and the run goes on."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from forked_engines import FORKED

from openrlhf_ebpo.record.heartbeat import read_beat
from openrlhf_ebpo.record.resume import newest_whole
from openrlhf_ebpo.record.run_log import read_metrics, read_run

REWARD = """
import time
from pathlib import Path
import torch
HERE = Path(__file__).parent

def reward_func(queries, prompts, labels, **kwargs):
    letter = prompts[0][0]
    while (HERE / f"hold_{letter}").exists():
        (HERE / f"held_{letter}").touch()
        time.sleep(0.05)
    huge = (HERE / f"huge_{letter}").exists()
    rewards = [3e38 if huge else float(sum(map(ord, q[len(p):])) % 3 == 0) for q, p in zip(queries, prompts)]
    return {"rewards": torch.tensor(rewards), "scores": torch.tensor(rewards)}
"""
STEP = {
    "rollout__batch_size": 12,
    "train__batch_size": 48,
    "data__order": "as_is",
    "ckpt__save_steps": 1,
}  # a letter a step
WATCHED = {  # OpenRLHF then logs how far the engines' log-probabilities are from the policy's
    "algo__advantage__is_correction_level": "token",
    "algo__advantage__is_correction_mode": "clip",
}
SPAWN = {FORKED: ""}  # engines are found by their name and environment, as the product finds them


@pytest.fixture
def stage(tmp_path) -> Path:
    """Folder with a reward that a file can hold, or make huge, for all prompts of a letter."""
    (tmp_path / "reward.py").write_text(REWARD)
    return tmp_path


def wait_until(happened, training, seconds: int = 240):
    deadline = time.time() + seconds
    while not (found := happened()):
        assert training.process.poll() is None, training.output[-6000:]
        assert time.time() < deadline, training.output[-4000:]
        time.sleep(0.1)
    return found


def engine_cores(cluster) -> list[psutil.Process]:
    """Those of this cluster alone, told by the address with which they were started: others may be on this machine."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "EngineCore" in process.name() and process.environ().get("RAY_ADDRESS") == cluster.address:
                found.append(process)
    return found


def kill_while_held(letter: str, which: str, stage: Path, training, cluster) -> None:
    """Kill an engine's core, or the actor around it, while the rewards of that letter are held; let them go when the death
    was noticed."""
    wait_until((stage / f"held_{letter}").exists, training)
    said = training.output.count("it is started again")
    core = wait_until(lambda: engine_cores(cluster), training)[0]
    (core if which == "core" else core.parent()).kill()
    wait_until(lambda: training.output.count("it is started again") > said, training, seconds=50)
    (stage / f"hold_{letter}").unlink()


def wait_for_trainer_at_lock(step: int, training, stage: Path) -> None:
    """Where the trainer has learned what comes after that step, and cannot send weights while responses are generated."""
    wait_until(
        lambda: (beat := read_beat(stage / "model" / "run")) and (beat.step, beat.phase) == (step, "syncing weights"),
        training,
    )


def test_a_huge_reward_stops_before_anything_is_saved_and_a_resumed_run_outlives_its_engines(
    train, command, stage, cluster
):
    changes = {
        **STEP,
        **WATCHED,
        "reward__remote_url": stage / "reward.py",
        "data__max_samples": 48,
        "advantage_estimator": "rloo",
    }
    argv = command(stage, **changes, reward__clip_range=["-3" + "0" * 38, "3e38"])
    run_dir, checkpoints = stage / "model" / "run", stage / "ckpt"
    (stage / "huge_b").touch()

    output = train(argv).fail()
    folder = run_dir / "failed_step-000002"
    assert all(words in output for words in ("step 2: the step is not healthy: policy", "policy_loss is", str(folder)))
    assert "global_step1 is complete: repeat the command with --ckpt.load_enable" in output
    report = json.loads((folder / "report.json").read_text())
    assert report["step"] == 2 and report["ranks"][0]["samples"] and (folder / "rollouts.parquet").is_file()
    assert newest_whole([checkpoints / "_actor"]).tag == "global_step1"
    assert [row["step"] for row in read_metrics(run_dir)] == [1] and read_run(run_dir)["status"] == "failed"

    (stage / "huge_b").unlink()
    for letter in "bc":
        (stage / f"hold_{letter}").touch()
    training = train([*argv, "--ckpt.load_enable", "--vllm.num_engines", "2"], **SPAWN)
    kill_while_held("b", "core", stage, training, cluster)
    kill_while_held("c", "actor", stage, training, cluster)
    output = training.succeed()
    assert "its EngineCore was ended by SIGKILL" in output
    rows = read_metrics(run_dir)
    assert [(row["step"], row.get("engine/restarts")) for row in rows[1:]] == [(2, 1), (3, 2), (4, 2)]
    assert all(row["rollout/num_samples"] == 48 for row in rows), "no response of a batch is lost or there twice"
    assert all(abs(row["vllm_kl"]) < 0.05 for row in rows), "new engines generate with the policy's weights"
    assert rows[-1]["policy/kl_per_step"] > 0.001, "which have moved by then"


def test_in_async_training_too_and_one_death_too_many_ends_the_run_with_words(train, command, stage, cluster):
    changes = {**STEP, **WATCHED, "reward__remote_url": stage / "reward.py", "data__max_samples": 48}
    argv = command(stage, **changes, train__async_enable=True, vllm__max_restarts=1)
    for letter in "bd":
        (stage / f"hold_{letter}").touch()
    training = train(argv, **SPAWN)
    wait_for_trainer_at_lock(0, training, stage)
    kill_while_held("b", "core", stage, training, cluster)
    wait_for_trainer_at_lock(2, training, stage)
    wait_until((stage / "held_d").exists, training)
    engine_cores(cluster)[0].kill()
    output = training.fail()
    assert "rollout engine 0 has died, and 2 engines have died in this run: " in output
    assert "its EngineCore was ended by SIGKILL" in output and "--vllm.max_restarts 1 is the limit" in output
    assert "is complete: repeat the command with --ckpt.load_enable" in output
    rows = read_metrics(stage / "model" / "run")
    assert rows[1]["engine/restarts"] == 1 and all(abs(row["vllm_kl"]) < 0.05 for row in rows)


def test_an_engine_that_dies_before_it_has_joined_is_told_of_and_not_waited_for(cluster):
    """With engines that never come; killing real ones at that moment is luck."""
    command = [sys.executable, str(Path(__file__).with_name("joining_engines.py")), cluster.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    said = done.stdout.splitlines()
    assert done.returncode == 0 and said[:2] == ["joined", "raised broken"], done.stderr[-3000:]
    died = "stopped rollout engine 1 died while the group was made in which weights travel: "
    assert any(line.startswith(died) for line in said[2:]), said
