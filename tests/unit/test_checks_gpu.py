"""Checks find what a GPU machine lacks, on stand-ins: a torch that has CUDA, nvidia-smi, nvcc, torch's cache."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from openrlhf_ebpo.seams.releases import GPU_INSTALL

ROOT = Path(__file__).parents[2]
H100 = "0, GPU-a1, NVIDIA H100 80GB HBM3, 81559, {driver}, 9.0, {mode}"
PYTHON = f"py{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}_cu130"
# training_notices in a process of its own, as the start of a training calls it; argv: flags that are set, Adam among
# them
CHECK = """
import sys
from openrlhf_ebpo.checks import machine
from openrlhf_ebpo.errors import UsageError
needs = machine.Needs("train.colocate_all" in sys.argv, adam=True, adam_offload="ds.adam_offload" in sys.argv)
try:
    print(*machine.training_notices(needs), sep="\\n")
except UsageError as error:
    sys.exit(f"error: {error}")
"""


class Machine:
    """A machine with GPUs in a folder; each method puts a part there, or takes it away."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.cache = folder / "cache" / "torch_extensions" / PYTHON
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("CUDA", "TORCH", "DS_"))},
            "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
            "PYTHONPATH": f"{folder / 'packages'}:{ROOT}",
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        self.torch()
        self.package("deepspeed", "")
        self.program("ninja", "")
        self.program("c++", "")
        self.nvidia_smi()
        self.nvcc("13.0")

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

    def nvidia_smi(self, driver: str = "580.95.05", mode: str = "Default") -> None:
        self.program("nvidia-smi", f"echo '{H100.format(driver=driver, mode=mode)}'")

    def nvcc(self, release: str) -> None:
        self.program("nvcc", f"echo 'Cuda compilation tools, release {release}, V{release}.88'")

    def lock(self, age: float) -> Path:
        lock = self.cache / "fused_adam" / "lock"
        lock.parent.mkdir(parents=True)
        lock.touch()
        os.utime(lock, (time.time() - age,) * 2)
        return lock

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            env={**self.environment, **environment},
            cwd=self.folder,
        )

    def doctor(self, **environment: str) -> str:
        done = self.run("-m", "openrlhf_ebpo.cli.doctor", "gpu", "compiler", **environment)
        assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
        return done.stdout

    def start(self, *flags: str, **environment: str) -> str:
        """The notices of a training's start, or its error."""
        done = self.run("-c", CHECK, *flags, **environment)
        assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def machine(tmp_path) -> Machine:
    return Machine(tmp_path)


def verdict(said: str, about: str) -> str | None:
    """The first word of the line about something: ok, note or FIX of the doctor, warning or error of a start."""
    return next((line.split()[0].rstrip(":") for line in said.splitlines() if about in line), None)


def test_a_machine_that_has_all_is_fine(machine):
    said = machine.doctor()
    assert [verdict(said, about) for about in ("580.95.05", "flash-attn", f"{machine.folder}/bin/nvcc")] == [
        *("ok", "note", "ok")
    ]
    assert [line.split()[0] for line in machine.start("train.colocate_all", "ds.adam_offload").splitlines()] == [
        "warning:"
    ]


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


def test_a_training_needs_nvcc_until_its_adam_is_compiled(machine):
    nowhere = {"CUDA_HOME": str(machine.folder / "runtime_alone")}
    assert verdict(machine.doctor(**nowhere), "nvcc") == "note"  # evaluation does without
    assert verdict(machine.start(**nowhere), f"{machine.folder}/runtime_alone/bin/nvcc") == "error"
    compiled = machine.cache / "fused_adam" / "fused_adam.so"
    compiled.parent.mkdir(parents=True)
    compiled.touch()
    assert verdict(machine.start(**nowhere), "nvcc") == "warning"


def test_a_training_needs_ninja_and_a_compiler_of_cpp(machine):
    for name in ("ninja", "c++"):
        (machine.folder / "bin" / name).unlink()
    assert verdict(machine.start(PATH=str(machine.folder / "bin")), "ninja, c++") == "error"


