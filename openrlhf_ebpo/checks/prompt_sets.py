"""Read the prompts of a training as it will read them, and compare them with its model."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from types import SimpleNamespace

from openrlhf_ebpo.checks.data_files import is_local
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.generation.rendering import Prompt, is_text, prompt_lengths, render, tokenizer_of
from openrlhf_ebpo.models.hub_models import local_folder
from openrlhf_ebpo.models.tokenizer_fit import TRAINING, Prompting, cut, mismatches, or_warning

MAX_ROWS = 10_000  # of a data set, whose lengths are compared: about 5 s at 450 tokens each


def add_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument_group("prompts").add_argument(
        "--data.add_bos",
        action="store_true",
        help="begin every prompt with the tokenizer's begin token (<bos> of Gemma, <s> of Llama), unless it begins "
        "with it: OpenRLHF "
        "tokenizes prompts without special tokens. --dry_run warns if the model needs it",
    )


def training_warnings(args) -> list[str]:
    """Compare a training's model with the prompts that are on this machine. args: upstream's, nested.

    Raises:
        UsageError: the prompts cannot be put into the form that was asked for, or have tokens that the model does not.
    """
    folder = local_folder(args.actor.model_name_or_path)
    if folder is None:
        return []  # the dry run says so
    model = str(folder)
    found = or_warning("the prompts", lambda: _of_training(args, model))
    if args.eval.dataset:
        found += or_warning("the prompts of --eval.dataset", lambda: _of_evaluation(args, model))
    return found


def _of_training(args, model: str) -> list[str]:
    prompts = _local_prompts("data.prompt_dataset", args.data.prompt_dataset, args.data.prompt_split, args, model)
    example = {args.data.input_key: "1 + 1 =", args.data.label_key: "2"}
    texts = [prompt.text for prompt in prompts or render_rows([example], args, model)]
    prompting = Prompting(
        texts, _lengths(prompts, model), args.data.apply_chat_template, args.data.add_bos, _room(args)
    )
    return mismatches(model, tokenizer_of(model), prompting, TRAINING)


def _of_evaluation(args, model: str) -> list[str]:
    prompts = _local_prompts("eval.dataset", args.eval.dataset, args.eval.split, args, model)
    longer = cut(_lengths(prompts, model), _room(args), TRAINING, " of --eval.dataset")
    return [f"warning: {model}: {line}" for line in longer]


def _local_prompts(flag: str, names: str, split: str, args, model: str) -> list[Prompt]:
    tokenizer_of(model)  # an error of its files is not one of the prompts
    prompts = []
    for name in filter(None, map(str.strip, names.split(","))):
        if is_local(name):
            prompts += render_rows(read_rows(name, split, args, MAX_ROWS), args, model, f"--{flag} {name}")
    return prompts


def _lengths(prompts: list[Prompt], model: str) -> list[int]:
    return prompt_lengths(prompts, model) if prompts else []


def _room(args) -> int:
    """Return the tokens that a prompt may have: upstream cuts a longer one, from its beginning."""
    return args.data.max_len - (args.rollout.max_new_tokens or 1)


def read_rows(name: str, split: str, args, max_rows: int) -> list[dict]:
    """Read the first rows of a data set; raises as `open_rows`."""
    return list(open_rows(name, split, args, max_rows))


def open_rows(name: str, split: str, args, max_rows: int | None = None):
    """Open a data set, prompts and labels alone, by upstream's own reader. args: upstream's, nested.

    Raises:
        UsageError: the data set has no such split. Others: what the reader raises.
    """
    from datasets import disable_progress_bars
    from openrlhf.datasets.utils import blending_datasets

    disable_progress_bars()
    quiet = SimpleNamespace(print=lambda *_: None, is_rank_0=lambda: False, args=args)
    max_rows = min(max_rows or args.data.max_samples, args.data.max_samples)
    try:
        data = blending_datasets(name, None, quiet, max_count=max_rows, dataset_split=split)
    except AttributeError as error:  # of the splits, upstream has taken none
        raise UsageError(f"{name} has no split {split!r}: give another --data.prompt_split (--eval.split)") from error
    return data.select_columns([key for key in (args.data.input_key, args.data.label_key) if key])


def render_rows(rows: Iterable[dict], args, model: str, source: str = "--data.prompt_dataset") -> list[Prompt]:
    """Make the prompts that training makes of rows of its data set. source: of the rows, for the error.

    Raises:
        UsageError: they cannot be put into the form that was asked for.
    """
    data = args.data
    named = [
        {"id": number, "prompt": row[data.input_key], "label": row[data.label_key] if data.label_key else ""}
        for number, row in enumerate(rows, 1)
    ]
    for row in named if not data.apply_chat_template else ():
        if not is_text(row["prompt"], data.input_template):
            raise UsageError(
                f"{source}: column {data.input_key!r} (--data.input_key) holds chats, or something else that is "
                f"not text: row "
                f"{row['id']} has one of type {type(row['prompt']).__name__}. Add --data.apply_chat_template, "
                f"or name a column of texts"
            )
    return render(named, model, data.apply_chat_template, data.input_template, add_bos=data.add_bos)
