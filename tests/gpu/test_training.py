"""The real stack on one GPU: what the trainings of scripts/gpu_check.sh do not have, and no CPU backend in any
process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_commands import DYNAMIC_CLIP_COV, LORA_ZERO_3, ZERO_3_SLEEP_KL_COV

from gpu.trainings import kill_midway
from gpu.work import tail
from openrlhf_ebpo.run.run_log import read_metrics, read_run

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
    witness = tmp_path / "guards"
    environment = {"PYTHONPATH": str(GUARD), "OPENRLHF_EBPO_GUARD": str(witness), **LOCAL}
    work.run(command(tmp_path, *DYNAMIC_CLIP_COV), **environment)
    rows = trained(tmp_path, work)
    assert all(0 <= row["policy/cov_selected_fraction"] <= 1 for row in rows)
    assert len(set(witness.read_text().split())) > 5  # supervisor, driver, trainer, engine, rewards


def test_zero_3_with_sleep_and_kl_cov_resumes_after_a_kill(command, work, tmp_path):
    words = command(tmp_path, *ZERO_3_SLEEP_KL_COV)
    kill_midway(work, words, tmp_path / "run", LOCAL)
    work.run(words, **LOCAL)
    rows = trained(tmp_path, work)
    assert read_run(tmp_path / "run")["resumed"] and all(row["policy/cov_selected_fraction"] > 0 for row in rows)


def test_adams_moments_sleep_on_the_cpu_after_a_resume_too(tmp_path):
    """upstream/policy/checkpoint.py: without it they stay on the GPU."""
    script = Path(__file__).with_name("sleep_and_resume.py")
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads((tmp_path / "devices.json").read_text()) == {"before": ["cpu"], "after": ["cpu"]}


def test_lora_reaches_vllm_through_shared_gpu_memory(command, work, tmp_path):
    work.run(command(tmp_path, *LORA_ZERO_3), **LOCAL)
    assert trained(tmp_path, work)[0]["policy/kl_per_step"] > 0.01
