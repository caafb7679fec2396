"""The quickstart's training on the real stack: Ray, DeepSpeed, vLLM."""

from __future__ import annotations

from pathlib import Path


def train(directory: Path, estimator: str, seed: int, steps: int) -> Path:
    """Train, unless that is done, and return the folder that has model/ and run/. An interrupted training resumes.

    A seed has its own order of prompts and its own sampling; all seeds begin with the warm start of `directory`.

    Raises:
        StageFailed: a training failed.
    """
    from openrlhf_ebpo.quickstart.stages import Training, preparation, run_stages, shuffled

    directory = directory.absolute()
    run_stages(preparation(directory))
    arm = directory / "arms" / f"seed-{seed}" / estimator.replace(":", ".")
    _, done, stage = Training(directory, arm, estimator, steps, seed, shuffled(directory, seed)).stage
    if not done():
        stage()
    return arm
