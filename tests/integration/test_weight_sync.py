"""Policy weights reach vLLM's CPU backend, after large updates, tied or not; a head that stays stale is noticed."""

import os
import sys

import pytest
import torch

from openrlhf_ebpo.upstream.stack import is_cpu_stack

pytestmark = pytest.mark.skipif(not is_cpu_stack(), reason="the CPU backend is not used with CUDA")
PROMPT = list(range(3, 19))


# untied is nightly; daily: tied, in integration/test_weight_sync.py itself
@pytest.fixture(scope="module", params=["tied", pytest.param("untied", marks=pytest.mark.nightly)])
def engine(request, workshop):
    """vLLM with our worker extension, in this process, and the Hugging Face model it was loaded from."""
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_OMP_THREADS_BIND="nobind", TORCHDYNAMO_DISABLE="1")
    sys.modules.pop("vllm.env_override", None)  # a stand-in, if an earlier test began a training in this process
    import vllm
    from transformers import AutoModelForCausalLM

    model = str(workshop / request.param)
    llm = vllm.LLM(
        model,
        enforce_eager=True,
        dtype="bfloat16",
        max_model_len=64,
        kv_cache_memory_bytes=64 << 20,
        worker_extension_cls="openrlhf_ebpo.upstream.cpu.gloo_sync.ReloadingWorker",
    )
    yield llm, AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    del llm


def runner(llm):
    return llm.llm_engine.model_executor.driver_worker.worker.model_runner


def log_probs(llm, prompt=PROMPT) -> torch.Tensor:
    """vLLM's log-probability of each prompt token, given those before it."""
    import vllm

    params = vllm.SamplingParams(max_tokens=1, prompt_logprobs=0)
    output = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)[0]
    pairs = zip(prompt[1:], output.prompt_logprobs[1:], strict=True)
    return torch.tensor([entry[token].logprob for token, entry in pairs])


@torch.no_grad()
def expected_log_probs(model) -> torch.Tensor:
    tokens = torch.tensor([PROMPT])
    return model(tokens).logits[0, :-1].float().log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0]


@torch.no_grad()
def change_a_lot(model, seed: int) -> list[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.add_((0.5 * parameter.float().std().nan_to_num(1.0) * noise).to(parameter.dtype))
    return [(name, parameter.clone()) for name, parameter in model.named_parameters()]


@pytest.mark.parametrize("seed", [1, 2])
def test_rollouts_come_from_the_weights_that_were_sent(engine, seed):
    from openrlhf_ebpo.upstream.cpu.gloo_sync import load_weights

    llm, model = engine
    before = log_probs(llm)
    load_weights(runner(llm), change_a_lot(model, seed))
    after, expected = log_probs(llm), expected_log_probs(model)
    assert (expected - before).abs().max() > 0.3, "the update must be large, or this test sees nothing"
    torch.testing.assert_close(after, expected, atol=0.03, rtol=0)


def test_a_head_frozen_on_purpose_stops_the_run(engine, monkeypatch):
    from openrlhf_ebpo.upstream.cpu import gloo_sync

    llm, model = engine
    head = runner(llm).get_model().lm_head
    frozen = head.weight.clone()
    stale = type(head.quant_method).apply

    def apply_frozen(self, layer, x, bias=None):
        return x @ frozen.T if layer is head else stale(self, layer, x, bias)

    monkeypatch.setattr(type(head.quant_method), "apply", apply_frozen)
    with pytest.raises(RuntimeError, match="lm_head"):
        gloo_sync.load_weights(runner(llm), change_a_lot(model, 3))


def test_a_tied_head_that_stays_stale_without_the_repacking_is_noticed(engine, monkeypatch):
    """vLLM repacks the head on processors with AVX-512; on others it multiplies with the weights as they are."""
    from openrlhf_ebpo.upstream.cpu import gloo_sync

    llm, model = engine
    monkeypatch.setattr(gloo_sync, "repack_heads", lambda model: None)
    weights = change_a_lot(model, 4)
    try:
        gloo_sync.load_weights(runner(llm), weights)
    except RuntimeError as error:
        assert model.config.tie_word_embeddings and "lm_head" in str(error)
    else:
        torch.testing.assert_close(log_probs(llm), expected_log_probs(model), atol=0.1, rtol=0)


def test_a_layer_that_keeps_its_old_weights_stops_the_run(engine):
    from openrlhf_ebpo.upstream.cpu import gloo_sync

    llm, model = engine
    weights = [(name, weight) for name, weight in change_a_lot(model, 5) if "layers.1.mlp" not in name]
    with pytest.raises(RuntimeError, match="Parallel"):
        gloo_sync.load_weights(runner(llm), weights)
