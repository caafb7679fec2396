"""Every script of research/ starts from a checkout: what it imports, of its siblings and of the package, is there."""

import subprocess
import sys
from pathlib import Path

import pytest

RESEARCH = Path(__file__).parents[2] / "research"
HELP_OF_EACH = """
import runpy, sys
for path in sys.argv[1:]:
    sys.argv = [path, "--help"]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        assert not end.code, f"{path}: {end.code}"
"""


@pytest.mark.nightly  # daily: unit/test_figures.py, unit/test_learning_bench.py, unit/test_gpu_check.py import most of them
def test_every_script_has_a_help():
    scripts = sorted(map(str, RESEARCH.glob("*.py")))
    command = [sys.executable, "-c", HELP_OF_EACH, *scripts]
    done = subprocess.run(command, cwd=RESEARCH, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: ") == len(scripts) > 10
