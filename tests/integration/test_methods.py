"""The methods of the launch scripts train two steps on the real stack, with the flags that their files set. EBPO by
difficulty does so asynchronously, EBPO on shuffled prompts with LoRA, and both are resumed.

Nightly; the same faults are found daily by contract/test_methods_in_upstream.py and contract/test_policy_loss.py
(advantages and losses through upstream's classes), unit/test_launch_methods.py (flags), unit/test_lora.py,
contract/test_prompts.py (episodes)."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from openrlhf_ebpo.run.run_log import read_metrics, read_rollouts, read_run
from openrlhf_ebpo.upstream.controller.rollouts import prompt_id

BATCH = 8  # prompts per step
AXES = {"ebpo, difficulty": ("--order", "difficulty")}
METHODS = ["clip_cov", "dapo", "dr_grpo", "ebpo, difficulty", "ebpo", "kl_cov", "reinforce_pp"]
ELSEWHERE = ["grpo", "rloo"]  # test_launch.py, test_engine_deaths.py
COMPOSED = ["reinforce_baseline"]  # of an estimator of upstream, held in tests/contract
AT_A_TIME = 2  # a launch leaves cores idle while processes start and wait for each other


@pytest.fixture(scope="module")
def runs(train, command, method_flags, curriculum, tmp_path_factory):
    """method -> its run directory, output folder and the drivers' texts. All are trained, two at a time."""

    def argv(output: Path, method: str, **changes) -> list[str]:
        # no warm-up, so that the first step moves the policy; two optimizer steps per batch
        settings = {"actor__lr_scheduler": "constant", "train__batch_size": 16, "data__max_samples": 2 * BATCH}
        theirs = command(output, data__prompt_dataset=curriculum, **settings)
        ours = method_flags(method.partition(",")[0], *AXES.get(method, ()))
        last = [str(word) for name, value in changes.items() for word in (f"--{name.replace('__', '.')}", value)]
        return [*theirs, *ours, *(word for word in last if word != "True")]

    def two_steps(output, method):
        return [train(argv(output, method)).succeed()]

    def dapo(output, method):
        return [train(argv(output, method, reward__overlong_buffer_len=4, data__max_samples=48)).succeed()]

    def another_episode(output, method, **changes):
        """An episode of 12 prompts, so a full batch and a half one; then the same command with two episodes."""
        changes = {"data__max_samples": 12, "ckpt__save_steps": 2, "ckpt__load_enable": True, **changes}
        return [train(argv(output, method, train__num_episodes=n, **changes)).succeed() for n in (1, 2)]

    def asynchronous(output, method):
        return another_episode(output, method, train__async_enable=True)

    def with_lora(output, method):
        changes = {"ds__lora__rank": 4, "actor__adam__lr": 3e-2, "algo__advantage__is_correction_level": "token"}
        return another_episode(output, method, data__order="as_is", **changes)

    special = {"ebpo, difficulty": asynchronous, "ebpo": with_lora, "dapo": dapo}
    outputs = {method: tmp_path_factory.mktemp(method) for method in METHODS}
    longest_first = sorted(METHODS, key=lambda method: not method.startswith("ebpo"))
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        texts = {m: pool.submit(special.get(m, two_steps), outputs[m], m) for m in longest_first}
    return {
        m: SimpleNamespace(output=outputs[m], run_dir=outputs[m] / "model" / "run", texts=texts[m].result())
        for m in METHODS
    }


def groups(run_dir: Path, column: str, step: int = 1) -> torch.Tensor:
    """(M, 4)"""
    return torch.tensor(read_rollouts(run_dir, step)[column].to_pylist()).reshape(-1, 4)


def test_no_method_is_left_out():
    files = Path(__file__).parents[2].joinpath("scripts", "launch", "methods").glob("*.sh")
    named = {method.partition(",")[0] for method in (*METHODS, *ELSEWHERE, *COMPOSED)}
    assert {path.stem for path in files} == named


@pytest.mark.nightly  # daily: the docstring of this file names them
@pytest.mark.parametrize("method", METHODS)
def test_it_trains_on_what_it_generated(runs, method):
    run = runs[method]
    metrics = read_metrics(run.run_dir)
    assert [row["step"] for row in metrics] == list(range(1, len(metrics) + 1)) and len(metrics) >= 2
    trained = [row for row in metrics if row["rollout/num_samples"] >= 16]  # less is not an optimizer step
    assert all(row["actor_grad_norm"] > 0 and row["policy/entropy"] > 0 for row in trained) and len(trained) >= 2
    assert read_run(run.run_dir)["status"] == "complete"
    assert any(run.output.joinpath("model").glob("*.safetensors"))


@pytest.mark.nightly  # daily: the docstring of this file names them
def test_dapo_trains_on_mixed_groups_and_shortens_what_is_too_long(runs):
    run_dir = runs["dapo"].run_dir
    raw, reward = groups(run_dir, "raw_reward"), groups(run_dir, "reward")
    assert ((raw.mean(-1) > 0) & (raw.mean(-1) < 1)).all()
    assert (reward <= raw).all() and (reward < raw).any()
    assert all(0 < row["dynamic_filtering_pass_rate"] <= 100 * 4 for row in read_metrics(run_dir))


@pytest.mark.nightly  # daily: the docstring of this file names them
@pytest.mark.parametrize("method", METHODS)
def test_the_kl_to_the_initial_model_is_a_loss_where_the_method_has_one(runs, method):
    kl = [row["kl"] for row in read_metrics(runs[method].run_dir)[:2]]
    without = method in ("dapo", "clip_cov", "kl_cov")
    assert kl == [0, 0] if without else min(kl) > 1e-3


@pytest.fixture(scope="module")
def rows(curriculum) -> list[dict]:
    return [json.loads(line) for line in curriculum.read_text().splitlines()]


def trained_prompts(run_dir: Path, step: int) -> set[str]:
    return set(read_rollouts(run_dir, step)["prompt_id"].to_pylist())


def ids(rows: list[dict]) -> set[str]:
    return {prompt_id(row["prompt"], row["label"]) for row in rows}


@pytest.mark.nightly  # daily: the docstring of this file names them
@pytest.mark.parametrize("method", ["ebpo, difficulty", "ebpo"])
def test_the_next_episode_begins_where_the_last_one_ended(runs, rows, method):
    """Asynchronously and with LoRA: prior, prompts and steps continue."""
    run = runs[method]
    metrics = read_metrics(run.run_dir)
    assert [row["ebpo/prior_count"] for row in metrics] == [32, 48, 80, 96]
    first, second = ids(rows[:BATCH]), ids(rows[BATCH:12])
    assert [trained_prompts(run.run_dir, step) for step in (1, 2, 3, 4)] == [first, second, first, second]
    for folder in (run.output / "model", run.output / "ckpt" / "_actor" / "global_step4"):
        assert json.loads((folder / "prior.json").read_text())["rewards"]["count"] == 96


@pytest.mark.nightly  # daily: the docstring of this file names them
def test_lora_rolls_out_the_adapted_policy_also_after_a_restart(runs):
    """vllm_kl compares vLLM's log-probabilities with the actor's: near 0 though the adapters have moved the policy."""
    run = runs["ebpo"]
    metrics = read_metrics(run.run_dir)
    assert metrics[2]["kl"] > 0.01, "the policy that continued is the trained one"
    assert all(abs(row["vllm_kl"]) < 0.02 for row in metrics)
    assert (run.output / "model" / "adapter_model.safetensors").is_file()
