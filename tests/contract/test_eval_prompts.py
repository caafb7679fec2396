"""Prompts of an evaluation are made by the code that makes those of training."""

import pytest

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.eval.prompts import PromptForm, render
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
    (prompt,) = render([Question("id", "What is {1} + 1?", "2")], form, models["chat"])
    assert (prompt.key, prompt.text, prompt.label) == ("id", FORMS[form], "2")


def test_a_tokenizer_without_chat_template_is_named(models):
    with pytest.raises(UsageError, match="plain"):
        render([Question("id", "1+1?", "2")], PromptForm("{question}", True), models["plain"])
