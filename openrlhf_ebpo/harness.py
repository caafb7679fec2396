"""The evaluation harness, by name: it imports checks/, which imports hub/, which reads its results."""

from __future__ import annotations

import importlib


def harness(module: str):
    """A module of openrlhf_ebpo.eval."""
    return importlib.import_module(f"openrlhf_ebpo.eval.{module}")
