"""Prompts in the form in which training gives them to the model: upstream's own templates and tokenizer."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from openrlhf_ebpo.errors import UsageError


@dataclass(frozen=True)
class Prompt:
    """text: as the model gets it, with any template applied. key: identifies it; label: for the reward."""

    key: str | int
    text: str
    label: str = ""


def render(
    rows: Iterable[dict],
    model: str,
    apply_chat_template: bool = False,
    input_template: str | None = None,
    template_kwargs: Mapping | None = None,
) -> list[Prompt]:
    """Rows with id, prompt and label as training would give them to the model.

    template_kwargs: what the chat template is given besides; training gives it nothing.

    Raises:
        UsageError: the tokenizer or its chat template does not take the prompts.
    """
    from openrlhf.datasets.prompts_dataset import preprocess_data

    try:
        template = tokenizer_of(model).apply_chat_template if apply_chat_template else None
        if template and template_kwargs:
            template = functools.partial(template, **template_kwargs)
        return [Prompt(row["id"], *preprocess_data(row, input_template, "prompt", "label", template)) for row in rows]
    except Exception as error:  # a chat template is Jinja code of the model's authors: any exception
        raise UsageError(f"the prompts cannot be put into the form that {model} reads: {error}") from error


def prompt_lengths(prompts: list[Prompt], model: str) -> list[int]:
    """Tokens of each prompt, counted as the rollout does."""
    tokens = tokenizer_of(model)(text=[prompt.text for prompt in prompts], add_special_tokens=False)["input_ids"]
    return [len(ids) for ids in tokens]


@functools.cache
def tokenizer_of(model: str, use_fast: bool = True):
    """The tokenizer as training sets it up; cached per process."""
    from openrlhf.utils.utils import get_tokenizer

    return get_tokenizer(model, None, "left", use_fast=use_fast)


class TokenizerByReference:
    """Arrives in another process as `tokenizer_of(*settings)`: one of 150,000 tokens is 5 MB and takes 0.2 s to pickle
    and 0.4 s to unpickle, for every prompt."""

    def __init__(self, *settings):
        self.settings = settings

    def __reduce__(self):
        return tokenizer_of, self.settings


class PromptsNameTheirTokenizer:
    """Mixin over SamplesGenerator: what goes to the rollout actors with each prompt is the tokenizer's name."""

    def _dispatch_prompts_to_vllm(self, *args, **kwargs):
        slow = [False] if self.args.data.disable_fast_tokenizer else []
        self.tokenizer = TokenizerByReference(self.args.actor.model_name_or_path, *slow)
        return super()._dispatch_prompts_to_vllm(*args, **kwargs)
