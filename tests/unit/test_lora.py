"""A LoRA policy sends to vLLM what peft's own merge gives."""

import contextlib
import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

from openrlhf_ebpo.command import nested
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.model_folder import problems
from openrlhf_ebpo.upstream.policy.weight_sync import adapter_as_safetensors, check_lora, synced_weights

QWEN = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}


def model(tied: bool, dtype=torch.float32):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**QWEN, tie_word_embeddings=tied)).to(dtype)


def adapted(base, **changes):
    settings = {"r": 4, "lora_alpha": 12, "target_modules": "all-linear", "bias": "none", "task_type": "CAUSAL_LM"}
    policy = get_peft_model(base, LoraConfig(**{**settings, **changes}))
    with torch.no_grad():  # as after some training: a fresh adapter's B is zero
        for name, parameter in policy.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.3)
    return policy


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"target_modules": ["q_proj", "down_proj"]},
        {"target_modules": ["embed_tokens", "v_proj"]},
        {"use_rslora": True},
    ],
    ids=str,
)
def test_vllm_gets_the_merged_model_under_the_names_of_the_base_model(tied, changes):
    if tied and "embed_tokens" in changes.get("target_modules", ()):
        pytest.skip("an adapted embedding is no longer tied to the head")
    names = [name for name, _ in model(tied).named_parameters()]
    policy = adapted(model(tied), **changes)
    sent = {weight.name: weight.merged().clone() for weight in synced_weights(policy)}
    expected = dict(copy.deepcopy(policy).merge_and_unload().named_parameters())
    assert list(sent) == names
    for name in names:
        torch.testing.assert_close(sent[name], expected[name], atol=1e-6, rtol=1e-6)


def test_only_adapted_weights_differ_from_the_base_and_the_base_stays_as_it_is():
    base = {name: p.detach().clone() for name, p in model(True).named_parameters()}
    policy = adapted(model(True), target_modules=["q_proj"])
    for weight in synced_weights(policy):
        differs = not torch.equal(weight.merged(), base[weight.name])
        assert differs == ("q_proj" in weight.name)
        assert torch.equal(weight.weight, base[weight.name])


def test_alpha_over_r_is_the_runs_own():
    policy = adapted(model(True), target_modules=["q_proj"], r=2, lora_alpha=10)
    weight = next(w for w in synced_weights(policy) if "layers.1.self_attn.q_proj" in w.name)
    layer = weight.layer
    expected = weight.weight + 5.0 * layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    torch.testing.assert_close(weight.merged(), expected)


def test_bfloat16_weights_are_summed_in_float32_and_sent_in_bfloat16():
    policy = adapted(model(False, torch.bfloat16), target_modules=["q_proj"])
    weight = next(w for w in synced_weights(policy) if w.layer is not None)
    delta = weight.layer.get_delta_weight("default").float()
    assert weight.merged().dtype == torch.bfloat16
    assert torch.equal(weight.merged(), (weight.weight.float() + delta).bfloat16())


def test_a_sync_gathers_the_weight_and_its_adapters():
    policy = adapted(model(False), target_modules=["q_proj"])
    counts = {w.name.rsplit(".", 2)[1]: len(w.parameters) for w in synced_weights(policy)}
    assert counts["q_proj"] == 3 and counts["k_proj"] == 1 and counts["embed_tokens"] == 1


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"ds.lora.rank": -1}, "--ds.lora.rank is -1"),
        ({"ds.tensor_parallel_size": 2}, "--ds.tensor_parallel_size above 1"),
        ({"train.enable_ema": True}, "--train.enable_ema"),
        ({"ds.load_in_4bit": True}, "--ds.load_in_4bit"),
        ({"ds.lora.rank": 0, "train.enable_ema": True}, None),
        ({}, None),
    ],
    ids=str,
)
def test_flags_that_cannot_work_with_lora_are_named(changes, shown):
    good = {"ds.lora.rank": 8, "ds.tensor_parallel_size": 1, "train.enable_ema": False, "ds.load_in_4bit": False}
    with pytest.raises(UsageError, match=shown) if shown else contextlib.nullcontext():
        check_lora(nested({**good, **changes}))


def test_an_adapter_that_upstream_exports_as_a_pickle_becomes_safetensors(tmp_path):
    """As with ZeRO stage 3, or with tensor parallelism: peft reads the same weights from it."""
    policy = get_peft_model(model(False), LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    policy.save_pretrained(tmp_path)
    whole = load_file(tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_model.safetensors").unlink()
    torch.save({name: weight.T.contiguous().T for name, weight in whole.items()}, tmp_path / "adapter_model.bin")
    assert problems(tmp_path)[0].startswith("adapter_model.bin has weights as a pickle")
    adapter_as_safetensors(tmp_path)
    found = load_file(tmp_path / "adapter_model.safetensors")
    assert problems(tmp_path) == [] and whole.keys() == found.keys()
    assert all(torch.equal(whole[name], found[name]) for name in whole)
    adapter_as_safetensors(tmp_path)
    assert not (tmp_path / "adapter_model.bin").exists()
