"""A training script that is killed and resumed, compared with the one that was not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import torch
from patience import seconds


def assert_resumes(script: Path, folder: Path, *arguments: str) -> Path:
    """Run a script with --output, --die_at and --resume; return the folder of the run that was not killed."""

    def run(output: Path, *more: str, status: int = 0) -> None:
        command = [sys.executable, str(script), "--output", str(output), *arguments, *more]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds(240), cwd=folder, env=environment
        )
        assert done.returncode == status, done.stderr[-3000:]

    unbroken, killed = folder / "unbroken", folder / "killed"
    run(unbroken)
    run(killed, "--die_at", "5", status=-signal.SIGKILL)
    assert not (killed / "weights-0.pt").exists()
    run(killed, "--resume")
    assert torch.equal(torch.load(killed / "weights-0.pt"), torch.load(unbroken / "weights-0.pt"))
    assert (killed / "prior.json").read_text() == (unbroken / "prior.json").read_text()
    return unbroken
