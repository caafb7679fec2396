"""Train, checkpoint, kill, resume: nothing is lost, and the prior is what the logged rewards say, to the last bit."""

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from estimates import ebpo_step

from openrlhf_ebpo.cli import main
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.ebpo import EBPO
from openrlhf_ebpo.estimator.prior import Prior
from openrlhf_ebpo.estimator.stored import pack
from openrlhf_ebpo.run import manifest
from openrlhf_ebpo.run.catalogue import NOT_METRICS, find
from openrlhf_ebpo.run.run_log import read_metrics, read_rollouts, read_run
from openrlhf_ebpo.upstream.check import installed_release
from openrlhf_ebpo.upstream.controller.rollouts import prompt_id
from openrlhf_ebpo.upstream.install import all_seams

CONFIG = EstimatorConfig(n_samples_per_prompt=4)
WANDB_KEY = "0123456789abcdef0123456789abcdef01234567"


# as the workshop's, but what the first run asks after steps 1 to 3 and the evaluation at 2 is never answered: its
# trainer outlives a killed command for a moment. It counts, since what the run has written lags behind what it does.
BEFORE_STEP_4 = 3 * 8 * 4 + 48 * 4
HELD = """
import os, time
unheld, of_the_second_run = reward_func, os.path.exists({killed!r})
def reward_func(queries, *args, **kwargs):
    if not os.path.exists({run_json!r}):  # the check of the reward before the start
        return unheld(queries, *args, **kwargs)
    with open({asked!r}, "ab") as file:
        file.write(b"." * len(queries))
    if os.path.getsize({asked!r}) > {most} and not of_the_second_run:
        time.sleep(600)
    return unheld(queries, *args, **kwargs)
"""


@pytest.fixture(scope="module")
def story(train, command, method_flags, curriculum, workshop, tmp_path_factory):
    """EBPO with topics, which saves and evaluates every second step, is killed (SIGKILL) after step 3 and resumed to
    step 6."""
    output = tmp_path_factory.mktemp("killed_and_resumed")
    run_dir, killed = output / "model" / "run", output / "killed"
    paths = {"asked": str(output / "asked"), "killed": str(killed), "run_json": str(run_dir / "run.json")}
    held = HELD.format(most=BEFORE_STEP_4, **paths)
    (output / "reward.py").write_text((workshop / "reward.py").read_text() + held)
    argv = command(
        output,
        reward__remote_url=output / "reward.py",
        data__prompt_dataset=curriculum,
        data__max_samples=48,
        ckpt__save_steps=2,
        ckpt__max_num=2,
        ckpt__save_hf=True,
        ckpt__load_enable=True,
        eval__dataset=workshop / "prompts.jsonl",
        eval__steps=2,
        eval__n_samples_per_prompt=4,
        ckpt__best_metric_key="none",
        logger__tensorboard_dir=output / "tensorboard",
        logger__wandb__key=WANDB_KEY,
    )
    argv += method_flags("ebpo", "--order", "topic")
    first = train(argv)
    first.wait_for_step(run_dir, 3)
    os.killpg(first.process.pid, signal.SIGKILL)
    first.process.wait()
    killed.touch()
    logged_before = read_metrics(run_dir)
    second = train(argv)
    second.succeed()
    return SimpleNamespace(
        output=output, run_dir=run_dir, logged_before=logged_before, texts=[first.output, second.output]
    )


def prior_from_logged_rewards(run_dir: Path, steps: int) -> Prior:
    prior = Prior()
    for step in range(1, steps + 1):
        table = read_rollouts(run_dir, step)
        rewards = torch.tensor(table["reward"].to_pylist()).reshape(-1, 4)
        valid = torch.tensor(table["valid"].to_pylist()).reshape(-1, 4)
        prior = ebpo_step(rewards, valid, prior, CONFIG).state
    return prior


