"""Leave out the tokenizer's own special tokens at the end of a response: OpenRLHF gives them to rewards, evaluation
reads responses without them. A user's reward gets them; those of this package leave them out here.

Which they are travels to the processes of the rewards in the environment: a reward function sees texts alone.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable

from openrlhf_ebpo.rewards.math.extraction import THOUGHT_TAG

VARIABLE = "OPENRLHF_EBPO_SPECIAL_TOKENS"  # JSON; Ray's workers have all variables of this beginning
KEPT = frozenset(("<answer>", "</answer>"))  # the rewards read these, and the tags of thoughts
MAX_TOKEN_CHARS = 100  # characters of a token
MAX_LIST_CHARS = 16_000  # of all: Linux has 128 KiB for a variable, which Ray also puts into a command line


def announce(tokenizer) -> None:
    """Let the processes that are started from here on know those of a text tokenizer."""
    first = (tokenizer.eos_token, tokenizer.pad_token, *tokenizer.all_special_tokens)  # most responses end with these
    rest = (token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
    os.environ[VARIABLE] = json.dumps(bounded([*first, *rest]))


def bounded(tokens: Iterable[str | None]) -> list[str]:
    """Return the tokens that are texts and not KEPT, as many as fit into the variable."""
    found, room = [], MAX_LIST_CHARS
    for token in dict.fromkeys(token.strip() for token in tokens if isinstance(token, str)):
        room -= len(json.dumps(token)) + 2
        if room < 0:
            break
        if 0 < len(token) <= MAX_TOKEN_CHARS and not (token in KEPT or THOUGHT_TAG.fullmatch(token)):
            found.append(token)
    return found


def without_end(response: str) -> str:
    """Return a response without those that it ends with, and without the white space between them."""
    tokens, end = _known(os.environ.get(VARIABLE, "")), len(response)
    while tokens:
        last = end
        while last and response[last - 1].isspace():
            last -= 1
        if not response.endswith(tokens, 0, last):
            break
        end = last - len(next(token for token in tokens if response.endswith(token, 0, last)))
    return response[:end]


@functools.lru_cache(maxsize=4)
def _known(text: str) -> tuple[str, ...]:
    """Read the list, the longest first: one may end as another does."""
    return tuple(sorted(json.loads(text), key=len, reverse=True)) if text else ()
