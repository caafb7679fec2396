"""The CPU backend stays out of a process whose torch is built for CUDA."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_guard_keeps_the_cpu_backend_out_of_a_process(tmp_path):
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "tests" / "gpu" / "guard"),
        "OPENRLHF_EBPO_GUARD": str(tmp_path / "seen"),
    }
    words = [sys.executable, "-c", "import openrlhf_ebpo.upstream.replacements; import openrlhf_ebpo.upstream.cpu"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert "ImportError: openrlhf_ebpo.upstream.cpu was asked for" in done.stderr
    assert len((tmp_path / "seen").read_text().split()) == 1


INACTIVE = """
import sys
from openrlhf_ebpo.upstream.install import all_seams, install
from openrlhf_ebpo.upstream.replacements import SEAMS
from openrlhf_ebpo.upstream.stack import is_cpu_stack
assert sys.argv[1:] == [] or not is_cpu_stack()
install()
print(all_seams() == SEAMS, [name for name in sys.modules if name.startswith("openrlhf_ebpo.upstream.cpu")])
"""


def test_beside_a_torch_that_is_built_for_cuda_no_row_of_the_cpu_backend_is_taken(tmp_path):
    """A torch of which there is only the version file, by which the decision is made, and the names that annotations
    need."""
    for name, text in {
        "__init__.py": "",
        "version.py": "cuda = '13.0'\nhip = None\n",
        "nn/__init__.py": "",
        "nn/functional.py": "",
    }.items():
        (tmp_path / "torch" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "torch" / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT / 'tests' / 'gpu' / 'guard'}"}
    words = [sys.executable, "-c", INACTIVE, "cuda"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split("\n")[0] == "True []", done.stderr[-2000:]
