"""Ways to launch: several ranks, several nodes, other ZeRO stages, async, `ray job submit`, a cluster of its own."""

import itertools
import json
import os
import signal

import psutil
import pytest
from patience import seconds

from openrlhf_ebpo.cli import main
from openrlhf_ebpo.run.catalogue import NOT_METRICS, find
from openrlhf_ebpo.run.run_log import read_metrics, read_rollouts, read_run

FAILING_REWARD = """
import torch
def reward_func(queries, prompts, labels, **kwargs):
    text = queries[0][len(prompts[0]):]
    number = sum(map(ord, text))
    kind = number % 9
    if kind == 0: raise ValueError("no grade for " + text[:3])
    if kind == 1: return {"rewards": None}
    if kind == 2: return {"rewards": float("nan"), "scores": 0.0}
    if kind == 3: return {"rewards": torch.tensor([1.0, 0.0])}
    reward = torch.tensor([float(number % 2)])
    return {"rewards": reward, "scores": reward, "extra_logs": {"kind": float(kind)}}
"""


def test_two_ranks_on_two_nodes_train_on_every_response_of_unequal_micro_batches(train, command, tmp_path, workshop):
    """ZeRO 2, KL and failing rewards. 32, 32 and 24 responses in micro-batches of 5 would be 7, 7 and 5 of them, and a
    rank with one less would wait for the other forever."""
    reward = tmp_path / "failing_reward.py"
    reward.write_text(FAILING_REWARD)
    argv = command(
        tmp_path,
        actor__model_name_or_path=workshop / "untied",
        actor__num_nodes=2,
        ref__num_nodes=1,
        algo__kl__init_coef=0.01,
        ds__zero_stage=2,
        reward__remote_url=reward,
        data__max_samples=22,
        train__batch_size=8,
        train__micro_batch_size=2,
        rollout__micro_batch_size=5,
        ckpt__save_steps=3,
    )
    output = train(argv).succeed()
    run_dir = tmp_path / "model" / "run"
    steps = [read_rollouts(run_dir, step).to_pylist() for step in (1, 2, 3)]
    assert [len(rows) for rows in steps] == [32, 32, 24]
    rows = list(itertools.chain(*steps))
    failed = [row for row in rows if row["error"]]
    assert 10 < len(failed) < 80
    assert all(not row["valid"] and row["reward"] is None and row["advantage"] == 0 for row in failed)
    assert {kind for row in failed for kind in ("no grade", "None", "nan", "2 values") if kind in row["error"]} == {
        "no grade",
        "None",
        "nan",
        "2 values",
    }
    metrics = read_metrics(run_dir)
    errors = [sum(bool(row["error"]) for row in rows) / len(rows) for rows in steps]
    assert [row["ebpo/reward_error_fraction"] for row in metrics] == pytest.approx(errors)
    assert all(
        row["actor_grad_norm"] > 0 and row["kl"] is not None and row["policy_loss"] is not None for row in metrics
    )
    assert "a reward failed" in output
    assert (tmp_path / "ckpt" / "_actor" / "global_step3" / "prior.json").is_file()


# daily: contract/test_resuming.py, contract/test_loss_mean.py (ZeRO 3, dynamic), contract/test_reward_errors.py
@pytest.mark.nightly
def test_two_ranks_train_with_zero_3_dynamic_batches_evaluation_and_failing_rewards(
    train, command, tmp_path, workshop, capsys
):
    reward = tmp_path / "failing_reward.py"
    reward.write_text(FAILING_REWARD)
    argv = command(
        tmp_path,
        actor__num_gpus_per_node=2,
        ds__zero_stage=3,
        train__dynamic_batch_enable=True,
        train__max_tokens_per_gpu=256,
        eval__dataset=workshop / "prompts.jsonl",
        eval__steps=2,
        eval__n_samples_per_prompt=3,
        ckpt__best_metric_key="eval_letters_pass3",
        data__max_samples=16,
        reward__remote_url=reward,
    )
    train(argv).succeed()
    run_dir = tmp_path / "model" / "run"
    metrics = read_metrics(run_dir)
    assert [row["step"] for row in metrics] == [1, 2]
    main(["replay", str(run_dir)])
    assert "bit for bit: 2 steps" in capsys.readouterr().out
    assert 0 <= metrics[1]["eval_letters_pass1"] <= metrics[1]["eval_letters_pass3"] <= 1
    chosen = json.loads((tmp_path / "ckpt" / "_actor" / "best_global_step2" / "metric.json").read_text())
    assert chosen == {"metric_key": "eval_letters_pass3", "metric_value": metrics[1]["eval_letters_pass3"]}
    assert {name for row in metrics for name in row if name not in NOT_METRICS and not find(name)} == {"kind"}
    assert all(0 < row["ebpo/reward_error_fraction"] < 1 for row in metrics)
    assert all(row["actor_grad_norm"] > 0 and row["policy/entropy"] > 0 for row in metrics)


