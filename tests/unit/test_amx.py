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


IN_FORKS = f"""
import os, sys
{ATTENTION.splitlines()[1]}
for before in sys.argv[1:]:
    if os.fork() == 0:
        exec(before)
        exec({ATTENTION!r})
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
DRIVER_OR_WORKER = "from openrlhf_ebpo.upstream.install import install; install()"
EXTENSION = "import openrlhf_ebpo.upstream.cpu.gloo_sync"  # vLLM's worker extension


@pytest.mark.skipif(not is_cpu_stack(), reason="vLLM has its CPU kernels in the CPU stack alone")
@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="this processor has no AMX tiles")
def test_processes_of_the_cpu_stack_may_use_amx_tiles():
    words = [sys.executable, "-W", "ignore", "-c", IN_FORKS, "pass", DRIVER_OR_WORKER, EXTENSION]
    done = subprocess.run(words, capture_output=True, text=True)
    without, *others = map(int, done.stdout.split())
    if without != -signal.SIGILL:
        pytest.skip("vLLM or this kernel grants the tiles by itself")
    assert others == [0, 0], done.stderr[-3000:]
