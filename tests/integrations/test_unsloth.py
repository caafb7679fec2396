"""EBPOTrainer on the trainer that Unsloth's published wheel generates from TRL's: its rewards, an evaluation that
leaves the prior alone, killed and resumed. Without a GPU, thus without Unsloth's kernels."""

import importlib.util
import json
from pathlib import Path

import pytest

if importlib.util.find_spec("unsloth") is None:
    pytest.skip("runs in requirements/unsloth.txt: bash scripts/test_integrations.sh unsloth", allow_module_level=True)
from resuming import assert_resumes

from openrlhf_ebpo.integrations.running import RunningEstimator


def test_unsloths_trainer_has_the_estimators_advantages_and_resumes(tmp_path):
    evaluating = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4}
    script = Path(__file__).with_name("unsloth_training.py")
    unbroken = assert_resumes(script, tmp_path, "--trl", json.dumps(evaluating))
    running = RunningEstimator("ebpo", 2)
    batches = json.loads((unbroken / "batches-0.json").read_text())
    for batch in batches:
        rewards = [float("nan") if reward is None else reward for reward in batch["rewards"]]
        assert batch["advantages"] == pytest.approx(running.step(rewards).advantages.ravel(), abs=1e-6)
    assert (
        len(batches) == running.pack()["batches"] == json.loads((unbroken / "prior.json").read_text())["batches"] == 6
    )
