"""Commands other than training: the warm start and the benchmarks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from patience import seconds
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]


def run(*argv: str) -> str:
    result = subprocess.run([sys.executable, *argv], capture_output=True, text=True, timeout=seconds(240), cwd=ROOT)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


# daily: contract/test_command_line.py has its flags and validation, integration/test_train_and_resume.py an export
@pytest.mark.nightly
def test_train_sft_runs_without_a_launcher_and_exports_a_model(workshop, tmp_path):
    examples = tmp_path / "examples.jsonl"
    rows = [json.loads(line) for line in (workshop / "prompts.jsonl").read_text().splitlines()]
    examples.write_text("".join(json.dumps({"input": r["prompt"], "output": r["label"]}) + "\n" for r in rows))
    run(
        *("-m", "openrlhf_ebpo.cli.train_sft"),
        *("--model.model_name_or_path", str(workshop / "tied"), "--data.dataset", str(examples)),
        *("--data.output_key", "output", "--train.batch_size", "16", "--train.micro_batch_size", "16"),
        *("--train.max_epochs", "1", "--ckpt.output_dir", str(tmp_path / "model")),
        *("--ckpt.path", str(tmp_path / "ckpt")),
    )
    before, after = (load_file(d / "model.safetensors") for d in (workshop / "tied", tmp_path / "model"))
    assert before.keys() <= after.keys()
    assert all(weight.shape == after[name].shape for name, weight in before.items())
    assert not before["model.embed_tokens.weight"].equal(after["model.embed_tokens.weight"])


@pytest.mark.nightly  # daily: unit/test_advantage.py has the values
def test_the_advantage_benchmark_checks_its_values_and_ends_with_the_speedup():
    last = run("benchmarks/advantage.py", "--quick", "--repeats", "1").splitlines()[-1]
    assert last.startswith("speedup ") and float(last.split()[1]) > 1
