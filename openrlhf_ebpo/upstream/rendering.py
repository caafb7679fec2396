"""Prompts and tokenizer as training gives them to the model, in every process: upstream's own templates and tokenizer,
with --data.template_kwargs."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from openrlhf_ebpo.chat_template import Kwargs, bind, parse_kwargs, values
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.rewards import special_tokens
from openrlhf_ebpo.upstream.tokenizer_fit import text_tokenizer

logger = logging.getLogger(__name__)


def tokenizer_of(model: str, use_fast: bool = True, template_kwargs: Kwargs = ()):
    """Return the tokenizer as training sets it up; cached per process."""
    return _load_tokenizer(model, use_fast, template_kwargs)


@functools.cache
def _load_tokenizer(model: str, use_fast: bool, template_kwargs: Kwargs):
    from openrlhf.utils.utils import get_tokenizer

    return bind(get_tokenizer(model, None, "left", use_fast=use_fast), values(template_kwargs))


def with_template_kwargs(original):
    """Wraps get_tokenizer, which gives training and warm start the tokenizer that renders their data sets."""

    @functools.wraps(original)
    def get_tokenizer(pretrain, model, padding_side="left", strategy=None, *args, **kwargs):
        tokenizer = original(pretrain, model, padding_side, strategy, *args, **kwargs)
        data = getattr(getattr(strategy, "args", None), "data", None)
        return bind(tokenizer, values(parse_kwargs(getattr(data, "template_kwargs", None))))

    return get_tokenizer


class TokenizerByReference:
    """Arrives in another process as `tokenizer_of(*settings)`: one of 150,000 tokens is 5 MB and takes 0.2 s to pickle
    and 0.4 s to unpickle, for every prompt."""

    def __init__(self, *settings):
        self.settings = settings

    def __reduce__(self):
        return tokenizer_of, self.settings


@dataclass(frozen=True)
class Prompt:
    """text: as the model gets it, with any template applied. key: identifies it; label: for the reward."""

    key: str | int
    text: str
    label: str = ""


def render_prompts(
    rows: Iterable[dict],
    model: str,
    apply_chat_template: bool = False,
    input_template: str | None = None,
    template_kwargs: Mapping | None = None,
) -> list[Prompt]:
    """Render rows with id, prompt and label as training would give them to the model.

    template_kwargs: further arguments of the chat template, by name.

    Raises:
        UsageError: the tokenizer or its chat template does not take the prompts, or one is a chat that ends with the
            assistant's turn.
    """
    from openrlhf.datasets.prompts_dataset import preprocess_data

    rows = list(rows)
    for row in rows:
        last = row["prompt"][-1] if isinstance(row["prompt"], list) and row["prompt"] else None
        if isinstance(last, dict) and last.get("role") == "assistant":
            raise UsageError(
                f"row {row['id']}: the chat ends with the assistant's turn, and a prompt ends with the user's. Name a "
                "column of prompts, or take the last turn off"
            )
    try:
        tokenizer = tokenizer_of(model)
        template = tokenizer.apply_chat_template if apply_chat_template else None
        if template and template_kwargs:
            template = functools.partial(template, **template_kwargs)
        forms = [(row["id"], *preprocess_data(row, input_template, "prompt", "label", template)) for row in rows]
    except Exception as error:  # a chat template is Jinja code of the model's authors: any exception
        raise UsageError(f"the prompts cannot be put into the form that {model} reads: {error}") from error
    return [Prompt(key, text, label) for key, text, label in forms]


def is_text(prompt, input_template: str | None) -> bool:
    """Return True for a prompt that needs no chat template: text, or a number that `input_template` makes text of."""
    return isinstance(prompt, str) or (bool(input_template) and not isinstance(prompt, (list, dict, type(None))))


def announce_special_tokens(model: str) -> None:
    """Let the rewards know those that responses end with. Nothing where the tokenizer cannot be read: what needs it
    says why."""
    os.environ.pop(special_tokens.VARIABLE, None)
    try:
        special_tokens.announce(text_tokenizer(tokenizer_of(model)))
    except Exception as error:  # it may be code of the model's authors
        logger.warning("the rewards do not know the special tokens of %s: %.200r", model, error)


def prompt_lengths(prompts: list[Prompt], model: str) -> list[int]:
    """Count the tokens of each prompt as the rollout does."""
    tokens = tokenizer_of(model)(text=[prompt.text for prompt in prompts], add_special_tokens=False)["input_ids"]
    return [len(ids) for ids in tokens]
