"""Libraries of the system: what is missing is named with the package that brings it, and nothing starts without it."""

import subprocess
import sys

import pytest

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.upstream import cpu
from openrlhf_ebpo.upstream.cpu import native

NUMA = "libnuma.so.1: cannot open shared object file: No such file or directory"


def test_the_package_of_a_missing_library_is_named():
    assert native.with_remedy(NUMA) == f"{NUMA}: apt install libnuma1 (Fedora, RHEL: dnf install numactl-libs)"
    other = native.remedy("ImportError: libodd.so.7: cannot open shared object file: No such file or directory")
    assert other == "install the package of your system that has libodd.so.7"
    assert native.remedy("undefined symbol: init") is None


def test_a_missing_library_is_an_error_before_anything_heavy_starts(monkeypatch):
    assert native.missing_libraries() == []
    monkeypatch.setattr(native, "CPU_LIBRARIES", ("libc.so.6", "libodd.so.7"))
    with pytest.raises(UsageError, match=r"vLLM needs libodd\.so\.7: cannot open shared object file.*: install"):
        cpu.prepare_driver()


def test_what_does_not_load_is_told_with_its_last_words():
    assert native.failing_import("import json") is None
    assert native.failing_import("import sys; sys.exit('no libodd')") == "no libodd"
    assert native.failing_import("import no_such_module") == "ModuleNotFoundError: No module named 'no_such_module'"
    assert "illegal instruction" in native.failing_import("import os, signal; os.kill(os.getpid(), signal.SIGILL)")


def test_kernels_that_do_not_load_stop_the_process_that_imports_vllm():
    """vLLM itself only warns, and where VLLM_LOGGING_LEVEL is ERROR, as here, says nothing."""
    code = """
import os, sys, torch
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
from openrlhf_ebpo.upstream.install import install
install()
for name in ("_C", "_C_AVX2", "_C_AVX512"):
    sys.modules["vllm." + name] = None  # any import of it fails
for _ in range(2):  # vLLM warns once
    try:
        import vllm._custom_ops
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if "kernels do not load" in line]
    assert len(lines) == 2, done.stdout + done.stderr
