"""Compare a model's tokenizer with the prompts as the model will read them.

model_check.py refuses what cannot run. Most of what is found here runs, and trains something else than was meant: it is
a warning. The tokenizer and the prompts are given as the model gets them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from openrlhf_ebpo.command import one_line
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.extension import models_trusted

MAX_TOKEN_CHARS = 60
MAX_ERROR_CHARS = 300
MAX_TEXTS = 256  # about so many are compared by their tokens: a mistake in the form of one prompt is mostly in all


class Flags(NamedTuple):
    """The names that a command has for them. length: of prompt and response together."""

    length: str
    template: str


TRAINING = Flags("--data.max_len", "--data.input_template")
EVALUATION = Flags("--max_model_len", "--template")


@dataclass(frozen=True)
class Prompting:
    """Describe how a model is prompted.

    texts: prompts, as it gets them, or an example. lengths: of all prompts, in tokens. chat_template: whether
    they were put into it. max_prompt_tokens: a longer prompt loses its beginning.
    """

    texts: Sequence[str]
    lengths: Sequence[int]
    chat_template: bool
    max_prompt_tokens: int


def fit_warnings(model: str, tokenizer, prompting: Prompting, flags: Flags) -> list[str]:
    """Warn of what does not go together, each with what to do. Loads the model's configuration, no weights.

    tokenizer: as training sets it up, a processor if the model also sees.

    Raises:
        UsageError: the prompts have tokens that the model does not.
    """
    return or_warning("the prompts", lambda: mismatches(model, tokenizer, prompting, flags))


def or_warning(prompts: str, check: Callable[[], list[str]]) -> list[str]:
    """Return the check's lines, or one that says why it failed: the next reader of that file reports it in full.

    Raises:
        UsageError: the check's own.
    """
    try:
        return check()
    except UsageError:
        raise
    except Exception as error:  # numbers and words of other people's files: any exception, with their text in it
        cause = one_line(f"{type(error).__name__}: {error}", MAX_ERROR_CHARS)
        return [f"warning: {prompts} were not looked at: {cause}"]


def mismatches(model: str, tokenizer, prompting: Prompting, flags: Flags) -> list[str]:
    from transformers import AutoConfig

    config, tokenizer = AutoConfig.from_pretrained(model, trust_remote_code=models_trusted()), text_tokenizer(tokenizer)
    tokens = [token_ids(tokenizer, text) for text in prompting.texts[:: len(prompting.texts) // MAX_TEXTS or 1]]
    size = getattr(config.get_text_config(), "vocab_size", None)
    if beyond := [token for token in itertools.chain(*tokens) if size and token >= size]:
        raise UsageError(
            f"{model}: {_describe(tokenizer, beyond[0])} of the prompts has the id {beyond[0]}, and the model {size} "
            "embeddings: take the tokenizer that the model was trained with, or resize the embeddings"
        )
    found = [
        *_begin(tokenizer, prompting, tokens, flags),
        *_end(tokenizer, model, config),
        *truncation_warnings(prompting.lengths, prompting.max_prompt_tokens, flags),
    ]
    return [f"warning: {model}: {each}" for each in found]


def token_ids(tokenizer, text: str, add_special_tokens: bool = False) -> list[int]:
    return text_tokenizer(tokenizer)(text, add_special_tokens=add_special_tokens)["input_ids"]


def text_tokenizer(tokenizer):
    """Return the tokenizer of a processor: upstream loads one for a model that also sees."""
    return tokenizer.tokenizer if hasattr(tokenizer, "image_processor") else tokenizer


def _describe(tokenizer, token: int) -> str:
    """Show a token: whoever made the tokenizer chose its characters."""
    return f"{tokenizer.convert_ids_to_tokens(token)!r:.{MAX_TOKEN_CHARS}} ({token})"


def _begin(tokenizer, prompting: Prompting, tokens: Sequence[Sequence[int]], flags: Flags) -> Iterator[str]:
    """Compare with the special tokens that the tokenizer puts before every text."""
    added = (key for key, token in tokenizer.added_tokens_decoder.items() if token.special)
    special = {*tokenizer.all_special_ids, *added}
    with_them, bare = (token_ids(tokenizer, "a", add) for add in (True, False))
    before = len(with_them) - len(bare)
    put = with_them[:before] if with_them[before:] == bare else with_them  # there may be some behind the text too
    put = tuple(itertools.takewhile(special.__contains__, put))
    if without := sum(tuple(each[: len(put)]) != put for each in tokens):
        text = f"{''.join(tokenizer.convert_ids_to_tokens(list(put)))!r:.{MAX_TOKEN_CHARS}}"
        place = "of the chat template" if prompting.chat_template else f"of every prompt, or of {flags.template}"
        them = "it" if len(put) == 1 else "them"
        lacking = f"{without} of {len(tokens)} prompts lack {them}"
        if not prompting.lengths:
            lacking = f"an example of a prompt (the data set is not on this machine) lacks {them}"
        yield (
            f"its tokenizer begins every text with {' '.join(_describe(tokenizer, each) for each in put)}, and "
            f"{lacking}: the model has been trained on texts that begin so. Write {text} at the beginning {place}"
        )


def _ids(value: int | Iterable[int] | None) -> frozenset[int]:
    values = [value] if isinstance(value, int) else value or ()
    return frozenset(each for each in values if type(each) is int)


def _end(tokenizer, model: str, config) -> Iterator[str]:
    """Compare with the end tokens of config.json and generation_config.json."""
    from transformers import GenerationConfig

    try:
        generation = GenerationConfig.from_pretrained(model)
    except OSError:  # as vLLM does without a generation_config.json
        generation = GenerationConfig.from_model_config(config)
    configured = _ids(generation.eos_token_id) | _ids(getattr(config.get_text_config(), "eos_token_id", None))
    end = tokenizer.eos_token_id
    others = " or ".join(_describe(tokenizer, each) for each in sorted(configured))
    if end is None:
        stops = f"only at {others}" if others else "nowhere, and every one is cut"
        yield f"its tokenizer has no end token, and responses end {stops}. Set eos_token in tokenizer_config.json"
    elif configured and end not in configured:
        yield (
            f"its tokenizer's end token is {_describe(tokenizer, end)}, and that of config.json or "
            f"generation_config.json {others}: responses may continue after their end. Set eos_token in "
            "tokenizer_config.json, or eos_token_id in the other two, to the token that the model was trained to end "
            "with"
        )


def truncation_warnings(lengths: Sequence[int], max_prompt_tokens: int, flags: Flags, of: str = "") -> Iterator[str]:
    """Warn of prompts that lose their beginning. of: which prompts, if they are not those of the training."""
    if longer := [length for length in lengths if length > max_prompt_tokens]:
        yield (
            f"{len(longer)} of {len(lengths)} prompts{of} are longer than the {max_prompt_tokens} tokens that "
            f"{flags.length} leaves for them, and lose their beginning; the longest has {max(longer)}. Raise "
            f"{flags.length} by {max(longer) - max_prompt_tokens}, or leave such prompts out"
        )
