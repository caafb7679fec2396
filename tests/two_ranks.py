"""Two ranks that train on the CPU, each a process of its own: what a script of tests/contract finds in them."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from openrlhf_ebpo.quickstart import tiny_model
from openrlhf_ebpo.seams.stack import is_cpu_stack


def outcomes_of(script: Path, folder: Path) -> list[dict]:
    """Return what each rank has written: SCRIPT MODEL OUTPUT RENDEZVOUS RANK, with a tiny model."""
    if not is_cpu_stack():
        pytest.skip("its two ranks train on the CPU")
    tiny_model.build(folder / "model", ["abcdefghijklmnopqrstuvw\n"], hidden_size=32, intermediate_size=64)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    outputs = [folder / f"{rank}.json" for rank in range(2)]
    commands = [
        [sys.executable, str(script), str(folder / "model"), str(output), port, str(rank)]
        for rank, output in enumerate(outputs)
    ]
    ranks = [
        subprocess.Popen(each, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for each in commands
    ]
    try:
        said = [rank.communicate()[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(text[-4000:] for text in said)
    return [json.loads(output.read_text()) for output in outputs]
