"""Check what a training on GPUs needs of its machine: driver, CUDA's compiler, compute mode, flash-attn, GPU memory.

nvidia-smi and nvcc run as programs, torch and flash-attn are imported in other processes: this one stays without CUDA.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from openrlhf_ebpo.errors import SeamError
from openrlhf_ebpo.seams import flash_attn, native
from openrlhf_ebpo.seams.releases import FLASH_ATTN_INSTALL, GPU_INSTALL
from openrlhf_ebpo.seams.stack import cuda_version, is_cpu_stack

LEAST_DRIVER = {11: 450, 12: 525, 13: 580}  # by CUDA's major release: docs.nvidia.com/deploy/cuda-compatibility
NVIDIA_SMI = (
    "nvidia-smi",
    "--query-gpu=index,uuid,name,memory.total,driver_version,compute_cap,compute_mode",
    "--format=csv,noheader,nounits",
)
PROGRAM_SECONDS = 30
# NVML alone, which the driver of a training asks, also answers where CUDA cannot start
CUDA_STARTS = "import os; os.environ.pop('PYTORCH_NVML_BASED_CUDA_CHECK', None); import torch; torch.cuda.init()"
NO_TABLE = 13  # from this CUDA on, DeepSpeed's cuda_minor_mismatch_ok permits no other nvcc than torch's
COMPILED = ("fused_adam", "cpu_adam")  # DeepSpeed's operators that a training compiles
MAX_COMPILE_SECONDS = 600  # so long nothing is written into an operator's folder only after a compiler was killed
MIB = 1 << 20
ADAM = "adam"


@dataclass(frozen=True)
class Finding:
    """One line of `doctor`.

    found: what is there. remedy: what to do; None if all is well. fatal: nothing would run. blocks: the field of
    Needs with which no training runs.
    """

    found: str
    remedy: str | None = None
    fatal: bool = False
    blocks: str | None = None


@dataclass(frozen=True)
class Needs:
    """What a training needs of a machine with GPUs. adam: DeepSpeed's, which it compiles; adam_offload: on the CPU."""

    colocate_all: bool
    adam: bool
    adam_offload: bool

    @classmethod
    def from_args(cls, args) -> Needs:
        """From upstream's nested arguments."""
        return cls(args.train.colocate_all, args.actor.optim == "adam", args.ds.adam_offload)


