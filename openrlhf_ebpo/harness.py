"""The evaluation harness, found by name: eval/ of a checkout, or openrlhf_ebpo.eval where this is installed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path


def harness(module: str):
    """A module of the evaluation, as it is found in a checkout or in an installed package."""
    return importlib.import_module(f"{_package()}.{module}")


def _package() -> str:
    """Where the harness is: in this package when installed; in a checkout in the folder eval/ beside it."""
    if importlib.util.find_spec("openrlhf_ebpo.eval"):
        return "openrlhf_ebpo.eval"
    sys.path.insert(0, str(Path(__file__).parents[1]))
    return "eval"
