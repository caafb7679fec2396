"""Read the prompts of a training as it will read them, and compare them with its model."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace

from openrlhf_ebpo.chat_template import ARGUMENTS, Kwargs, parse_kwargs, values
from openrlhf_ebpo.command import one_line
from openrlhf_ebpo.data.data_files import is_local
from openrlhf_ebpo.data.preflight import dataset_problems, split_names
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub_models import local_folder
from openrlhf_ebpo.train.model_check import has_chat_template
from openrlhf_ebpo.upstream.rendering import Prompt, is_text, prompt_lengths, render_prompts, tokenizer_of
from openrlhf_ebpo.upstream.tokenizer_fit import (
    MAX_ERROR_CHARS,
    TRAINING,
    Prompting,
    mismatches,
    or_warning,
    truncation_warnings,
)

CLUSTER_COLUMN = "cluster"
MAX_ROWS = 10_000  # of a data set, whose lengths are compared: about 5 s at 450 tokens each


@dataclass(frozen=True)
class PromptSettings:
    """The prompts of a training, and the form in which its model gets them.

    names, eval_names: data sets. max_len: tokens of prompt and response together. max_new_tokens: None for as many as
    max_len leaves.
    """

    model: str
    names: tuple[str, ...]
    split: str
    eval_names: tuple[str, ...]
    eval_split: str
    input_key: str
    label_key: str | None
    cluster_key: str
    template: str | None
    chat_template: bool
    max_samples: int
    max_len: int
    max_new_tokens: int | None
    use_ms: bool
    template_kwargs: Kwargs

    @classmethod
    def from_args(cls, args) -> PromptSettings:
        """From upstream's nested arguments."""
        data, template = args.data, args.data.input_template
        return cls(
            model=args.actor.model_name_or_path,
            names=split_names(data.prompt_dataset),
            split=data.prompt_split,
            eval_names=split_names(args.eval.dataset),
            eval_split=args.eval.split,
            input_key=data.input_key,
            label_key=data.label_key,
            cluster_key=data.cluster_key or CLUSTER_COLUMN,
            template=template if template and "{}" in template else None,  # as upstream
            chat_template=data.apply_chat_template,
            max_samples=data.max_samples,
            max_len=data.max_len,
            max_new_tokens=args.rollout.max_new_tokens,
            use_ms=args.use_ms,
            template_kwargs=parse_kwargs(data.template_kwargs),
        )

    @property
    def max_prompt_tokens(self) -> int:
        """Tokens that a prompt may have: upstream cuts a longer one, from its beginning."""
        return self.max_len - (self.max_new_tokens or 1)

    def open_rows(self, name: str, split: str, max_rows: int | None = None):
        """Open a data set, prompts and labels alone, as `open_rows` does."""
        max_rows = min(max_rows or self.max_samples, self.max_samples)
        data = open_rows(name, split, max_rows, self.use_ms, "--data.prompt_split (--eval.split)")
        return data.select_columns([key for key in (self.input_key, self.label_key) if key])

    def render_rows(self, rows: Iterable[dict], model: str, source: str = "--data.prompt_dataset") -> list[Prompt]:
        """Make the prompts that training makes of rows of its data set.

        Args:
            model: whose tokenizer is used. source: of the rows, for the error.

        Raises:
            UsageError: they cannot be put into the form that was asked for.
        """
        named = [
            {"id": number, "prompt": row[self.input_key], "label": row[self.label_key] if self.label_key else ""}
            for number, row in enumerate(rows, 1)
        ]
        for row in named if not self.chat_template else ():
            if not is_text(row["prompt"], self.template):
                raise UsageError(
                    f"{source}: column {self.input_key!r} (--data.input_key) holds chats, or something else that is "
                    f"not text: row {row['id']} has one of type {type(row['prompt']).__name__}. "
                    "Add --data.apply_chat_template, or name a column of texts"
                )
        kwargs = values(self.template_kwargs)
        prompts = render_prompts(named, model, self.chat_template, self.template, kwargs)
        if empty := [prompt.key for prompt in prompts if not prompt.text]:
            raise UsageError(
                f"{source}: column {self.input_key!r} (--data.input_key) is empty in row {empty[0]}, and vLLM answers "
                "no empty prompt: leave the row out"
            )
        return prompts

    def describe_form(self) -> str:
        """Describe how the model gets its prompts, next to what its tokenizer has."""
        if self.chat_template:
            return "prompts are in the tokenizer's chat template (--data.apply_chat_template)"
        given = f"--data.input_template is {self.template!r}" if self.template else "prompts are given as they are"
        folder = local_folder(self.model)
        has = folder is not None and has_chat_template(folder)
        more = ", and the tokenizer has a chat template that is not used (--data.apply_chat_template)" if has else ""
        return given + more

    def cluster_notices(self) -> list[str]:
        """Warn of data sets without clusters, for an estimator that uses them."""
        column = {"--data.cluster_key": self.cluster_key}
        found = [(name, problem) for name in self.names for problem in dataset_problems(name, column)]
        return [
            f"warning: --algo.advantage.ebpo.clusters cluster: {name} {problem}; its prompts get the run's prior"
            for name, problem in found
        ]