def gpus() -> list[dict]:
    """List index, uuid, name, memory_mib, driver, capability and mode of each GPU that CUDA_VISIBLE_DEVICES leaves
    visible; none without an nvidia-smi that answers."""
    rows = [[cell.strip() for cell in line.split(",")] for line in output_of(*NVIDIA_SMI).splitlines()]
    names = ("index", "uuid", "name", "memory_mib", "driver", "capability", "mode")
    found = [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    found = [each for each in found if {each["index"], each["uuid"]} & {*visible}] or found  # or names of parts (MIG)
    return [{**each, "memory_mib": int(each["memory_mib"]) if each["memory_mib"].isdigit() else None} for each in found]


def output_of(*words: str | Path) -> str:
    """Run a program and return what it prints; nothing if it fails or does not exist."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=PROGRAM_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout


def devices() -> list[str]:
    return sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))


def gpu() -> Iterator[Finding]:
    try:
        cpu = is_cpu_stack()
    except SeamError as error:
        yield Finding("torch is not installed", str(error), fatal=True)
        return
    if cpu:
        text = f"the installed torch is built without CUDA; GPUs here: {', '.join(devices()) or 'none'}"
        yield Finding(text, f"to use it, in another environment:\n{GPU_INSTALL}" if devices() else None)
        return
    found = gpus()
    yield cuda_start(found)
    yield from compute_modes(found)
    if not flash_attn.is_installed():
        remedy = "nothing, if sdpa will do in its place (slower, more memory); ring attention needs it"
        yield Finding("flash-attn is not installed", remedy)
    elif cause := native.failing_import("import flash_attn"):
        remedy = (
            "it was built for another torch. Without it PyTorch's attention is used: pip uninstall -y flash-attn. Or "
            f"build it for this one, after that: {FLASH_ATTN_INSTALL} --no-cache-dir"
        )
        yield Finding(f"flash-attn is installed, and cannot be imported: {cause}", remedy, fatal=True)


def cuda_start(found: list[dict]) -> Finding:
    """Start torch's CUDA; found: the GPUs."""
    drivers = ", ".join(sorted({each["driver"] for each in found}))
    cause, cuda = native.failing_import(CUDA_STARTS), cuda_version()
    if cause is None:
        text = f"torch uses CUDA; GPUs: {', '.join(devices()) or 'found'}"
        return Finding(f"{text}; NVIDIA driver {drivers}" if drivers else text)
    remedy = "nvidia-smi says whether the driver is there and which CUDA it carries; CUDA_VISIBLE_DEVICES may hide it"
    least = LEAST_DRIVER.get(int(cuda.partition(".")[0]), 0) if cuda else 0
    if drivers and int(re.match(r"\d*", drivers)[0] or least) < least:
        remedy = f"the NVIDIA driver is {drivers}, and torch's CUDA {cuda} needs {least} or newer: update it"
    return Finding(f"torch is built with CUDA, and: {cause}", remedy, fatal=True)


def compute_modes(found: list[dict]) -> Iterator[Finding]:
    numbers = [each["index"] for each in found if each["mode"].startswith("Exclusive")]
    if numbers:
        yield Finding(
            f"compute mode Exclusive_Process (GPU {', '.join(numbers)}): a GPU takes one process",
            "with --train.colocate_all trainer and engine share one; as root: nvidia-smi -c DEFAULT",
            blocks="colocate_all",
        )


# --- DeepSpeed compiles its Adam at the first start


def compiler() -> Iterator[Finding]:
    cuda = None if importlib.util.find_spec("torch") is None else cuda_version()
    if cuda is None:
        yield Finding("the installed torch needs no nvcc")
        return
    yield nvcc_finding(cuda)
    if lacking := [name for name in ("ninja", "c++") if not shutil.which(name)]:
        remedy = "DeepSpeed compiles its Adam with them: pip install ninja; apt install g++"
        yield Finding(f"not found: {', '.join(lacking)}", remedy, blocks=None if is_compiled() else ADAM)
    yield from locks(extensions(cuda))


def nvcc_finding(cuda: str) -> Finding:
    """Compare nvcc with torch's `cuda`. DeepSpeed 0.19.6 compares nvcc with it for CPU Adam alone
    (op_builder/builder.py, get_cuda_compile_flag, and for operators that are built beforehand); FusedAdam is compiled
    without a look at it."""
    path = nvcc_path()
    toolkit = f"install CUDA's toolkit {cuda} and set CUDA_HOME to it"
    release = nvcc_release(path) if path else None
    if release is None:
        return Finding(
            f"nvcc is not found ({path or 'CUDA_HOME, PATH, /usr/local/cuda'})",
            f"DeepSpeed compiles its Adam with it at the first training: {toolkit}. Evaluation does without",
            blocks=None if is_compiled() else ADAM,
        )
    same_major = release.partition(".")[0] == cuda.partition(".")[0]
    if release == cuda or (same_major and int(cuda.partition(".")[0]) < NO_TABLE):
        return Finding(f"nvcc {release} ({path}), for torch's CUDA {cuda}")
    found = f"nvcc is of CUDA {release} ({path}), and torch of CUDA {cuda}"
    if os.environ.get("DS_SKIP_CUDA_CHECK") == "1":
        return Finding(f"{found}; DS_SKIP_CUDA_CHECK=1 lets it pass")
    blocks = "adam_offload" if same_major else ADAM
    return Finding(found, f"{toolkit}; or DS_SKIP_CUDA_CHECK=1 in front of the command, to try this one", blocks=blocks)


def nvcc_path() -> Path | None:
    """Return nvcc where torch and DeepSpeed look for it."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home:
        return Path(home, "bin", "nvcc")
    if path := shutil.which("nvcc"):
        return Path(path)
    return Path("/usr/local/cuda/bin/nvcc") if Path("/usr/local/cuda").exists() else None


def nvcc_release(path: Path) -> str | None:
    found = re.search(r"release (\d+\.\d+)", output_of(path, "-V"))
    return found[1] if found else None


def extensions(cuda: str) -> Path:
    """Return torch.utils.cpp_extension._get_build_directory, without torch."""
    if folder := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(folder)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch_extensions"
    python = f"py{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}"
    return cache / f"{python}_cu{cuda.replace('.', '')}"


def is_compiled() -> bool:
    """Return True if FusedAdam has been compiled by an earlier training, or with DeepSpeed."""
    deepspeed = importlib.util.find_spec("deepspeed")
    ops = Path(deepspeed.origin).parent / "ops" / "adam" if deepspeed else Path("nowhere")
    cached = extensions(cuda_version()) / "fused_adam" / "fused_adam.so"
    return cached.is_file() or any(ops.glob("fused_adam_op*.so"))


def locks(folder: Path) -> Iterator[Finding]:
    """Find stale locks (torch's FileBaton) of compilers that were killed: every later start waits for them without
    limit."""
    for lock in (folder / name / "lock" for name in COMPILED if (folder / name / "lock").exists()):
        try:
            written = max(path.stat().st_mtime for path in lock.parent.iterdir())
        except (OSError, ValueError):  # a compiler is at work and changes it
            continue
        if time.time() - written > MAX_COMPILE_SECONDS:
            yield Finding(
                f"{lock}: a compiler that was killed has left this lock, for which every start of a training waits",
                f"remove it: rm {lock}",
                blocks=ADAM,
            )