def test_another_nvcc_stops_where_deepspeed_compares_it(machine):
    machine.nvcc("13.1")
    assert verdict(machine.doctor(), "13.1") == "note"
    assert verdict(machine.start("ds.adam_offload"), "13.1") == "error"
    assert verdict(machine.start(), "13.1") == "warning"  # FusedAdam is compiled without a comparison
    assert verdict(machine.start("ds.adam_offload", DS_SKIP_CUDA_CHECK="1"), "13.1") is None
    machine.nvcc("12.8")
    assert verdict(machine.start(), "12.8") == "error"


def test_of_cuda_12_deepspeed_takes_every_nvcc(machine):
    machine.torch("12.8")
    machine.nvcc("12.6")
    assert verdict(machine.doctor(), "nvcc 12.6") == "ok"


def test_cuda_home_comes_before_the_path(machine):
    home = machine.folder / "toolkit"
    (home / "bin").mkdir(parents=True)
    machine.program("nvcc", "echo 'release 13.2, V13.2.1'").rename(home / "bin" / "nvcc")
    machine.nvcc("13.0")
    assert verdict(machine.doctor(CUDA_HOME=str(home)), f"13.2 ({home}/bin/nvcc)") == "note"


def test_the_lock_of_a_compiler_that_was_killed_stops_a_start(machine):
    lock = machine.lock(age=3600)
    said = machine.start()
    assert verdict(said, str(lock)) == "error" and f"rm {lock}" in said
    (lock.parent / "fused_adam.o").touch()  # as a compiler at work does
    assert str(lock) not in machine.start()


def test_a_young_lock_is_a_compiler_at_work(machine):
    assert str(machine.lock(age=5)) not in machine.start()


def test_the_cache_may_be_elsewhere(machine):
    machine.lock(age=3600)
    assert verdict(machine.start(TORCH_EXTENSIONS_DIR=str(machine.folder / "other")), "fused_adam/lock") is None
    assert verdict(machine.start(TORCH_EXTENSIONS_DIR=str(machine.cache)), "fused_adam/lock") == "error"


def test_a_flash_attn_of_another_torch_is_named_with_both_ways_out(machine):
    machine.package("flash_attn", "raise ImportError('flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2')")
    said = machine.start()
    assert verdict(said, "flash_attn_2_cuda.so: undefined") == "error"
    assert "pip uninstall -y flash-attn" in said and "--no-build-isolation flash-attn==2.8.3" in said


def test_an_exclusive_gpu_stops_a_training_that_shares_it(machine):
    machine.nvidia_smi(mode="Exclusive_Process")
    assert verdict(machine.doctor(), "Exclusive_Process (GPU 0)") == "note"
    assert verdict(machine.start("train.colocate_all"), "Exclusive_Process") == "error"
    assert verdict(machine.start(), "Exclusive_Process") == "warning"


def test_more_shared_memory_is_needed_with_cuda(machine):
    done = machine.run("-m", "openrlhf_ebpo.cli.doctor", "shared_memory")
    free = os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize / (1 << 30)
    assert ("--shm-size=10g" in done.stdout) == (free < 10)


def test_without_a_gpu_nothing_is_asked(machine):
    """The driver of a cluster, or the CPU stack."""
    if list(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has one")
    machine.nvcc("12.8")
    machine.program("nvidia-smi", "exit 9")
    assert machine.start("ds.adam_offload").strip() == ""
    machine.torch(cuda=None)
    machine.nvidia_smi()
    assert machine.start("ds.adam_offload").strip() == "" and "built without CUDA" in machine.doctor()


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
    for name in ("vllm", "openrlhf", "ray"):
        machine.package(name, "")
    machine.torch(starts="raise RuntimeError('Found no NVIDIA driver on your system')")
    done = gpu_check(machine)
    assert done.returncode == 1 and "Found no NVIDIA driver on your system" in done.stderr


def test_gpu_check_rehearses_on_the_cpu_where_it_is_told_to(machine):
    assert "CPU stack" in gpu_check(machine, "--cpu").stdout
