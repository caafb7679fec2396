"""The published files, without torch: wheel and sdist as PyPI takes them, and what a plain `pip install openrlhf_ebpo`
can do."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

pytest.importorskip(
    "twine", reason="runs in the environment of requirements/package.txt: bash scripts/test_integrations.sh package"
)
ROOT = Path(__file__).parents[2]
USE = """
import json, pathlib, sys
import pyarrow.parquet as pq
from openrlhf_ebpo.estimator.registry import ESTIMATORS
from openrlhf_ebpo.integrations.running import RunningEstimator
from openrlhf_ebpo.run.run_log import read_metrics, read_rollouts, read_run
golden = json.load(open(sys.argv[1]))
for name, batches in golden["advantages"].items():
    running = RunningEstimator(name, golden["group"])
    for rewards, expected in zip(golden["rewards"], batches):
        found = running.step(rewards).advantages.ravel()
        assert max(abs(a - b) for a, b in zip(found, expected)) < 1e-5, name
assert read_run(sys.argv[2])["status"] and read_metrics(sys.argv[2]) and len(read_rollouts(sys.argv[2], 20))
for path in pathlib.Path(sys.argv[2], "rollouts").iterdir():  # columns that replay needs and runs of before lack
    table = pq.read_table(path)
    for column in {"action_tokens", "score_weight"} - {*table.column_names}:
        table = table.append_column(column, [[1] * len(table)])
    pq.write_table(table, path)
assert not {"torch", "ray", "transformers"} & sys.modules.keys()
"""


def run(*command, cwd: Path, status: int = 0) -> str:
    settings = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=settings, capture_output=True, text=True, timeout=500)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    """The folder of both files, built by `python -m build` from the files that are published."""
    folder = tmp_path_factory.mktemp("published")
    checkout = folder / "checkout"
    for place in ("openrlhf_ebpo", "eval", "space"):
        shutil.copytree(ROOT / place, checkout / place, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout / name)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", checkout, cwd=folder)
    return folder / "dist"


@pytest.fixture(scope="module")
def commands(published, tmp_path_factory) -> Path:
    """bin/ of an environment that has the wheel and its base dependencies alone."""
    environment = tmp_path_factory.mktemp("base") / "environment"
    venv.create(environment, with_pip=True)
    (wheel,) = published.glob("*.whl")
    run(environment / "bin" / "pip", "install", "-q", wheel, cwd=published)
    return environment / "bin"


def test_pypi_would_take_both_files(published):
    files = sorted(published.iterdir())
    assert {path.suffix for path in files} == {".gz", ".whl"}
    run(sys.executable, "-m", "twine", "check", "--strict", *files, cwd=published)


def test_without_torch_estimators_and_runs_can_be_used(commands, tmp_path):
    data = ROOT / "tests" / "data"
    shutil.copytree(data / "quickstart_run", tmp_path / "run")
    run(commands / "python", "-c", USE, data / "golden_advantages.json", tmp_path / "run", cwd=tmp_path)
    run(commands / "openrlhf-ebpo", "replay", tmp_path / "run", "--estimator", "group_norm", cwd=tmp_path)


@pytest.mark.parametrize("command", ["train", "sft"])
def test_a_command_of_the_stack_says_that_torch_is_missing(commands, tmp_path, command):
    said = run(commands / "openrlhf-ebpo", command, cwd=tmp_path, status=1)
    assert "torch is not installed" in said and "Traceback" not in said
