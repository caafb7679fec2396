"""Read the pairs of a warm start as OpenRLHF's SFTDataset will, and compare them with the model before it is loaded."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from openrlhf_ebpo.chat_template import bind, parse_kwargs, values
from openrlhf_ebpo.command import one_line
from openrlhf_ebpo.data.preflight import split_names
from openrlhf_ebpo.errors import UsageError, raise_problems
from openrlhf_ebpo.hub_models import local_folder
from openrlhf_ebpo.train.model_check import file_problems
from openrlhf_ebpo.train.prompt_sets import MAX_ROWS, open_rows
from openrlhf_ebpo.upstream.tokenizer_fit import (
    MAX_ERROR_CHARS,
    TRAINING,
    Prompting,
    mismatches,
    text_tokenizer,
    token_ids,
)

MODEL = "model.model_name_or_path"
MAX_SHOWN_CHARS = 60
END_TOKENS = 2  # a prompt that leaves no more tokens than this is left out by upstream


class Pair(NamedTuple):
    prompt: str
    answer: str


def pair_warnings(args) -> list[str]:
    """Render every row of `sft`, and compare up to MAX_ROWS with the model by their tokens; returns warnings. Nothing
    is checked of texts for pretraining, and of a model that is not on this machine.

    Args:
        args: upstream's, nested and validated.

    Raises:
        UsageError: flags, tokenizer or rows do not go together; OpenRLHF would fail, or train on parts of answers.
    """
    data, name = args.data, args.model.model_name_or_path
    if data.multiturn and data.output_key:
        raise UsageError(
            f"--data.output_key {data.output_key}: with --data.multiturn OpenRLHF takes complete chats from "
            "--data.input_key, and fails on a column of answers: leave --data.output_key out"
        )
    if not (data.output_key or data.apply_chat_template or args.model.pretrain_mode_enable):
        raise UsageError("--data.output_key is missing: name the column of answers")
    folder = local_folder(name)
    if folder is None or args.model.pretrain_mode_enable:
        return []
    needs_template = data.apply_chat_template and not data.tokenizer_chat_template
    raise_problems([f"--{MODEL} {name}: {each}" for each in file_problems(name, folder, needs_template)])
    tokenizer = load_tokenizer(args, str(folder))
    warnings = []
    for flag, names, split in (
        ("data.dataset", data.dataset, data.dataset_split),
        ("eval.dataset", args.eval.dataset, args.eval.split),
    ):
        for each in split_names(names):
            source = f"--{flag} {each}"
            pairs = read_pairs(args, tokenizer, source, each, split)
            warnings += compare_with_model(args, str(folder), tokenizer, pairs, source)
    return list(dict.fromkeys(warnings))


def load_tokenizer(args, folder: str):
    """Load the tokenizer as upstream's train_sft does, with its template and the arguments of that.

    Raises:
        UsageError: it cannot be loaded, or has no end token.
    """
    from openrlhf.utils.utils import get_tokenizer

    data, name = args.data, args.model.model_name_or_path
    try:
        tokenizer = get_tokenizer(folder, None, "right", use_fast=not data.disable_fast_tokenizer)
    except Exception as error:  # other people's files
        cause = one_line(f"{type(error).__name__}: {error}", MAX_ERROR_CHARS)
        raise UsageError(f"--{MODEL} {name}: its tokenizer cannot be loaded ({cause})") from error
    if data.tokenizer_chat_template:
        tokenizer.chat_template = data.tokenizer_chat_template
    if text_tokenizer(tokenizer).eos_token is None:
        raise UsageError(
            f"--{MODEL} {name}: its tokenizer has no end token, which OpenRLHF puts behind every answer: set "
            "eos_token in tokenizer_config.json"
        )
    return bind(tokenizer, values(parse_kwargs(data.template_kwargs)))


def read_pairs(args, tokenizer, source: str, name: str, split: str) -> list[Pair]:
    """Make the pairs of all rows of a data set; returns up to MAX_ROWS of them, evenly spread."""
    data = args.data
    rows = open_rows(name, split, data.max_samples, args.use_ms, "--data.dataset_split (--eval.split)")
    rows = rows.select_columns([key for key in (data.input_key, data.output_key) if key])
    kept, every = [], -(-len(rows) // MAX_ROWS)
    for number, row in enumerate(rows):
        try:
            pair = make_pair(data, row, tokenizer)
        except UsageError as error:
            raise UsageError(f"{source}: row {number + 1}{error}") from error
        except Exception as error:  # rows and chat template are other people's: any exception
            cause = one_line(f"{type(error).__name__}: {error}", MAX_ERROR_CHARS)
            model = args.model.model_name_or_path
            raise UsageError(
                f"{source}: row {number + 1} cannot be put into the form that {model} reads: {cause}"
            ) from error
        kept += [] if number % every else [pair]
    return kept


def make_pair(data, row: dict, tokenizer) -> Pair:
    """Make prompt and answer of a row, by upstream's code.

    Raises:
        UsageError: OpenRLHF would cut off a part of an answer, or train on the wrong tokens, or a column is not text;
            the message follows "row N".
    """
    from openrlhf.datasets.sft_dataset import preprocess_data

    if not data.apply_chat_template:
        columns = {"input": data.input_key, "output": data.output_key}
        for flag, key in columns.items():
            if not isinstance(row[key], str) and not (flag == "input" and data.input_template and row[key] is not None):
                remedy = "" if flag == "output" else ", or add --data.apply_chat_template for chats"
                raise UsageError(
                    f": column {key!r} (--data.{flag}_key) holds a {type(row[key]).__name__}: name one of texts{remedy}"
                )
        return Pair(*preprocess_data(row, data.input_template, data.input_key, data.output_key, None))
    template = PromptsThenChats(tokenizer)
    for number, message in enumerate(row[data.input_key] if data.multiturn else (), 1):
        if message["role"] != "assistant":
            continue
        chat, turns = row[data.input_key], row[data.input_key][:number]
        template(turns[:-1], tokenize=False, add_generation_prompt=True)
        until = template(turns, tokenize=False).rstrip()
        # upstream's mask of the answers takes the two to agree
        if not tokenizer.apply_chat_template(chat, tokenize=False).startswith(until):
            raise UsageError(
                f": with --data.multiturn the chat template renders the first {number} turns otherwise once others "
                "follow (many leave out earlier thoughts), and OpenRLHF would train on the wrong tokens: make a row of "
                "each of the assistant's turns, and leave --data.multiturn out"
            )
    return Pair(*preprocess_data(row, None, data.input_key, data.output_key, template))


def compare_with_model(args, model: str, tokenizer, some: Sequence[Pair], source: str) -> list[str]:
    """Warn of rows that are left out or cut, and of tokens that do not go with the model."""
    max_len = args.data.max_len
    prompts = [len(token_ids(tokenizer, pair.prompt)) for pair in some]
    answers = [len(token_ids(tokenizer, pair.answer)) for pair in some]
    limit = max_len - END_TOKENS
    kept = [
        prompt + answer
        for pair, prompt, answer in zip(some, prompts, answers, strict=True)
        if pair.prompt and pair.answer and prompt < limit
    ]
    if not kept:
        raise UsageError(
            f"{source}: OpenRLHF would train on no row: prompts are empty or have {limit} tokens or more "
            f"(--data.max_len {max_len}), or answers are empty"
        )
    texts = ["".join(pair) for pair in some]
    found = mismatches(
        model, tokenizer, Prompting(texts, prompts, args.data.apply_chat_template, sys.maxsize), TRAINING
    )
    lines = {
        f"{len(some) - len(kept)} of {len(some)} rows are left out: an empty prompt or answer, or a prompt of "
        f"{limit} tokens or more": len(some) - len(kept),
        f"{sum(length > max_len for length in kept)} of {len(some)} answers are cut, and then get an end "
        f"token; the longest row has {max(kept)} tokens": max(kept) > max_len,
    }
    return found + [f"warning: {source}: {line} (--data.max_len {max_len})" for line, is_so in lines.items() if is_so]


class PromptsThenChats:
    """A chat template as upstream calls it: for a prompt, and then for the chat, whose answer it takes from where the
    prompt ends."""

    def __init__(self, tokenizer):
        self.tokenizer, self.prompt = tokenizer, ""

    def __call__(self, chat: list, add_generation_prompt: bool = False, **kwargs) -> str:
        """Render a chat.

        Raises:
            UsageError: it does not begin with its prompt; the message follows "row N".
        """
        text = self.tokenizer.apply_chat_template(chat, add_generation_prompt=add_generation_prompt, **kwargs)
        if add_generation_prompt:
            self.prompt = text
        elif not text.startswith(self.prompt):
            same = next(
                (i for i, (one, other) in enumerate(zip(text, self.prompt, strict=False)) if one != other), len(text)
            )
            raise UsageError(
                f": with --data.apply_chat_template the prompt ends in {self.prompt[same:][:MAX_SHOWN_CHARS]!r}, and "
                f"the chat has {text[same:][:MAX_SHOWN_CHARS]!r} there, so OpenRLHF would cut off the beginning of the "
                "answer. Give the template's switch (--data.template_kwargs enable_thinking=false, if it has one), "
                "another template (--data.tokenizer_chat_template), or write the prompt's form with "
                "--data.input_template instead"
            )
        return text