def test_the_prior_after_a_restart_is_the_one_of_the_logged_rewards_to_the_last_bit(story):
    expected = pack(EBPO(CONFIG), prior_from_logged_rewards(story.run_dir, 6))
    assert json.loads((story.run_dir / "prior.json").read_text()) == expected
    assert expected["batches"] == 6 and expected["rewards"]["count"] == 6 * 32


def test_a_replay_of_the_rollouts_gives_the_same_advantages_to_the_last_bit(story, capsys):
    main(["replay", str(story.run_dir)])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("bit for bit: 6 steps, 192 responses")


def test_the_prior_lies_beside_every_checkpoint_and_export(story):
    for step in (4, 6):
        expected = pack(EBPO(CONFIG), prior_from_logged_rewards(story.run_dir, step))
        checkpoint = story.output / "ckpt" / "_actor" / f"global_step{step}"
        states = torch.load(checkpoint / "mp_rank_00_model_states.pt", weights_only=False)
        assert states["ebpo_prior"] == expected
        assert json.loads((checkpoint / "prior.json").read_text()) == expected
        assert json.loads((story.output / "ckpt" / f"global_step{step}_hf" / "prior.json").read_text()) == expected
    final = pack(EBPO(CONFIG), prior_from_logged_rewards(story.run_dir, 6))
    assert json.loads((story.output / "model" / "prior.json").read_text()) == final


def test_two_checkpoints_are_left_and_latest_names_the_last(story):
    actor = story.output / "ckpt" / "_actor"
    assert sorted(p.name for p in actor.iterdir() if p.is_dir()) == ["global_step4", "global_step6"]
    assert (actor / "latest").read_text() == "global_step6"
    saved = manifest.read(actor / "global_step6")
    assert saved.data["rows"] == 48 and saved.run == read_run(story.run_dir)["id"]


def test_steps_after_the_checkpoint_moved_to_superseded(story):
    assert story.logged_before[-1]["step"] >= 3
    aside = sorted((story.run_dir / "superseded").iterdir())
    moved = [json.loads(line) for line in (aside[-1] / "metrics.jsonl").read_text().splitlines()]
    resumed_from = moved[0]["step"] - 1
    assert resumed_from in (2, 4)
    assert [row["step"] for row in read_metrics(story.run_dir)] == [1, 2, 3, 4, 5, 6]
    kept = {row["step"]: row["time"] for row in read_metrics(story.run_dir)}
    before = {row["step"]: row["time"] for row in story.logged_before}
    assert all(kept[step] == before[step] for step in range(1, min(resumed_from, 3) + 1))
    assert kept[moved[0]["step"]] > moved[0]["time"]


def test_metrics_say_what_the_dynamics_are(story):
    rows = read_metrics(story.run_dir)
    for name in (
        "rollout/reward_mean",
        "actor_grad_norm",
        "ppo_kl",
        "ebpo/shrinkage",
        "ebpo/prior_mean",
        "ebpo/within_variance",
        "ebpo/between_variance",
        "ebpo/prior_count",
        "ebpo/all_fail_fraction",
        "ebpo/all_pass_fraction",
        "ebpo/rescued_fraction",
        "ebpo/reward_error_fraction",
        "ebpo/zero_advantage",
        "policy/entropy",
        "policy/kl_per_step",
        "timing/run_log",
        *("mismatch/k3_kl", "mismatch/chi2_token", "mismatch/ess", "mismatch/ess_sequence", "mismatch/largest_ratio"),
    ):
        assert all(isinstance(row.get(name), (int, float)) for row in rows), name
    unknown = {name for row in rows for name in row if name not in NOT_METRICS and not find(name)}
    assert unknown == {"length"}  # the reward function's
    assert all(0 < row["ebpo/all_fail_fraction"] < 1 for row in rows)
    assert all(0 < row["policy/entropy"] < 4 for row in rows)
    assert all(row["mismatch/k3_kl"] < 1e-3 and row["mismatch/stale"] == 0 for row in rows), "also after the resume"
    assert rows[-1]["policy/kl_per_step"] > 0
    assert [row["ebpo/prior_count"] for row in rows] == [32 * step for step in range(1, 7)]


