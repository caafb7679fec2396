"""vLLM's attention runs on a processor with AMX, in each process that imports the CPU stack; without it, SIGILL."""

import signal
import subprocess
import sys

import pytest
import torch

from openrlhf_ebpo.upstream.stack import is_cpu_stack

ATTENTION = """
import torch, vllm._custom_ops as ops
one_token = torch.ones(1, 1, 32, dtype=torch.bfloat16)
keys, values = torch.zeros(1, 1, 64, 32, dtype=torch.bfloat16).chunk(2, dim=2)
lengths, starts, blocks = (torch.tensor(rows, dtype=torch.int32) for rows in ([1], [0, 1], [[0]]))
ops.cpu_attn_reshape_and_cache(one_token, one_token, keys, values, torch.tensor([0]), "amx")
plan = ops.cpu_attn_get_scheduler_metadata(1, 1, 1, 32, lengths, torch.bfloat16, starts, True, -1, "amx", False)
output = torch.empty_like(one_token)
ops.cpu_attention_with_kv_cache(
    one_token, keys, values, output, starts, lengths, 1.0, True, None, -1, blocks, 0.0, plan, None
)
assert output.eq(1).all()
"""


def run_attention(before: str) -> int:
    words = [sys.executable, "-W", "ignore", "-c", before + ATTENTION]
    return subprocess.run(words, stdout=subprocess.DEVNULL).returncode


@pytest.mark.skipif(not is_cpu_stack(), reason="vLLM has its CPU kernels in the CPU stack alone")
@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="this processor has no AMX tiles")
def test_processes_of_the_cpu_stack_may_use_amx_tiles():
    if run_attention("") != -signal.SIGILL:
        pytest.skip("vLLM or this kernel grants the tiles by itself")
    assert run_attention("from openrlhf_ebpo.upstream.install import install; install()") == 0  # drivers, workers
    assert run_attention("import openrlhf_ebpo.upstream.cpu.weight_sync") == 0  # vLLM's worker extension
