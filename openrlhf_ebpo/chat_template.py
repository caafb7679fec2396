"""Further arguments of a tokenizer's chat template, such as enable_thinking=false: one flag of training, warm start,
`data difficulty` and `eval`."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence

from openrlhf_ebpo.errors import UsageError

RESERVED = ("conversation", "tokenize", "add_generation_prompt", "chat_template", "tools", "documents")
HELP = "further arguments of the tokenizer's chat template, such as enable_thinking=false"
ARGUMENTS = {"nargs": "+", "metavar": "NAME=JSON", "help": HELP}  # of add_argument

Kwargs = tuple[tuple[str, str], ...]


def parse_kwargs(pairs: Sequence[str] | None, flag: str = "--template_kwargs") -> Kwargs:
    """Read NAME=JSON pairs; returns (name, value as JSON), sorted, values in JSON's one spelling.

    Raises:
        UsageError: a pair is not NAME=VALUE, a name is given twice, or an argument is set by this project.
    """
    found = {}
    for pair in pairs or ():
        name, equals, text = pair.partition("=")
        try:
            value = json.dumps(json.loads(text), sort_keys=True, allow_nan=False)
        except (ValueError, RecursionError):
            equals = ""
        if not (equals and name.isidentifier()):
            raise UsageError(
                f"{flag} {pair}: write NAME=VALUE with a value as JSON has it, such as "
                "enable_thinking=false or 'effort=\"low\"'"
            )
        if name in found:
            raise UsageError(f"{flag}: {name} is given twice")
        if name in RESERVED:
            raise UsageError(f"{flag} {name}: not for you to set; the chat template gets it from here")
        found[name] = value
    return tuple(sorted(found.items()))


def set_template_kwargs(data) -> None:
    """Check --data.template_kwargs, and write its values in JSON's one spelling, in place. data: the flags --data.….

    Raises:
        UsageError: as `parse_kwargs`; or no chat template is used.
    """
    flag = "--data.template_kwargs"
    kwargs = parse_kwargs(data.template_kwargs, flag)
    check_used(kwargs, data.apply_chat_template, flag, "--data.apply_chat_template")
    data.template_kwargs = [f"{name}={value}" for name, value in kwargs] or None


def check_used(kwargs: Kwargs, uses_template: bool, flag: str, template_flag: str) -> None:
    """Raises UsageError: there are arguments, and no chat template is used."""
    if kwargs and not uses_template:
        names = ", ".join(name for name, _ in kwargs)
        raise UsageError(f"{flag} {names}: no chat template is used; add {template_flag}, or leave them out")


def values(kwargs: Kwargs | None) -> dict:
    """Return the arguments by name, from JSON."""
    return {name: json.loads(value) for name, value in kwargs or ()}


def bind(tokenizer, kwargs: Mapping | None):
    """Give a tokenizer's `apply_chat_template` these arguments, in place; returns the tokenizer."""
    if kwargs:
        tokenizer.apply_chat_template = functools.partial(tokenizer.apply_chat_template, **kwargs)
    return tokenizer
