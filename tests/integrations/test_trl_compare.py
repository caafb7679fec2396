"""research/trl_compare.py on a CPU to its end: the check with a kill, two estimators with two seeds, and a repeated
command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip(
    "trl", reason="runs in the environment of requirements/trl.txt: bash scripts/test_integrations.sh trl"
)
from patience import seconds

ROOT = Path(__file__).parents[2]
SIZES = ["--steps", "2", "--heldout", "4", "--prompts", "4", "--micro_batch", "8", "--tokens", "4", "--lr", "1e-3"]


def run(*words: str) -> str:
    command = [sys.executable, str(ROOT / "research" / "trl_compare.py"), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds(300), env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_check_resumes_both_presets_as_the_reference_says(tmp_path):
    printed = run("--check", "--output", str(tmp_path))
    assert "trl 1.16" in printed
    assert "ebpo: killed at step 5, resumed" in printed and "ebpo.robust: killed at step 5, resumed" in printed


def test_a_comparison_is_resumed_and_exported(tmp_path):
    arms = ["--estimators", "group_norm", "ebpo", "--output", str(tmp_path), *SIZES]
    run("--seeds", "1", *arms)
    before = (tmp_path / "measured.jsonl").read_text()
    printed = run("--seeds", "1", "2", *arms, "--export", str(tmp_path / "records.json"))
    assert (tmp_path / "measured.jsonl").read_text().startswith(before)  # nothing was trained twice
    records = json.loads((tmp_path / "records.json").read_text())
    assert sorted((each["estimator"], each["seed"]) for each in records) == [
        ("ebpo", 1),
        ("ebpo", 2),
        ("group_norm", 1),
        ("group_norm", 2),
    ]
    for seed in (1, 2):
        assert len({each["prompts"] for each in records if each["seed"] == seed}) == 1
    assert all(0 <= each["greedy"] <= 1 and each["pass"]["8"] >= each["end"] for each in records)
    rows = [line for line in printed.splitlines() if line.startswith("|")]
    assert [row.split(" | ")[0] for row in rows[2:]].count("| GRPO") == 1 and len(rows) == 4
