"""These tests show what only CUDA can show. Everything here skips without it; on a GPU machine: `pytest -m gpu`, or
scripts/gpu_check.sh."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from gpu_commands import COMMON

from gpu.work import Work
from lab import training

STEPS = 12
LIMIT = 300  # seconds of one training, its kill and its resume


@pytest.fixture(autouse=True, scope="session")
def cuda():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU and a CUDA build of torch")


@pytest.fixture(scope="session")
def workshop(tmp_path_factory) -> Path:
    """A model of a few thousand weights, prompts for the steps, and a reward."""
    directory = tmp_path_factory.mktemp("workshop")
    training.prepare(directory, STEPS)
    return directory


@pytest.fixture
def command(workshop):
    """A training with policy and engine on one GPU: command(output, *more flags)."""
    return lambda output, *more: [*training.command(training.flags(workshop, output, "ebpo")), *COMMON, *more]


@pytest.fixture
def work(tmp_path, request) -> Work:
    """Runs commands with a limit; their output is in its log."""
    return Work(request.node.name, tmp_path, LIMIT)
