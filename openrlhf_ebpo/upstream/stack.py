"""Find the installed packages without importing them."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

from openrlhf_ebpo.errors import SeamError


def module_path(module: str) -> Path:
    """File of a module of an installed package, found without importing the package's own code."""
    package, _, rest = module.partition(".")
    root = Path(importlib.util.find_spec(package).origin).parent
    path = root.joinpath(*rest.split(".")) if rest else root
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@functools.cache
def torch_version() -> dict[str, str | None]:
    """torch's version file: the same in every process of a machine, whatever devices that process may see, and torch
    need not be imported.

    Raises:
        SeamError: torch is not installed.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None:
        raise SeamError("torch is not installed; docs/gpus.md and docs/start.md have the two ways to install the stack")
    version = {}
    exec((Path(spec.origin).parent / "version.py").read_text(), version)
    return version


def is_cpu_stack() -> bool:
    """Return True if the installed torch is a build without CUDA or ROCm. Raises SeamError: it is not installed."""
    return torch_version().get("cuda") is None and torch_version().get("hip") is None
