"""Two ranks that train on the CPU, each a process of its own: what a script of tests/contract finds in them."""

import json
import socket
from pathlib import Path

import pytest
from forks import Fork

from openrlhf_ebpo.quickstart import tiny_model
from openrlhf_ebpo.upstream.stack import is_cpu_stack


def outcomes_of(script: Path, folder: Path) -> list[dict]:
    """Return the output of each rank: SCRIPT MODEL OUTPUT RENDEZVOUS RANK, with a tiny model."""
    if not is_cpu_stack():
        pytest.skip("its two ranks train on the CPU")
    tiny_model.build(folder / "model", ["abcdefghijklmnopqrstuvw\n"], hidden_size=32, intermediate_size=64)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    outputs = [folder / f"{rank}.json" for rank in range(2)]
    ranks = [
        Fork(folder / f"{rank}.log", script, folder / "model", output, port, rank)
        for rank, output in enumerate(outputs)
    ]
    try:
        for rank in ranks:
            rank.end()
    finally:
        for rank in ranks:
            rank.kill()
    return [json.loads(output.read_text()) for output in outputs]
