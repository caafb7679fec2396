"""The real stack on one GPU: what the trainings of scripts/gpu_check.sh do not have, and no CPU backend in any process."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu.modes import SLEEP
from gpu.trainings import kill_midway
from gpu.work import tail

from openrlhf_ebpo.record.run_log import read_metrics, read_run

pytestmark = pytest.mark.gpu
GUARD = Path(__file__).parent / "guard"
LOCAL = {"RAY_ADDRESS": "local", "OMP_NUM_THREADS": "1"}


def trained(output: Path, work) -> list[dict]:
    """The steps of a run that is complete; trainer and vLLM agree in each."""
    assert read_run(output / "run")["status"] == "complete", "\n".join(tail(work.log))
    rows = read_metrics(output / "run")
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert all(abs(row["vllm_kl"]) < 0.05 for row in rows)
    return rows


def test_dynamic_batches_and_clip_cov_train_and_no_process_has_the_cpu_backend(command, work, tmp_path):
    flags = (
        *("--train.dynamic_batch_enable", "--train.max_tokens_per_gpu", "256"),
        *("--actor.policy_loss_type", "clip_cov"),
    )
    witness = tmp_path / "guards"
    work.run(command(tmp_path, *flags), PYTHONPATH=str(GUARD), OPENRLHF_EBPO_GUARD=str(witness), **LOCAL)
    rows = trained(tmp_path, work)
    assert all(0 <= row["policy/cov_selected_fraction"] <= 1 for row in rows)
    assert len(set(witness.read_text().split())) > 5  # supervisor, driver, trainer, engine, rewards


def test_zero_3_with_sleep_and_kl_cov_resumes_after_a_kill(command, work, tmp_path):
    flags = [f"--{flag}" for flag in SLEEP]
    flags += [
        "--ds.zero_stage",
        "3",
        "--actor.policy_loss_type",
        "kl_cov",
        "--ckpt.save_steps",
        "5",
        "--ckpt.load_enable",
    ]
    words = command(tmp_path, *flags)
    kill_midway(work, words, tmp_path / "run", LOCAL)
    work.run(words, **LOCAL)
    rows = trained(tmp_path, work)
    assert read_run(tmp_path / "run")["resumed"] and all(row["policy/cov_selected_fraction"] > 0 for row in rows)


def test_lora_reaches_vllm_through_shared_gpu_memory(command, work, tmp_path):
    flags = (
        "--ds.zero_stage",
        "3",
        "--ds.lora.rank",
        "4",
        "--actor.lr_scheduler",
        "constant",
        "--actor.adam.lr",
        "1e-2",
    )
    work.run(command(tmp_path, *flags), **LOCAL)
    assert trained(tmp_path, work)[0]["policy/kl_per_step"] > 0.01
