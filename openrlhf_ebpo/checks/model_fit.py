"""Does the model go with the prompts as it will be asked them? Warnings: all of it runs, and trains something else than was meant.

model_check.py refuses what cannot run. Here the tokenizer, the configuration and the prompts are there, as the model gets them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from openrlhf_ebpo.seams.remote_code import trusted

ASKED, REPLY = "Is 42?", "Yes 43"  # what is said in a chat template that is looked at
OTHER_END = "<another end>"  # in place of the tokenizer's
UNUSED = 0.1  # share of the embeddings without a token from which on they are no padding
LONGEST = 60  # characters of a token
EXPLAINED = 200  # of an error
LOOKED_AT = 256  # prompts; what is wrong with the form of one is mostly wrong with all


class Flags(NamedTuple):
    """What a command calls them. length: of prompt and response together."""

    add_bos: str
    chat_template: str
    length: str
    template: str


TRAINING = Flags("--data.add_bos", "--data.apply_chat_template", "--data.max_len", "--data.input_template")
EVALUATION = Flags("--add_bos", "--chat_template", "--max_model_len", "--template")
DIFFICULTY = Flags("--add_bos", "--apply_chat_template", "--max_len", "--input_template")


@dataclass(frozen=True)
class Asked:
    """How a model is asked.

    texts: the first prompts, as it gets them. lengths: of all prompts, in tokens. chat_template, add_bos: whether they were
    put into the one, and begin with the other. room: tokens that a prompt may have; what is longer loses its beginning.
    example: whether the texts stand for prompts that are elsewhere. whole: whether lengths are those of all prompts.
    """

    texts: Sequence[str]
    lengths: Sequence[int]
    chat_template: bool
    add_bos: bool
    room: int
    example: bool = False
    whole: bool = True


@dataclass(frozen=True)
class Turns:
    """What a chat template says. end: the first special token after a reply; None: it does not say. own: whether that is a token
    for turns, not the end of any text."""

    end: int | None = None
    own: bool = False


@dataclass(frozen=True)
class Model:
    """tokenizer: of its texts. special: ids of the tokens that no text has by itself. embeddings: how many; None: not known.
    configured: end tokens of its configurations. ends: where vLLM stops. begin: what its tokenizer puts before every text."""

    name: str
    tokenizer: object
    special: frozenset[int]
    embeddings: int | None
    configured: frozenset[int]
    ends: frozenset[int]
    turns: Turns
    begin: tuple[int, ...]

    def ids(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return self.tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"]

    def said(self, token: int | None) -> str:
        """A token for people: whoever made the tokenizer chose its characters."""
        return f"{self.tokenizer.convert_ids_to_tokens(token)!r:.{LONGEST}} ({token})"


def fit_warnings(model: str, tokenizer, asked: Asked, flags: Flags) -> list[str]:
    """What does not go together, each with what to do; or that it could not be looked at, which is no reason to stop. Loads
    the model's configuration, no weights.

    tokenizer: as training sets it up, a processor where the model also sees.
    """
    try:
        found = _problems(read_model(model, tokenizer), asked, flags)
    except Exception as error:  # numbers and words of other people's files: any exception, with their text in it
        said = f"{str(error)!r:.{EXPLAINED}}"
        found = [f"whether it goes with the prompts could not be looked at ({type(error).__name__}: {said})"]
    return [f"warning: {model}: {warning}" for warning in found]


def _problems(known: Model, asked: Asked, flags: Flags) -> list[str]:
    tokens = [known.ids(text) for text in asked.texts[:LOOKED_AT]]
    return [
        *_begin(known, asked, tokens, flags),
        *_end(known, asked, flags),
        *_embeddings(known, tokens),
        *_chat_template(known, asked, tokens, flags),
        *_cut(asked, flags),
    ]


def read_model(name: str, tokenizer) -> Model:
    from transformers import AutoConfig, GenerationConfig

    config = AutoConfig.from_pretrained(name, trust_remote_code=trusted())
    try:
        generation = GenerationConfig.from_pretrained(name)
    except OSError:  # as vLLM does without a generation_config.json
        generation = GenerationConfig.from_model_config(config)
    text = config.get_text_config()
    inner = tokenizer.tokenizer if hasattr(tokenizer, "image_processor") else tokenizer
    added = (key for key, token in inner.added_tokens_decoder.items() if token.special)
    special = frozenset([*inner.all_special_ids, *added])
    ends = _ids(generation.eos_token_id)
    return Model(
        name,
        inner,
        special,
        embeddings=getattr(text, "vocab_size", None),
        configured=ends | _ids(getattr(text, "eos_token_id", None)),
        ends=ends | _ids(inner.eos_token_id),
        turns=turns(tokenizer, inner, special),
        begin=begin_of(inner, special),
    )


def _ids(value: int | Iterable[int] | None) -> frozenset[int]:
    values = [value] if isinstance(value, int) else value or ()
    return frozenset(each for each in values if type(each) is int)


def turns(tokenizer, inner, special: frozenset[int]) -> Turns:
    """What its chat template says of turns; nothing where there is none, or it cannot be used."""
    if not getattr(tokenizer, "chat_template", None):
        return Turns()
    try:
        replied = _chat(tokenizer)
    except Exception:  # Jinja code of the model's authors; the prompts themselves have been put into it
        return Turns()
    end = _first_special(inner, special, _between(replied, REPLY))
    try:
        other = _chat(tokenizer, eos_token=OTHER_END)
    except Exception:
        return Turns(end)
    # what stands behind a reply alone, or is the tokenizer's end token whatever that is, may end any text of a base model
    ends = (_first_special(inner, special, text) for text in (_between(other, ASKED, REPLY), _between(other, REPLY)))
    return Turns(end, own=end is not None and all(each == end for each in ends))


def _chat(tokenizer, **names: str) -> str:
    messages = [{"role": "user", "content": ASKED}, {"role": "assistant", "content": REPLY}]
    return tokenizer.apply_chat_template(messages, tokenize=False, **names)


def _between(text: str, before: str, behind: str | None = None) -> str:
    """Nothing where one is missing."""
    _, found, rest = text.rpartition(before)
    if not found or (behind and behind not in rest):
        return ""
    return rest.partition(behind)[0] if behind else rest


def _first_special(inner, special: frozenset[int], text: str) -> int | None:
    return next((key for key in inner(text, add_special_tokens=False)["input_ids"] if key in special), None)


def begin_of(inner, special: frozenset[int]) -> tuple[int, ...]:
    whole, bare = (inner("a", add_special_tokens=add)["input_ids"] for add in (True, False))
    before = len(whole) - len(bare)
    put = whole[:before] if whole[before:] == bare else whole  # there may be something behind the text too
    return tuple(itertools.takewhile(special.__contains__, put))


def _begin(model: Model, asked: Asked, tokens: Sequence[Sequence[int]], flags: Flags) -> list[str]:
    begin, found = model.tokenizer.bos_token_id, []
    size = len(model.begin)
    without = sum(tuple(each[:size]) != model.begin for each in tokens)
    if without:
        them = "it" if size == 1 else "them"
        lacking = f"{without} of {len(tokens)} prompts lack {them}"
        if asked.example:
            lacking = f"a prompt made up as an example lacks {them} (the data set is not on this machine)"
        found.append(
            f"its tokenizer begins every text with {' '.join(map(model.said, model.begin))}, and {lacking}: the model has "
            f"been trained on texts that begin so. {_begin_remedy(model, asked, flags)}"
        )
    if asked.add_bos and tokens and begin is not None and model.begin[:1] != (begin,):
        found.append(
            f"{flags.add_bos} puts {model.said(begin)} before the prompts, and its tokenizer does not do so by itself: "
            "leave the flag out, unless the model was trained with it"
        )
    return found


def _begin_remedy(model: Model, asked: Asked, flags: Flags) -> str:
    if model.begin == (model.tokenizer.bos_token_id,):
        return f"Give {flags.add_bos}"
    text = "".join(model.tokenizer.convert_ids_to_tokens(list(model.begin)))
    place = "of the chat template" if asked.chat_template else f"of every prompt, or of {flags.template}"
    return f"{flags.add_bos} cannot add what is not the tokenizer's bos_token: write {text!r:.{LONGEST}} at the beginning {place}"


def _end(model: Model, asked: Asked, flags: Flags) -> list[str]:
    end = model.tokenizer.eos_token_id
    said = " or ".join(map(model.said, sorted(model.configured)))
    found = []
    if end is None:
        stops = f"only at {said}" if said else "nowhere, and every one is cut"
        found.append(
            f"its tokenizer has no end token, and responses end {stops}. Set eos_token in tokenizer_config.json"
        )
    elif model.configured and end not in model.configured:
        found.append(
            f"its tokenizer's end token is {model.said(end)}, and that of config.json or generation_config.json {said}: "
            "responses may go on after their end. Set eos_token in tokenizer_config.json, or eos_token_id in the other two, "
            "to the token that the model was trained to end with"
        )
    if asked.chat_template and model.turns.end is not None and model.turns.end not in model.ends:
        found.append(
            f"its chat template ends a turn with {model.said(model.turns.end)}, at which generation does not stop: responses go "
            f"on after their end. Of an instruct model, add {model.turns.end} to eos_token_id in generation_config.json; a base "
            f"model takes the prompt as it is, without {flags.chat_template}"
        )
    return found


def _embeddings(model: Model, tokens: Sequence[Sequence[int]]) -> list[str]:
    """More embeddings than tokens are padding, as most models have, unless they are many."""
    size = model.embeddings
    if not size:
        return []
    own = (model.tokenizer.bos_token_id, model.tokenizer.eos_token_id, model.tokenizer.pad_token_id)
    used = {token for each in tokens for token in each} | {token for token in own if token is not None}
    if beyond := sorted(token for token in used if token >= size):
        return [
            f"{model.said(beyond[0])} has the id {beyond[0]}, and the model {size} embeddings: generation or training ends "
            "there with an error. Take the tokenizer that the model was trained with"
        ]
    unused = size - len(model.tokenizer)
    if unused > UNUSED * size:
        return [
            f"{unused} of its {size} embeddings have no token: that is more than padding. Is it the tokenizer that the model "
            "was trained with?"
        ]
    return []


def _chat_template(model: Model, asked: Asked, tokens: Sequence[Sequence[int]], flags: Flags) -> list[str]:
    """A base model may bring a chat template too, but does not stop at a token that only ends turns."""
    instruct = model.turns.own and model.turns.end in model.ends
    if asked.chat_template or asked.example or not instruct:
        return []
    inner = model.tokenizer
    markers = model.special - {inner.bos_token_id, inner.unk_token_id, inner.pad_token_id} | {model.turns.end}
    if 2 * sum(not markers.isdisjoint(each) for each in tokens) > len(tokens):
        return []
    return [
        f"it is an instruct model (generation stops at {model.said(model.turns.end)}, which ends a turn in its chat template), "
        f"and the prompts are not in the chat template: give {flags.chat_template}"
    ]


def _cut(asked: Asked, flags: Flags) -> list[str]:
    return cut(asked.lengths, asked.room, flags, asked.whole)


def cut(lengths: Sequence[int], room: int, flags: Flags, whole: bool = True, of: str = "") -> list[str]:
    """of: which prompts, where they are not those that are meant anyway."""
    longer, longest = sum(length > room for length in lengths), max(lengths, default=0)
    if not longer:
        return []
    total = f"{len(lengths)}" if whole else f"the first {len(lengths)}"
    return [
        f"{longer} of {total} prompts{of} are longer than the {room} tokens that {flags.length} leaves beside the "
        f"response, and lose their beginning; the longest has {longest}. Raise {flags.length} by {longest - room}, or "
        "leave such prompts out"
    ]
