"""Read the pairs of a warm start as OpenRLHF's SFTDataset will, and compare them with the model before it is loaded."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from openrlhf_ebpo.chat_template import Kwargs, bind, parse_kwargs, values
from openrlhf_ebpo.command import one_line
from openrlhf_ebpo.data.preflight import split_names
from openrlhf_ebpo.engines.model_check import file_problems
from openrlhf_ebpo.errors import UsageError, raise_problems
from openrlhf_ebpo.hub_models import local_folder
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
END_TOKENS = 2  # a prompt that leaves no more room than this is left out by upstream


class Pair(NamedTuple):
    prompt: str
    answer: str


@dataclass(frozen=True)
class PairSettings:
    """The rows of `sft`, and the form in which its model gets them, by upstream's names.

    names, eval_names: data sets. is_pretraining: rows are texts, not pairs. own_template: in place of the tokenizer's.
    """

    model: str
    names: tuple[str, ...]
    split: str
    eval_names: tuple[str, ...]
    eval_split: str
    input_key: str
    output_key: str | None
    template: str | None
    chat_template: bool
    own_template: str | None
    template_kwargs: Kwargs
    multiturn: bool
    is_pretraining: bool
    max_samples: int
    max_len: int
    use_fast_tokenizer: bool
    use_ms: bool

    @classmethod
    def from_args(cls, args) -> PairSettings:
        """From upstream's nested arguments."""
        data, template = args.data, args.data.input_template
        return cls(
            model=args.model.model_name_or_path,
            names=split_names(data.dataset),
            split=data.dataset_split,
            eval_names=split_names(args.eval.dataset),
            eval_split=args.eval.split,
            input_key=data.input_key,
            output_key=data.output_key,
            template=template if template and "{}" in template else None,  # as upstream
            chat_template=data.apply_chat_template,
            own_template=data.tokenizer_chat_template,
            template_kwargs=parse_kwargs(data.template_kwargs),
            multiturn=data.multiturn,
            is_pretraining=args.model.pretrain_mode_enable,
            max_samples=data.max_samples,
            max_len=data.max_len,
            use_fast_tokenizer=not data.disable_fast_tokenizer,
            use_ms=args.use_ms,
        )

    def check(self) -> list[str]:
        """Render every row, and compare up to MAX_ROWS with the model by their tokens; returns warnings. Nothing is
        checked of texts for pretraining, and of a model that is not on this machine.

        Raises:
            UsageError: flags, tokenizer or rows do not go together; OpenRLHF would fail, or train on parts of answers.
        """
        raise_problems(self._flag_problems())
        folder = local_folder(self.model)
        if folder is None or self.is_pretraining:
            return []
        raise_problems(
            [
                f"--{MODEL} {self.model}: {each}"
                for each in file_problems(self.model, folder, self.chat_template and not self.own_template)
            ]
        )
        tokenizer = self._tokenizer(str(folder))
        warnings = []
        for flag, names, split in (
            ("data.dataset", self.names, self.split),
            ("eval.dataset", self.eval_names, self.eval_split),
        ):
            for name in names:
                pairs = self._read(tokenizer, f"--{flag} {name}", name, split)
                warnings += self._compare(str(folder), tokenizer, pairs, f"--{flag} {name}")
        return list(dict.fromkeys(warnings))

    def _flag_problems(self) -> list[str]:
        problems = []
        if self.multiturn and self.output_key:
            problems.append(
                f"--data.output_key {self.output_key}: with --data.multiturn OpenRLHF takes complete chats from "
                "--data.input_key, and fails on a column of answers: leave --data.output_key out"
            )
        if self.multiturn and not self.chat_template:
            problems.append("--data.multiturn needs --data.apply_chat_template: add it")
        if not (self.output_key or self.chat_template or self.multiturn or self.is_pretraining):
            problems.append("--data.output_key is missing: name the column of answers")
        return problems

    def _tokenizer(self, folder: str):
        from openrlhf.utils.utils import get_tokenizer

        try:
            tokenizer = get_tokenizer(folder, None, "right", use_fast=self.use_fast_tokenizer)
        except Exception as error:  # other people's files
            cause = one_line(f"{type(error).__name__}: {error}", MAX_ERROR_CHARS)
            raise UsageError(f"--{MODEL} {self.model}: its tokenizer cannot be loaded ({cause})") from error
        if self.own_template:
            tokenizer.chat_template = self.own_template
        if text_tokenizer(tokenizer).eos_token is None:
            raise UsageError(
                f"--{MODEL} {self.model}: its tokenizer has no end token, which OpenRLHF puts behind every answer: set "
                "eos_token in tokenizer_config.json"
            )
        return bind(tokenizer, values(self.template_kwargs))

    def _read(self, tokenizer, source: str, name: str, split: str) -> list[Pair]:
        """Make the pairs of all rows; returns up to MAX_ROWS of them, evenly spread."""
        rows = open_rows(name, split, self.max_samples, self.use_ms, "--data.dataset_split (--eval.split)")
        rows = rows.select_columns([key for key in (self.input_key, self.output_key) if key])
        kept, every = [], -(-len(rows) // MAX_ROWS)
        for number, row in enumerate(rows):
            try:
                pair = self._pair(row, tokenizer)
            except UsageError as error:
                raise UsageError(f"{source}: row {number + 1}{error}") from error
            except Exception as error:  # rows and chat template are other people's: any exception
                cause = one_line(f"{type(error).__name__}: {error}", MAX_ERROR_CHARS)
                raise UsageError(
                    f"{source}: row {number + 1} cannot be put into the form that {self.model} reads: {cause}"
                ) from error
            kept += [] if number % every else [pair]
        return kept

    def _pair(self, row: dict, tokenizer) -> Pair:
        """Make prompt and answer of a row, by upstream's code.

        Raises:
            UsageError: OpenRLHF would cut off a part of an answer, or a column is not text; the message follows
                "row N".
        """
        from openrlhf.datasets.sft_dataset import preprocess_data

        if self.chat_template:
            template = PromptsThenChats(tokenizer)
            for chat in _turns(row[self.input_key]) if self.multiturn else ():
                self._check_turn(row[self.input_key], chat, template)
            return Pair(*preprocess_data(row, None, self.input_key, self.output_key, template))
        columns = {"input": self.input_key, "output": self.output_key}
        for flag, key in columns.items():
            if not isinstance(row[key], str) and not (flag == "input" and self.template and row[key] is not None):
                remedy = "" if flag == "output" else ", or add --data.apply_chat_template for chats"
                raise UsageError(
                    f": column {key!r} (--data.{flag}_key) holds a {type(row[key]).__name__}: name one of texts{remedy}"
                )
        return Pair(*preprocess_data(row, self.template, self.input_key, self.output_key, None))

    def _check_turn(self, chat: list, turn: list, template: PromptsThenChats) -> None:
        """Compare the rendering up to one of the assistant's turns with that of the chat, as upstream's mask of the
        answers takes them to agree."""
        template(turn[:-1], tokenize=False, add_generation_prompt=True)
        until = template(turn, tokenize=False).rstrip()
        if not template.tokenizer.apply_chat_template(chat, tokenize=False).startswith(until):
            raise UsageError(
                f": with --data.multiturn the chat template renders the first {len(turn)} turns otherwise once others "
                "follow (many leave out earlier thoughts), and OpenRLHF would train on the wrong tokens: make a row of "
                "each of the assistant's turns, and leave --data.multiturn out"
            )

    def _compare(self, model: str, tokenizer, some: Sequence[Pair], source: str) -> list[str]:
        prompts = [len(token_ids(tokenizer, pair.prompt)) for pair in some]
        answers = [len(token_ids(tokenizer, pair.answer)) for pair in some]
        room = self.max_len - END_TOKENS
        kept = [
            prompt + answer
            for pair, prompt, answer in zip(some, prompts, answers, strict=True)
            if pair.prompt and pair.answer and prompt < room
        ]
        if not kept:
            raise UsageError(
                f"{source}: OpenRLHF would train on no row: prompts are empty or have {room} tokens or more "
                f"(--data.max_len {self.max_len}), or answers are empty"
            )
        texts = ["".join(pair) for pair in some]
        found = mismatches(model, tokenizer, Prompting(texts, prompts, self.chat_template, sys.maxsize), TRAINING)
        lines = {
            f"{len(some) - len(kept)} of {len(some)} rows are left out: an empty prompt or answer, or a prompt of "
            f"{room} tokens or more": len(some) - len(kept),
            f"{sum(length > self.max_len for length in kept)} of {len(some)} answers are cut, and then get an end "
            f"token; the longest row has {max(kept)} tokens": max(kept) > self.max_len,
        }
        return found + [
            f"warning: {source}: {line} (--data.max_len {self.max_len})" for line, is_so in lines.items() if is_so
        ]


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


def _turns(chat: list) -> Iterator[list]:
    """Yield the beginnings of a chat that end with the assistant's turn."""
    for number, message in enumerate(chat, 1):
        if message["role"] == "assistant":
            yield chat[:number]
