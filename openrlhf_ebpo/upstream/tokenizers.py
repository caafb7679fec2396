"""The tokenizer of a training, in every process: as upstream sets it up, with --data.template_kwargs, loaded once."""

from __future__ import annotations

import functools

from openrlhf_ebpo.chat_template import Kwargs, bind, parse_kwargs, values


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
