"""ms-swift's command with the plug-in: a real training of a tiny Qwen3 on a CPU, killed and resumed bit for bit."""

import importlib.util
import json
from pathlib import Path

import pytest

if importlib.util.find_spec("swift") is None:
    pytest.skip("runs in requirements/swift.txt: bash scripts/test_integrations.sh swift", allow_module_level=True)
from resuming import assert_resumes


def test_ms_swift_trains_with_the_estimator_and_resumes(tmp_path):
    unbroken = assert_resumes(Path(__file__).with_name("swift_training.py"), tmp_path)
    batches = json.loads((unbroken / "batches-0.json").read_text())
    prior = json.loads((unbroken / "prior.json").read_text())
    assert len(batches) == 6 and prior["identity"]["variant"]["weights"] == "score"
    groups = [pair for batch in batches for pair in zip(batch["rewards"][::2], batch["rewards"][1::2], strict=True)]
    gained = [
        pair for batch in batches for pair in zip(batch["advantages"][::2], batch["advantages"][1::2], strict=True)
    ]
    assert any(a == b and any(pair) for (a, b), pair in zip(groups, gained, strict=True)), (
        "GRPO gives these groups zeros"
    )
