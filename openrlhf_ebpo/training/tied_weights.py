"""Tied weights, which embedding and head share, are exported once, as transformers itself saves them."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator


def tied_once(original):
    """Replacement of DeepspeedStrategy.save_model: without the copies that its clones make of tied weights."""

    @functools.wraps(original)
    def save_model(self, model, tokenizer, output_dir, **kwargs):
        with saved_without(self._unwrap_model(model)):
            return original(self, model, tokenizer, output_dir, **kwargs)

    return save_model


@contextlib.contextmanager
def saved_without(model) -> Iterator[None]:
    """Inside, `model.save_pretrained` leaves the copies of tied weights out of the weights that it is given."""
    copies, save = tied_copies(model), model.save_pretrained

    def save_pretrained(*args, state_dict=None, **kwargs):
        if state_dict is not None:
            kwargs["state_dict"] = {name: weight for name, weight in state_dict.items() if name not in copies}
        return save(*args, **kwargs)

    model.save_pretrained = save_pretrained
    try:
        yield
    finally:
        del model.save_pretrained


def tied_copies(model) -> set[str]:
    """Names of the weights that are the same parameter as one before, and that transformers ties again when it
    loads."""
    patterns = list(getattr(model, "_tied_weights_keys", None) or ())  # a list in transformers 4, a mapping in 5
    seen: set[int] = set()
    copies = set()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in seen and any(re.search(pattern, name) for pattern in patterns):
            copies.add(name)
        seen.add(id(parameter))
    return copies