def open_rows(name: str, split: str, max_rows: int, use_ms: bool, flag: str):
    """Open a data set by upstream's own reader. flag: names the split.

    Raises:
        UsageError: the data set has no such split, or a row that cannot be read. Others: what the reader raises.
    """
    from datasets.exceptions import DatasetGenerationError

    try:
        return read_rows(name, split, max_rows, use_ms)
    except AttributeError as error:  # of the splits, upstream has taken none
        raise UsageError(f"{name} has no split {split!r}: give another {flag}") from error
    except DatasetGenerationError as error:  # of any row: preflight reads the first ones
        cause = one_line(f"{error.__cause__ or error}", MAX_ERROR_CHARS)
        raise UsageError(f"{name} cannot be loaded, so the training could not either: {cause}") from error


def read_rows(names: str, split: str, max_rows: int, use_ms: bool, probs: str | None = None, seed: int = 42):
    """Read data sets by upstream's reader. Raises what that raises."""
    from datasets import disable_progress_bars
    from openrlhf.datasets.utils import blending_datasets

    disable_progress_bars()
    strategy = SimpleNamespace(print=lambda *_: None, is_rank_0=lambda: False, args=SimpleNamespace(use_ms=use_ms))
    return blending_datasets(names, probs, strategy, seed, max_count=max_rows, dataset_split=split)


def add_flag(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompts")
    group.add_argument("--data.template_kwargs", **ARGUMENTS)


def training_warnings(settings: PromptSettings) -> list[str]:
    """Compare a training's model with the prompts that are on this machine.

    Raises:
        UsageError: the prompts cannot be put into the form that was asked for, or have tokens that the model does not.
    """
    folder = local_folder(settings.model)
    if folder is None:
        return []  # the dry run says so
    found = or_warning("the prompts", lambda: _compare(settings, str(folder), "data.prompt_dataset"))
    if settings.eval_names:
        found += or_warning("the prompts of --eval.dataset", lambda: _compare(settings, str(folder), "eval.dataset"))
    return found


def _compare(settings: PromptSettings, model: str, flag: str) -> list[str]:
    """Compare the prompts of --data.prompt_dataset with the model, or the lengths of those of --eval.dataset."""
    of_evaluation = flag == "eval.dataset"
    names, split = (settings.eval_names, settings.eval_split) if of_evaluation else (settings.names, settings.split)
    tokenizer, prompts = tokenizer_of(model), []  # an error of its files is not one of the prompts
    for name in filter(is_local, names):
        prompts += settings.render_rows(settings.open_rows(name, split, MAX_ROWS), model, f"--{flag} {name}")
    lengths = prompt_lengths(prompts, model) if prompts else []
    if of_evaluation:
        longer = truncation_warnings(lengths, settings.max_prompt_tokens, TRAINING, " of --eval.dataset")
        return [f"warning: {model}: {line}" for line in longer]
    example = {settings.input_key: "1 + 1 =", settings.label_key: "2"}
    texts = [prompt.text for prompt in prompts or settings.render_rows([example], model)]
    return mismatches(
        model, tokenizer, Prompting(texts, lengths, settings.chat_template, settings.max_prompt_tokens), TRAINING
    )
