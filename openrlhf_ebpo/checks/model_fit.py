"""Check that the model goes with the prompts as it will read them. Warnings: all of it runs, and trains something else than was meant.

model_check.py refuses what cannot run. Here the tokenizer, the configuration and the prompts are there, as the model gets them.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from openrlhf_ebpo.checks.model_check import model_folder
from openrlhf_ebpo.checks.prompt_rows import Seen, read_prompts, render_rows
from openrlhf_ebpo.engines.rendering import text_tokenizer, token_ids, tokenizer_of
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.seams.remote_code import trusted

MAX_TOKEN_CHARS = 60
MAX_ERROR_CHARS = 300
MAX_TEXTS = 256  # whose tokens are read: a mistake in the form of one prompt is mostly in all


class Flags(NamedTuple):
    """The names that a command has for them. length: of prompt and response together."""

    add_bos: str
    length: str
    template: str


TRAINING = Flags("--data.add_bos", "--data.max_len", "--data.input_template")
EVALUATION = Flags("--add_bos", "--max_model_len", "--template")
DIFFICULTY = Flags("--add_bos", "--max_len", "--input_template")


@dataclass(frozen=True)
class Asked:
    """How a model is asked.

    texts: the first prompts, as it gets them. lengths: of all prompts, in tokens. chat_template, add_bos: whether they were
    put into the one, and begin with the other. room: tokens that a prompt may have; what is longer loses its beginning.
    example: whether the texts stand for prompts that are elsewhere. all_rows: whether lengths are those of all prompts.
    """

    texts: Sequence[str]
    lengths: Sequence[int]
    chat_template: bool
    add_bos: bool
    room: int
    example: bool = False
    all_rows: bool = True


def fit_warnings(model: str, tokenizer, asked: Asked, flags: Flags) -> list[str]:
    """Say where they do not go together, each with what to do. Loads the model's configuration, no weights.

    tokenizer: as training sets it up, a processor where the model also sees.
    """
    return or_warning("the prompts", lambda: _mismatches(model, tokenizer, asked, flags))


def or_warning(prompts: str, check: Callable[[], list[str]]) -> list[str]:
    """The check's lines; or that it failed, which is no reason to stop: the reader of that file will say it in full.

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


def one_line(text: str, width: int) -> str:
    """Somebody else's text for a terminal: no control characters, and its middle left out where it is long."""
    text = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return text if len(text) <= width else f"{text[: width // 2]} … {text[-(width // 2) :]}"


def _mismatches(model: str, tokenizer, asked: Asked, flags: Flags) -> list[str]:
    from transformers import AutoConfig

    config, tokenizer = AutoConfig.from_pretrained(model, trust_remote_code=trusted()), text_tokenizer(tokenizer)
    tokens = [token_ids(tokenizer, text) for text in asked.texts[:MAX_TEXTS]]
    found = [
        *_begin(tokenizer, asked, tokens, flags),
        *_end(tokenizer, end_tokens(model, config)),
        *_embeddings(tokenizer, getattr(config.get_text_config(), "vocab_size", None), tokens),
        *cut(asked.lengths, asked.room, flags, asked.all_rows),
    ]
    return [f"warning: {model}: {each}" for each in found]


def _describe(tokenizer, token: int) -> str:
    """A token for people: whoever made the tokenizer chose its characters."""
    return f"{tokenizer.convert_ids_to_tokens(token)!r:.{MAX_TOKEN_CHARS}} ({token})"


# --- begin and end


def begin_of(tokenizer) -> tuple[int, ...]:
    """The special tokens that the tokenizer puts before every text."""
    added = (key for key, token in tokenizer.added_tokens_decoder.items() if token.special)
    special = {*tokenizer.all_special_ids, *added}
    with_them, bare = (token_ids(tokenizer, "a", add) for add in (True, False))
    before = len(with_them) - len(bare)
    put = with_them[:before] if with_them[before:] == bare else with_them  # there may be some behind the text too
    return tuple(itertools.takewhile(special.__contains__, put))


def _begin(tokenizer, asked: Asked, tokens: Sequence[Sequence[int]], flags: Flags) -> list[str]:
    begin, put, found = tokenizer.bos_token_id, begin_of(tokenizer), []
    if without := sum(tuple(each[: len(put)]) != put for each in tokens):
        them = "it" if len(put) == 1 else "them"
        lacking = f"{without} of {len(tokens)} prompts lack {them}"
        if asked.example:
            lacking = f"a prompt made up as an example lacks {them} (the data set is not on this machine)"
        found.append(
            f"its tokenizer begins every text with {' '.join(_describe(tokenizer, each) for each in put)}, and {lacking}: the "
            f"model has been trained on texts that begin so. {_begin_remedy(tokenizer, put, asked, flags)}"
        )
    if asked.add_bos and tokens and begin is not None and put[:1] != (begin,):
        found.append(
            f"{flags.add_bos} puts {_describe(tokenizer, begin)} before the prompts, and its tokenizer does not do so by "
            "itself: leave the flag out, unless the model was trained with it"
        )
    return found


def _begin_remedy(tokenizer, put: tuple[int, ...], asked: Asked, flags: Flags) -> str:
    if put == (tokenizer.bos_token_id,):
        return f"Give {flags.add_bos}"
    text = f"{''.join(tokenizer.convert_ids_to_tokens(list(put)))!r:.{MAX_TOKEN_CHARS}}"
    place = "of the chat template" if asked.chat_template else f"of every prompt, or of {flags.template}"
    return f"{flags.add_bos} cannot add what is not the tokenizer's bos_token: write {text} at the beginning {place}"


