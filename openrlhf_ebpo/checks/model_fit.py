"""Does the model go with the prompts as it will be asked them? Warnings: all of it runs, and trains something else than was meant.

model_check.py refuses what cannot run. Here the tokenizer, the configuration and the prompts are there, as the model gets them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from openrlhf_ebpo.seams.remote_code import trusted

REPLY = "Yes 42"  # what an assistant says in `turn_end`
UNUSED = 0.1  # share of the embeddings without a token from which on they are no padding
LONGEST = 60  # characters of a token
EXPLAINED = 200  # of an error
LOOKED_AT = 256  # prompts; what is wrong with the form of one is mostly wrong with all


class Flags(NamedTuple):
    """What a command calls them. length: of prompt and response together."""

    add_bos: str
    chat_template: str
    length: str


TRAINING = Flags("--data.add_bos", "--data.apply_chat_template", "--data.max_len")
EVALUATION = Flags("--add_bos", "--chat_template", "--max_model_len")
DIFFICULTY = Flags("--add_bos", "--apply_chat_template", "--max_len")


@dataclass(frozen=True)
class Asked:
    """How a model is asked.

    texts: the first prompts, as it gets them. lengths: of all prompts, in tokens. chat_template, add_bos: whether they were
    put into the one, and begin with the other. room: tokens that a prompt may have; what is longer loses its beginning.
    """

    texts: Sequence[str]
    lengths: Sequence[int]
    chat_template: bool
    add_bos: bool
    room: int


@dataclass(frozen=True)
class Model:
    """tokenizer: of its texts. special: ids of the tokens that no text has by itself. embeddings: how many; None: not known.
    configured: end tokens of its configurations. ends: where vLLM stops. turn_end: what ends a reply in its chat template."""

    name: str
    tokenizer: object
    special: frozenset[int]
    embeddings: int | None
    configured: frozenset[int]
    ends: frozenset[int]
    turn_end: int | None

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
        turn_end=turn_end(tokenizer, inner, special),
    )


def _ids(value: int | Iterable[int] | None) -> frozenset[int]:
    values = [value] if isinstance(value, int) else value or ()
    return frozenset(each for each in values if type(each) is int)


def turn_end(tokenizer, inner, special: frozenset[int]) -> int | None:
    """The first special token after a reply. None: no chat template, or it does not say."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": REPLY}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception:  # Jinja code of the model's authors; the prompts themselves have been put into it
        return None
    after = text.rpartition(REPLY)[2] if REPLY in text else ""
    return next((key for key in inner(after, add_special_tokens=False)["input_ids"] if key in special), None)


def _begin(model: Model, asked: Asked, tokens: Sequence[Sequence[int]], flags: Flags) -> list[str]:
    begin = model.tokenizer.bos_token_id
    if begin is None or not tokens:
        return []
    its_own = model.ids("a", add_special_tokens=True)[:1] == [begin]
    without = sum(each[:1] != [begin] for each in tokens)
    if its_own and without:
        return [
            f"its tokenizer begins every text with {model.said(begin)}, and {without} of {len(tokens)} prompts lack it: the "
            f"model has been trained on texts that begin so. Give {flags.add_bos}"
        ]
    if asked.add_bos and not its_own:
        return [
            f"{flags.add_bos} puts {model.said(begin)} before the prompts, and its tokenizer does not do so by itself: "
            "leave the flag out, unless the model was trained with it"
        ]
    return []


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
    if asked.chat_template and model.turn_end is not None and model.turn_end not in model.ends:
        found.append(
            f"its chat template ends a turn with {model.said(model.turn_end)}, at which generation does not stop: responses go "
            f"on after their end. Of an instruct model, add {model.turn_end} to eos_token_id in generation_config.json; a base "
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
    """A base model may bring a chat template too, but does not stop where that ends a turn."""
    instruct = model.turn_end is not None and model.turn_end in model.ends
    markers = model.special - {model.tokenizer.bos_token_id}
    if asked.chat_template or not instruct or any(markers.intersection(each) for each in tokens):
        return []
    return [
        f"it is an instruct model (generation stops at {model.said(model.turn_end)}, which ends a turn in its chat template), and "
        f"the prompts are not in the chat template: give {flags.chat_template}"
    ]


def _cut(asked: Asked, flags: Flags) -> list[str]:
    cut, longest = sum(length > asked.room for length in asked.lengths), max(asked.lengths, default=0)
    if not cut:
        return []
    return [
        f"{cut} of {len(asked.lengths)} prompts are longer than the {asked.room} tokens that {flags.length} leaves beside the "
        f"response, and lose their beginning; the longest has {longest}. Raise {flags.length} by {longest - asked.room}, or "
        "leave such prompts out"
    ]
