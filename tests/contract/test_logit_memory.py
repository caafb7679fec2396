"""The memory that a logit takes in upstream's log-probabilities, forward and backward (docs/gpus.md)."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from openrlhf_ebpo.upstream import flash_attn

TOKENS, WORDS = 4096, 2000


@pytest.mark.skipif(flash_attn.is_installed(), reason="flash-attn is installed, and takes another way")
def test_a_logit_takes_sixteen_bytes_without_flash_attn():
    from openrlhf.models.utils import log_probs_from_logits

    hidden, labels = torch.randn(1, TOKENS, 8, dtype=torch.bfloat16), torch.randint(0, WORDS, (1, TOKENS))
    head = torch.nn.Linear(8, WORDS, bias=False, dtype=torch.bfloat16)

    def step() -> dict:
        """As openrlhf.models.actor: the output keeps its logits, which the loss no longer needs."""
        output = {"logits": head(hidden)}
        output["logits"] = output["logits"].to(torch.float32)
        log_probs_from_logits(output["logits"], labels).sum().backward()
        head.weight.grad = None
        return output

    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    used = peak = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            used += event.nbytes()
            peak = max(peak, used)
    assert peak / (TOKENS * WORDS) == pytest.approx(16, rel=0.02)
