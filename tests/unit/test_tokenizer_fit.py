"""Warnings about models that would train something else than was meant; none for a model that fits."""

import re

import pytest
import tiny_tokenizers
from tiny_tokenizers import CHAT, CHAT_WITH_BEGIN, save, save_gemma, save_llama

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.upstream.tokenizer_fit import EVALUATION, TRAINING, Prompting, fit_warnings

TEXTS = ["1 + 1 =", "a b"]


def asked(model: str, texts=TEXTS, chat=False, begin="", room=64, flags=TRAINING) -> list[str]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    if chat:
        texts = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
            )
            for text in texts
        ]
    texts = [begin + text for text in texts]
    lengths = [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
    found = fit_warnings(model, tokenizer, Prompting(texts, lengths, chat, room), flags)
    assert all(line.startswith("warning: ") and line.isprintable() for line in found)
    return [line.removeprefix(f"warning: {model}: ") for line in found]


def test_a_model_that_fits_is_not_warned_of(tmp_path):
    """Base and instruct, with and without a begin token, one or several end tokens, padded embeddings."""
    assert asked(save(tmp_path / "base", begins=False)) == []
    for make, begin in ((save, "<bos>"), (save_llama, "<s>"), (save_gemma, "<bos>")):
        assert asked(make(tmp_path / make.__name__), begin=begin) == []
    qwen = save(
        tmp_path / "qwen", begins=False, template=CHAT, end="<turn_end>", ends=2, generation={"eos_token_id": [2, 1]}
    )
    assert asked(qwen, chat=True) == []
    llama = save(tmp_path / "llama3", template=CHAT_WITH_BEGIN, ends=[1, 2])
    assert asked(llama, chat=True) == []
    assert asked(save(tmp_path / "base_with_template", begins=False, template=CHAT)) == [], "base models bring one too"
    assert asked(save(tmp_path / "padded", begins=False, vocab_size=104)) == []


def test_the_quickstarts_model_fits(tmp_path):
    from openrlhf_ebpo.quickstart import tiny_model

    tiny_model.build(tmp_path, TEXTS, hidden_size=32, intermediate_size=64)
    assert asked(str(tmp_path)) == []


@pytest.mark.parametrize("make", [save, save_llama, save_gemma])
def test_a_begin_token_that_the_prompts_lack(make, tmp_path):
    (found,) = asked(make(tmp_path))
    token, number = {save_llama: ("'<s>'", 1), save_gemma: ("'<bos>'", 2)}.get(make, ("'<bos>'", 0))
    assert f"begins every text with {token} ({number}), and 2 of 2 prompts lack it" in found
    remedy = f"Write {token} at the beginning of every prompt, or of "
    for flags, template in ((TRAINING, "--data.input_template"), (EVALUATION, "--template")):
        assert remedy + template in asked(str(tmp_path), flags=flags)[0]


def test_a_chat_template_that_does_not_write_the_begin_token(tmp_path):
    (found,) = asked(save(tmp_path, template=CHAT, ends=[1, 2]), chat=True)
    assert "2 of 2 prompts" in found and "Write '<bos>' at the beginning of the chat template" in found


def test_end_tokens_that_differ(tmp_path):
    """As the tokenizer that transformers makes of SmolLM2's GGUF."""
    (found,) = asked(save(tmp_path, begins=False, end="<bos>", ends=2))
    assert "end token is '<bos>' (0)" in found and "'<turn_end>' (2)" in found and "eos_token" in found
    assert asked(save(tmp_path / "b", begins=False, ends=2, generation={"eos_token_id": [2, 1]})) == []


def test_a_tokenizer_without_end_token(tmp_path):
    (found,) = asked(save(tmp_path, begins=False, end=None))
    assert "no end token" in found and "only at '<eos>' (1)" in found
    (found,) = asked(save(tmp_path / "none", begins=False, end=None, ends=None))
    assert "nowhere" in found


@pytest.mark.parametrize(("begin", "put"), [(None, "[gMASK] <sop>"), ("<bos>", "<eos>")])
def test_what_a_tokenizer_puts_before_texts_and_is_not_its_begin_token(begin, put, tmp_path):
    """As GLM's and XGLM's."""
    model = save(tmp_path, begin=begin, special=(*tiny_tokenizers.SPECIAL, "[gMASK]", "<sop>"), put=put)
    (found,) = asked(model)
    text = put.replace(" ", "")
    assert "2 of 2 prompts lack" in found
    assert f"Write '{text}' at the beginning of every prompt, or of --data.input_template" in found
    assert "or of --template" in asked(model, flags=EVALUATION)[0]
    assert asked(model, [f"{text}1 + 1 ="]) == []


def test_tokens_without_an_embedding_are_refused_where_they_are_used(tmp_path):
    special = (*tiny_tokenizers.SPECIAL, *(f"<image {i}>" for i in range(3)))
    tokens = len(special) + 1 + len(tiny_tokenizers.CHARACTERS)
    model = save(tmp_path, begins=False, vocab_size=tokens - 1)
    assert asked(model) == [], "a token that stands for other media, at the end"
    with pytest.raises(UsageError, match="10 embeddings"):
        asked(save(tmp_path / "used", begins=False, vocab_size=10))


def test_prompts_that_are_cut(tmp_path):
    (found,) = asked(save(tmp_path, begins=False), ["1", "1 + 1 = ", "12 + 12 ="], room=4)
    assert [int(number) for number in re.findall(r"\d+", found)] == [2, 3, 4, 9, 5] and "--data.max_len" in found


def test_a_token_that_is_meant_for_the_terminal_is_shown_escaped(tmp_path):
    evil = "\x1b[2J\u202e<bos>"
    (found,) = asked(save(tmp_path, begin=evil, special=(evil, "<eos>", "<turn_end>")))
    assert "\\x1b[2J\\u202e<bos>" in found


@pytest.mark.parametrize("ends", [-1, [2, 10**30]])
def test_a_configuration_that_cannot_be_looked_at_is_said_and_stops_nothing(ends, tmp_path):
    """Numbers that no token can have; `data difficulty` and `eval` continue."""
    (found,) = asked(save(tmp_path, begins=False, generation={"eos_token_id": ends}))
    assert "OverflowError: " in found


def test_a_configuration_whose_error_is_meant_for_the_terminal(tmp_path):
    model = save(tmp_path, begins=False)
    (tmp_path / "config.json").write_text('{"model_type": "\\u001b[2J\\u202e"}')
    (found,) = fit_warnings(model, good_tokenizer(tmp_path / "t"), Prompting(["1"], [1], False, 64), TRAINING)
    assert "ValueError: " in found and found.isprintable()


def good_tokenizer(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(save(folder, begins=False))
