"""Every script that is not installed starts from a checkout, measures one tiny cell, and prints its table."""

import importlib
import subprocess
from pathlib import Path

import pytest
from forks import Fork
from patience import seconds

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
TINY = ["--cells", "tiny", "--seeds", "2", "--threads", "1", "--output"]
SLOW = ("research/learning.py", "research/figures.py")
SCRIPTS = {  # script -> arguments ("OUTPUT" is a new folder, "SHARED" one for several), a line of what it prints
    "research/learning.py": ([*TINY, "OUTPUT", "--width", "8", "--estimators", "group_norm", "ebpo"], ""),
    "research/gradient_variance.py": ([*TINY, "SHARED", "--batches", "4"], "| `tiny` |"),
    "research/kappa.py": ([*TINY, "SHARED", "--responses", "64"], "| `tiny` |"),
    "research/learning_real.py": (["--table", "--output", RESULTS / "learning_real.json"], "| EBPO |"),
    "research/estimator_quality.py": (["--quick"], "| half_life 4 |"),
    "research/interval_coverage.py": (["--repetitions", "20"], "| task |"),
    "research/gpu_hours.py": ([], "Qwen3-14B"),
    "research/figures.py": (["--only", "mse", "--seeds", "2", "--output", "OUTPUT"], "mse.png"),
    "research/scaling.py": (["64x50"], "| 64 x 50 |"),
    "research/gpu_check.py": (["OUTPUT", "--cpu", "--only", "machine"], "machine"),
    "scripts/audit.py": (["--pins", "3.11", ROOT / "requirements" / "cpu.txt"], "openrlhf==0.11.2"),
}
HELP = [
    *SLOW,
    "research/learning_smollm2.py",
    "research/overhead.py",
    "research/space.py",
    "scripts/smollm2.py",
]


@pytest.fixture(scope="module")
def output_of(tmp_path_factory):
    """Return the output of a script, started from a checkout; this process imports for all of them what takes long."""
    for name in ("torch", "matplotlib.pyplot", "pyarrow.parquet"):
        importlib.import_module(name)

    def run(script: str, *arguments) -> str:
        return Fork(tmp_path_factory.mktemp("script") / "log", ROOT / script, *arguments).end()

    return run


@pytest.fixture(scope="module")
def shared_output(tmp_path_factory):
    """The scripts that train the small transformer find each other's warm starts there."""
    return tmp_path_factory.mktemp("shared")


def refusal_of(*command) -> str:
    done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=seconds(100))
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def nightly_if_slow(script: str):
    marks = [pytest.mark.nightly] if script in SLOW else []  # daily: unit/test_research.py starts them with --help
    return pytest.param(script, marks=marks)


@pytest.mark.parametrize("script", [*map(nightly_if_slow, SCRIPTS)])
def test_a_script_measures_a_tiny_cell_and_prints_its_table(script, output_of, shared_output, tmp_path):
    arguments, line = SCRIPTS[script]
    places = {"OUTPUT": tmp_path / "output", "SHARED": shared_output}
    assert line in output_of(script, *(places.get(word, word) for word in arguments))


def test_the_tables_of_what_is_saved_are_those_in_the_page(output_of):
    printed = output_of("research/learning.py", "--table", "--output", RESULTS / "learning.json")
    success, greedy, long_answers = printed.strip().split("\n\n")[:3]
    page = (RESULTS / "regimes.md").read_text()
    assert success in page and greedy in page and long_answers in page


@pytest.mark.parametrize("script", HELP)
def test_a_script_that_needs_trainings_or_another_package_has_a_help(script, output_of):
    assert output_of(script, "--help").startswith("usage: ")


def test_the_walkthrough_refuses_a_number_of_steps_that_is_no_episode_before_it_sets_anything_up(tmp_path):
    words = ["env", "STEPS=7", "bash", "scripts/walkthrough.sh", tmp_path / "run"]
    assert "error: STEPS is 7; give a multiple of 10" in refusal_of(*words)
    assert not (tmp_path / "run").exists()


def test_the_wheelhouse_script_refuses_a_machine_without_the_right_python(tmp_path):
    words = ["env", "PYTHON=false", "bash", "scripts/make_wheelhouse.sh", tmp_path / "wheels"]
    assert "error: " in refusal_of(*words)