def end_tokens(model: str, config) -> frozenset[int]:
    """Those of config.json and generation_config.json."""
    from transformers import GenerationConfig

    try:
        generation = GenerationConfig.from_pretrained(model)
    except OSError:  # as vLLM does without a generation_config.json
        generation = GenerationConfig.from_model_config(config)
    return _ids(generation.eos_token_id) | _ids(getattr(config.get_text_config(), "eos_token_id", None))


def _ids(value: int | Iterable[int] | None) -> frozenset[int]:
    values = [value] if isinstance(value, int) else value or ()
    return frozenset(each for each in values if type(each) is int)


def _end(tokenizer, configured: frozenset[int]) -> list[str]:
    end = tokenizer.eos_token_id
    others = " or ".join(_describe(tokenizer, each) for each in sorted(configured))
    if end is None:
        stops = f"only at {others}" if others else "nowhere, and every one is cut"
        return [f"its tokenizer has no end token, and responses end {stops}. Set eos_token in tokenizer_config.json"]
    if not configured or end in configured:
        return []
    return [
        f"its tokenizer's end token is {_describe(tokenizer, end)}, and that of config.json or generation_config.json {others}: "
        "responses may go on after their end. Set eos_token in tokenizer_config.json, or eos_token_id in the other two, "
        "to the token that the model was trained to end with"
    ]


# --- embeddings and lengths


def _embeddings(tokenizer, size: int | None, tokens: Sequence[Sequence[int]]) -> list[str]:
    """Tokens that no text uses may lie beyond the embeddings: model_check.py refuses ordinary ones."""
    used = {token for each in tokens for token in each}
    used |= {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id} - {None}
    beyond = min((token for token in used if size and token >= size), default=None)
    if beyond is None:
        return []
    return [
        f"{_describe(tokenizer, beyond)} has the id {beyond}, and the model {size} embeddings: generation or training ends "
        "there with an error. Take the tokenizer that the model was trained with"
    ]


def cut(lengths: Sequence[int], room: int, flags: Flags, all_rows: bool = True, of: str = "") -> list[str]:
    """of: which prompts, where they are not those that are meant anyway."""
    longer, longest = sum(length > room for length in lengths), max(lengths, default=0)
    if not longer:
        return []
    total = f"{len(lengths)}" if all_rows else f"the first {len(lengths)}"
    return [
        f"{longer} of {total} prompts{of} are longer than the {room} tokens that {flags.length} leaves beside the "
        f"response, and lose their beginning; the longest has {longest}. Raise {flags.length} by {longest - room}, or "
        "leave such prompts out"
    ]


# --- the prompts of a training


def add_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument_group("prompts").add_argument(
        "--data.add_bos",
        action="store_true",
        default=False,
        help="begin every prompt with the tokenizer's begin token (<bos> of Gemma, <s> of Llama), where it does not begin with "
        "it: OpenRLHF reads prompts without, whatever the tokenizer does by itself. --dry_run says where a model needs it",
    )


def training_warnings(args) -> list[str]:
    """args: upstream's, nested. Reads files of this machine alone.

    Raises:
        UsageError: the prompts cannot be put into the form that was asked for.
    """
    folder = model_folder(args.actor.model_name_or_path)
    if folder is None:
        return []  # the dry run says so
    found = or_warning("the prompts", lambda: _of_training(args, str(folder)))
    if args.eval.dataset:
        found += or_warning("the prompts of --eval.dataset", lambda: _of_evaluation(args, str(folder)))
    return found


def _of_training(args, model: str) -> list[str]:
    data = args.data
    seen = read_prompts("--data.prompt_dataset", data.prompt_dataset, data.prompt_split, args, model)
    example = {data.input_key: "1 + 1 =", data.label_key: "2"}  # in place of rows that are not on this machine
    texts = seen.texts or [prompt.text for prompt in render_rows([example], args, model)]
    form = {"chat_template": data.apply_chat_template, "add_bos": data.add_bos, "example": not seen.texts}
    asked = Asked(texts, seen.lengths, room=_room(args), all_rows=seen.all_rows, **form)
    return [*_mismatches(model, tokenizer_of(model), asked, TRAINING), *_partly("--data.prompt_dataset", seen, args)]


def _of_evaluation(args, model: str) -> list[str]:
    seen = read_prompts("--eval.dataset", args.eval.dataset, args.eval.split, args, model)
    too_long = cut(seen.lengths, _room(args), TRAINING, seen.all_rows, " of --eval.dataset")
    return [*(f"warning: {model}: {line}" for line in too_long), *_partly("--eval.dataset", seen, args)]


def _room(args) -> int:
    """Tokens that a prompt may have: what is longer is cut by upstream, from its beginning."""
    return args.data.max_len - (args.rollout.max_new_tokens or 1)


def _partly(flag: str, seen: Seen, args) -> list[str]:
    """That there are more than were looked at, where nothing else says it."""
    if seen.all_rows or not seen.lengths or max(seen.lengths) > _room(args):
        return []
    return [f"{flag}: the first {len(seen.lengths)} prompts were looked at, and none is too long"]
