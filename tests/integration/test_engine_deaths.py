"""A step that is not finite, and engines that are killed, on the real stack: the run ends with the cause and
resumes."""

import json
from pathlib import Path

import psutil
import pytest
from forked_engines import FORKED
from patience import seconds

from openrlhf_ebpo.run.heartbeat import REWARDS, read_beat
from openrlhf_ebpo.run.resume import newest_complete
from openrlhf_ebpo.run.run_log import read_metrics, read_run
from openrlhf_ebpo.train.supervisor.restarts import PAUSE

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


def held_core(letter: str, stage: Path, training, engine_cores) -> psutil.Process:
    """An engine's core, while the rewards of that letter are held."""
    training.wait_until((stage / f"held_{letter}").exists)
    return training.wait_until(engine_cores)[0]


def wait_for_the_end(number: int, letter: str, stage: Path, training) -> None:
    """Let the rewards go when so many drivers have ended."""
    training.wait_until(lambda: training.output.count("error: training stopped: ") == number, 60)
    (stage / f"hold_{letter}").unlink(missing_ok=True)


def check_run(run_dir: Path, training, *causes: str, age: int = 0) -> None:
    """It has resumed from a checkpoint after each cause, which run.json and the screen say in the same line.

    age: how many steps old the rollouts may be.
    """
    output = training.succeed()
    run, rows = read_run(run_dir), read_metrics(run_dir)
    assert run["status"] == "complete" and [row["step"] for row in rows] == [1, 2, 3, 4]
    for restart, cause in zip(run["restarts"], causes, strict=True):
        assert cause in restart["cause"] and restart["from"].startswith("global_step")
        assert f"error: training stopped: {restart['cause']}\n" in output
    assert all(row["rollout/num_samples"] == 48 for row in rows), "no response of a batch is lost or there twice"
    moves = [0.0, *(age * row["policy/kl_per_step"] for row in rows)]
    assert all(abs(row["vllm_kl"]) < 0.05 + moved for row, moved in zip(rows, moves, strict=False)), (
        "new engines generate with the policy's weights"
    )


@pytest.mark.nightly  # daily: contract/test_health.py, unit/test_engine_deaths.py
def test_a_huge_reward_and_an_engine_that_dies_in_a_weight_sync_end_the_run(train, command, stage, engine_cores):
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
    assert report["step"] == 2 and report["ranks"][0]["measured"] and (folder / "rollouts.parquet").is_file()
    assert newest_complete([checkpoints / "_actor"]).tag == "global_step1"
    assert [row["step"] for row in read_metrics(run_dir)] == [1] and read_run(run_dir)["status"] == "failed"

    (stage / "huge_b").unlink()
    (stage / "hold_b").touch()
    resumed = [*argv, "--ckpt.load_enable", "--vllm.num_engines", "2", "--train.max_restarts", "1"]
    training = train(resumed, **SPAWN, **{PAUSE: "0.5"})
    core = held_core("b", stage, training, engine_cores)
    training.wait_until(lambda: (beat := read_beat(run_dir)) and beat.phase == REWARDS)  # all has been generated
    core.suspend()  # vLLM then waits for it, and does not end this wait when it dies
    (stage / "hold_b").unlink()
    training.wait_until(lambda: (beat := read_beat(run_dir)) and beat.phase == "syncing weights")
    core.kill()
    wait_for_the_end(1, "b", stage, training)
    check_run(run_dir, training, "its EngineCore was ended by SIGKILL: mostly the machine")
    assert read_metrics(run_dir)[-1]["policy/kl_per_step"] > 0.001, "the weights have moved by then"


@pytest.mark.nightly  # daily: unit/test_engine_deaths.py; integration/test_eval.py loses an engine
def test_in_async_training_the_death_of_an_engine_or_of_its_actor_ends_the_run_too(train, command, stage, engine_cores):
    changes = {**STEP, **WATCHED, "reward__remote_url": stage / "reward.py", "data__max_samples": 48}
    argv = command(stage, **changes, train__async_enable=True, train__max_restarts=1)
    for letter in "cd":  # the trainer waits with the weights of the step before
        (stage / f"hold_{letter}").touch()
    training = train(argv, **SPAWN, **{PAUSE: "0.5"})
    core = held_core("c", stage, training, engine_cores)
    training.wait_for_step(stage / "model" / "run", 1)
    core.kill()
    wait_for_the_end(1, "c", stage, training)
    core = held_core("d", stage, training, engine_cores)
    training.wait_for_step(stage / "model" / "run", 2)
    core.parent().kill()
    core.wait(seconds(20))  # in a cluster that was joined nothing else ends it
    wait_for_the_end(2, "d", stage, training)
    check_run(
        stage / "model" / "run",
        training,
        "rollout engine 0 has died: its EngineCore was ended by SIGKILL",
        "rollout engine 0 has died: The actor died unexpectedly",
        age=1,
    )
