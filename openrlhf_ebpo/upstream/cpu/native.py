"""Find missing native libraries of the stack, and the packages that bring them."""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
import sys

# Of the system, not of any wheel. vLLM's kernels for the CPU need it, and vLLM only warns where it is missing.
CPU_LIBRARIES = ("libnuma.so.1",)
# library -> package of Debian and Ubuntu, package of Fedora and RHEL
PACKAGES = {
    "libnuma.so.1": ("libnuma1", "numactl-libs"),
    "libgomp.so.1": ("libgomp1", "libgomp"),
    "libstdc++.so.6": ("libstdc++6", "libstdc++"),
    "libcuda.so.1": ("the NVIDIA driver", "the NVIDIA driver"),
}
IMPORT_SECONDS = 180  # torch and vLLM from a cold disk
IMPORTS = {
    "torch": "import torch",
    "pyarrow": "import pyarrow.parquet",
    "Ray": "import ray._raylet",
    "vLLM's kernels": "from openrlhf_ebpo.upstream.install import install; install(); import vllm._custom_ops",
}


def missing_libraries() -> list[str]:
    """Return the dynamic loader's message for each system library of the CPU stack that it does not find."""
    causes = []
    for library in CPU_LIBRARIES:
        try:
            ctypes.CDLL(library)
        except OSError as error:
            causes.append(str(error))
    return causes


def failing_import(code: str) -> str | None:
    """Return the error of `code` in a fresh Python, on one line; None if it runs."""
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=IMPORT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"not done after {IMPORT_SECONDS} s"
    if done.returncode == -4:
        return "illegal instruction: this processor lacks what the wheel is built for (AVX2)"
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return None


def remedy(cause: str) -> str | None:
    """Name the package to install if `cause`, a message of the dynamic loader, names a missing library."""
    found = re.search(r"(\S+\.so[.\d]*): cannot open shared object file", cause)
    if found is None:
        return None
    if found[1] not in PACKAGES:
        return f"install the package of your system that has {found[1]}"
    debian, fedora = PACKAGES[found[1]]
    return f"apt install {debian} (Fedora, RHEL: dnf install {fedora})"


def with_remedy(cause: str) -> str:
    found = remedy(cause)
    return f"{cause}: {found}" if found else cause


def loud_kernels(original):
    """Replacement of a vLLM platform's import_kernels, which only warns where its library does not load; the engine
    then dies of whatever kernel it calls first.

    Raises (when called):
        ImportError: the kernels are not there; says what to install if a library of the system is missing.
    """

    @functools.wraps(original)
    def import_kernels(*_):
        import torch

        original()
        if not hasattr(torch.ops._C, "init_cpu_memory_env"):
            causes = map(with_remedy, missing_libraries())
            raise ImportError(f"vLLM's kernels do not load: {next(causes, 'its warning above says why')}")

    return import_kernels