def test_rollouts_tell_what_every_answer_got_and_what_grpo_would_have_given(story):
    rows = read_rollouts(story.run_dir, 6).to_pylist()
    assert len(rows) == 32 and all(row["valid"] and row["error"] is None for row in rows)
    failed = [row for row in rows if row["group_mean"] == 0]
    assert failed and all(row["grpo_advantage"] == 0 and row["advantage"] != 0 for row in failed)
    assert all(row["raw_reward"] == row["reward"] for row in rows)
    assert all(row["response"] and row["prompt"] not in row["response"] for row in rows)
    assert len({row["prompt_id"] for row in rows}) == 8
    metrics = read_metrics(story.run_dir)[-1]
    assert sum(row["reward"] for row in rows) / 32 == pytest.approx(metrics["rollout/reward_mean"])


def test_rows_are_trained_one_after_the_other_also_over_a_kill_and_each_rollout_knows_its_cluster(story, curriculum):
    rows = [json.loads(line) for line in curriculum.read_text().splitlines()]
    for step in range(1, 7):
        wanted = {prompt_id(row["prompt"], row["label"]): row["cluster"] for row in rows[(step - 1) * 8 : step * 8]}
        table = read_rollouts(story.run_dir, step)
        assert dict(zip(table["prompt_id"].to_pylist(), table["cluster"].to_pylist(), strict=True)) == wanted


def test_every_evaluation_is_in_the_log_once_with_openrlhfs_metrics(story):
    logged = [row for row in read_metrics(story.run_dir) if "eval_num_samples" in row]
    assert [row["step"] for row in logged] == [2, 4, 6]
    for row in logged:
        assert 0 <= row["eval_letters_pass1"] <= row["eval_letters_pass4"] <= 1 and row["eval_num_samples"] == 192
    assert not (story.run_dir / "eval").exists()


def test_run_json_knows_the_run_and_no_secret_is_anywhere(story):
    run = read_run(story.run_dir)
    assert run["status"] == "complete" and run["ended"] and len(run["resumed"]) == 1
    assert run["args"]["algo"]["advantage"]["estimator"] == "ebpo"
    assert run["versions"]["openrlhf"] == installed_release()
    assert run["seams"] == [seam.label for seam in all_seams()]
    line = f"OpenRLHF {installed_release()}: {len(run['seams'])} replacements, in this process and in every Ray worker"
    assert [text.count(line) for text in story.texts] == [1, 1]
    for text in (json.dumps(run), *story.texts):
        assert WANDB_KEY not in text
    assert "<redacted>" in json.dumps(run["argv"])


def test_tensorboard_and_wandb_get_the_metrics(story):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = next(iter((story.output / "tensorboard").iterdir()))
    events = EventAccumulator(str(folder))
    events.Reload()
    assert {"train/ebpo/shrinkage", "train/policy/entropy", "eval/eval_letters_pass4"} <= set(events.Tags()["scalars"])
    assert "offline" in story.texts[1]


def test_checkpoints_are_listed_when_they_are_complete(story):
    rows = [json.loads(line) for line in (story.run_dir / "checkpoints.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [2, 4, 6]
    assert Path(rows[-1]["checkpoint"]).is_dir() and Path(rows[-1]["model"], "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rollout__n_samples_per_prompt": 8}, "n_samples_per_prompt was 4 and is now 8"),
        ({"algo__advantage__ebpo__pass_reward": 2}, "pass_reward was 1.0 and is now 2.0"),
    ],
)
def test_resuming_with_another_estimator_says_what_differs(story, command, run_in_process, changes, expected):
    argv = command(story.output, ckpt__load_enable=True, **changes)
    error = run_in_process(argv)
    assert expected in error and "--algo.advantage.ebpo.reset_prior" in error
