"""Prompts of an evaluation are made by the code that makes those of training, and vLLM samples as its protocol says."""

import pytest

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.eval import protocols
from openrlhf_ebpo.eval.prompts import PromptForm, render_questions
from openrlhf_ebpo.eval.tasks import Question

CHAT = (
    "{% if effort %}({{ effort }}){% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor "
    "%}<assistant>"
)
FORMS = {
    PromptForm("{question}"): "What is {1} + 1?",
    PromptForm("Q: {question}", input_template="[{}]"): "[Q: What is {1} + 1?]",
    PromptForm("Q: {question}", chat_template=True): "<user>Q: What is {1} + 1?<assistant>",
    PromptForm("{question}", True, "Be"): "<system>Be<user>What is {1} + 1?<assistant>",
    PromptForm("{question}", True, template_kwargs=(("effort", '"low"'),)): "(low)<user>What is {1} + 1?<assistant>",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    from openrlhf_ebpo.quickstart.tiny_model import build_tokenizer

    folder = tmp_path_factory.mktemp("tokenizers")
    for name, template in (("chat", CHAT), ("plain", None)):
        tokenizer = build_tokenizer(["<abcdefghijklmnopqrstuvwxyz>0123456789+="])
        tokenizer.chat_template = template
        tokenizer.save_pretrained(folder / name)
        (folder / name / "config.json").write_text('{"model_type": "qwen3"}')
    return {name: str(folder / name) for name in ("chat", "plain")}


@pytest.mark.parametrize(
    "form", FORMS, ids=["raw", "input template", "chat template", "system message", "template arguments"]
)
def test_prompts_are_rendered_as_in_training(models, form):
    (prompt,) = render_questions([Question("id", "What is {1} + 1?", "2")], form, models["chat"])
    assert (prompt.key, prompt.text, prompt.label) == ("id", FORMS[form], "2")


def test_a_tokenizer_without_chat_template_is_named(models):
    with pytest.raises(UsageError, match="plain"):
        render_questions([Question("id", "1+1?", "2")], PromptForm("{question}", True), models["plain"])


def test_vllm_samples_as_the_protocol_says_whatever_the_models_generation_config_asks_for():
    """Of generation_config.json the ends of a response alone count."""
    from vllm import SamplingParams, sampling_params

    assert sampling_params._MAX_TEMP == protocols.COLDEST
    params, plain = (SamplingParams(temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0, max_tokens=9) for _ in range(2))
    asked = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05, "max_new_tokens": 5}
    params.update_from_generation_config({**asked, "eos_token_id": [1, 2]}, 1)
    for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens"):
        assert getattr(params, name) == getattr(plain, name), name
    assert params.stop_token_ids == [2] and plain.repetition_penalty == 1.0