@pytest.mark.nightly  # daily: unit/test_launch_scripts.py, contract/test_estimators_of_upstream.py
def test_ray_job_submit_with_an_upstream_estimator(train, command, cluster, tmp_path, method_flags):
    argv = [*command(tmp_path, data__max_samples=16, actor__lr_scheduler="constant"), *method_flags("grpo")]
    prefix = (
        "ray",
        "job",
        "submit",
        "--address",
        f"http://{cluster.head_node.webui_url}",
        '--runtime-env-json={"env_vars": {"NCCL_DEBUG": "INFO"}}',
        "--",
    )
    output = train(argv, prefix).succeed()
    assert "succeeded" in output
    run_dir = tmp_path / "model" / "run"
    metrics = read_metrics(run_dir)
    assert [row["step"] for row in metrics] == [1, 2] and "ebpo/shrinkage" not in metrics[0]
    assert not (run_dir / "prior.json").exists()
    assert all(row["actor_grad_norm"] > 0 for row in metrics) and metrics[1]["kl"] > 1e-3
    for row in read_rollouts(run_dir, 1).to_pylist():
        assert row["advantage"] == pytest.approx(row["grpo_advantage"], abs=1e-5)


def test_a_cluster_with_too_few_gpus_is_named_and_claims_no_run_directory(train, command, tmp_path):
    output = train(
        command(tmp_path, actor__num_gpus_per_node=8, train__micro_batch_size=4, rollout__micro_batch_size=4)
    ).fail()
    assert "needs 9 GPUs" in output and "has 6 GPUs" in output and "ray start" in output
    assert not (tmp_path / "model" / "run").exists()


def tasks_on_record(processes: list[psutil.Process]) -> int:
    """Count the tasks that are over and that the GCS of their Ray has kept."""
    from ray._raylet import GcsClientOptions, GlobalStateAccessor

    words = (word for process in processes for word in process.cmdline())
    address = next(word.partition("=")[2] for word in words if word.startswith("--gcs-address="))
    accessor = GlobalStateAccessor(GcsClientOptions.create(address, None, True, True))
    assert accessor.connect()
    return len(accessor.get_task_events())


@pytest.mark.nightly  # daily: integration/test_which_ray.py starts one, unit/test_supervisor.py interrupts
def test_without_a_cluster_ray_is_started_and_an_interrupt_leaves_no_process(train, command, tmp_path):
    argv = command(tmp_path, data__max_samples=96, train__num_episodes=20, ckpt__save_steps=1)
    training = train(argv, RAY_ADDRESS="local")
    run_dir = tmp_path / "model" / "run"
    training.wait_for_step(run_dir, 2)
    family = psutil.Process(training.process.pid).children(recursive=True)
    assert any("EngineCore" in " ".join(p.cmdline()) or "EngineCore" in p.name() for p in family)
    assert tasks_on_record(family) == 0  # they would add up
    os.kill(training.process.pid, signal.SIGINT)
    output = training.fail()
    _, alive = psutil.wait_procs(family, timeout=seconds(5))
    assert not [
        p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE
    ]  # where no init collects them
    assert "repeat the command with --ckpt.load_enable" in output
    run = read_run(run_dir)
    assert run["status"] == "interrupted" and run["error"] == "ended by SIGINT"
