"""Checks find what a GPU machine lacks, on stand-ins: a torch that has CUDA, and nvidia-smi."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from openrlhf_ebpo.upstream.releases import GPU_INSTALL

ROOT = Path(__file__).parents[2]
H100 = "0, GPU-a1, NVIDIA H100 80GB HBM3, 81559, {free}, {driver}, 9.0"
# training_notices in a separate process, as the start of a training calls it
CHECK = """
import sys
from openrlhf_ebpo.train import machine
from openrlhf_ebpo.errors import UsageError
try:
    print(*machine.training_notices(), sep="\\n")
except UsageError as error:
    sys.exit(f"error: {error}")
"""


class Machine:
    """A machine with GPUs in a folder; each method puts a part there, or takes it away."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("CUDA", "TORCH", "DS_"))},
            "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
            "PYTHONPATH": f"{folder / 'packages'}:{ROOT}",
        }
        self.torch()
        self.nvidia_smi()

    def program(self, name: str, script: str) -> Path:
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def package(self, name: str, code: str) -> Path:
        folder = self.folder / "packages" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text(code)
        return folder

    def torch(self, cuda: str = "13.0", starts: str = "pass") -> None:
        folder = self.package("torch", f"class cuda:\n    @staticmethod\n    def init():\n        {starts}\n")
        (folder / "version.py").write_text(f"__version__ = '2.13.0+cu130'\ncuda = {cuda!r}\nhip = None\n")

    def nvidia_smi(self, driver: str = "580.95.05", free: int = 81000) -> None:
        self.program("nvidia-smi", f"echo '{H100.format(driver=driver, free=free)}'")

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            env={**self.environment, **environment},
            cwd=self.folder,
        )

    def doctor(self, **environment: str) -> str:
        done = self.run("-m", "openrlhf_ebpo.cli.doctor", "gpu", **environment)
        assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
        return done.stdout

    def start(self, **environment: str) -> str:
        """The notices of a training's start, or its error."""
        done = self.run("-c", CHECK, **environment)
        assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def machine(tmp_path) -> Machine:
    return Machine(tmp_path)


def verdict(said: str, about: str) -> str | None:
    """The first word of the line about something: ok, note or FIX of the doctor, warning or error of a start."""
    return next((line.split()[0].rstrip(":") for line in said.splitlines() if about in line), None)


def test_a_machine_that_has_all_is_fine(machine):
    assert verdict(machine.doctor(), "580.95.05") == "ok"
    assert machine.start().strip() == ""


def test_a_gpu_that_another_process_holds_is_named(machine):
    machine.nvidia_smi(free=20000)
    assert verdict(machine.doctor(), "GPU 0: 20000 of 81559 MiB are free") == "note"
    assert verdict(machine.start(), "GPU 0: 20000 of 81559 MiB are free") == "warning"


def test_an_older_driver_is_named_with_the_one_that_torch_needs(machine):
    machine.nvidia_smi(driver="570.172.08")
    assert (
        verdict(machine.doctor(), "570.172.08") == "ok"
    )  # with NVIDIA's compatibility package CUDA starts all the same
    machine.torch(starts="raise RuntimeError('The NVIDIA driver on your system is too old (found version 12080)')")
    assert verdict(machine.doctor(), "RuntimeError: The NVIDIA driver") == "FIX"
    said = machine.start()
    assert verdict(said, "RuntimeError: The NVIDIA driver") == "error" and "570.172.08" in said and "580" in said


def test_cuda_is_really_started_whatever_the_driver_of_a_training_has_asked_for(machine):
    machine.torch(starts="import os; assert 'PYTORCH_NVML_BASED_CUDA_CHECK' not in os.environ")
    assert not machine.start(PYTORCH_NVML_BASED_CUDA_CHECK="1").startswith("error")


def test_without_a_gpu_nothing_is_asked(machine):
    """The driver of a cluster, or the CPU stack."""
    if list(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has one")
    machine.program("nvidia-smi", "exit 9")
    assert machine.start().strip() == ""
    machine.torch(cuda=None)
    machine.nvidia_smi()
    assert machine.start().strip() == "" and "built without CUDA" in machine.doctor()


def gpu_check(machine: Machine, *words: str) -> subprocess.CompletedProcess:
    """scripts/gpu_check.sh of a copy in which setup.sh only says that it was called."""
    scripts = machine.folder / "copy" / "scripts"
    scripts.mkdir(parents=True)
    (scripts / "gpu_check.sh").write_text((ROOT / "scripts" / "gpu_check.sh").read_text())
    (scripts / "setup.sh").write_text("echo the CPU stack would be installed; exit 0\n")
    (machine.folder / "copy" / "openrlhf_ebpo").symlink_to(ROOT / "openrlhf_ebpo")
    machine.program("python3", f'exec {sys.executable} -S "$@"')  # without the packages of these tests
    return subprocess.run(
        ["bash", scripts / "gpu_check.sh", *words],
        capture_output=True,
        text=True,
        env={**machine.environment, "PYTHONPATH": str(machine.folder / "packages")},
    )


def test_gpu_check_on_a_gpu_machine_without_the_stack_says_how_to_install_it(machine):
    done = gpu_check(machine)
    assert done.returncode == 1 and "torch, vllm, openrlhf, ray or deepspeed is not installed" in done.stderr
    assert GPU_INSTALL in done.stderr and "CPU stack would" not in done.stdout


def test_gpu_check_on_a_gpu_that_torch_cannot_use_says_why(machine):
    for name in ("vllm", "openrlhf", "ray", "deepspeed"):
        machine.package(name, "")
    machine.torch(starts="raise RuntimeError('Found no NVIDIA driver on your system')")
    done = gpu_check(machine)
    assert done.returncode == 1 and "Found no NVIDIA driver on your system" in done.stderr


def test_gpu_check_rehearses_on_the_cpu_where_it_is_told_to(machine):
    assert "CPU stack" in gpu_check(machine, "--cpu").stdout
