"""Read the prompts of a training as it will read them, and compare them with its model. args: upstream's, nested,
validated or not."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from types import SimpleNamespace

from openrlhf_ebpo.chat_template import ARGUMENTS, parse_kwargs, values
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


def open_prompts(args, name: str, split: str, max_rows: int | None = None):
    """Open a data set, prompts and labels alone, as `open_rows` does."""
    data, most = args.data, args.data.max_samples
    rows = open_rows(name, split, min(max_rows or most, most), args.use_ms, "--data.prompt_split (--eval.split)")
    return rows.select_columns([key for key in (data.input_key, data.label_key) if key])


def make_prompts(args, rows: Iterable[dict], model: str, source: str = "--data.prompt_dataset") -> list[Prompt]:
    """Make the prompts that training makes of rows of its data set.

    Args:
        model: whose tokenizer is used. source: of the rows, for the error.

    Raises:
        UsageError: they cannot be put into the form that was asked for.
    """
    data, template = args.data, _template(args)
    named = [
        {"id": number, "prompt": row[data.input_key], "label": row[data.label_key] if data.label_key else ""}
        for number, row in enumerate(rows, 1)
    ]
    for row in named if not data.apply_chat_template else ():
        if not is_text(row["prompt"], template):
            raise UsageError(
                f"{source}: column {data.input_key!r} (--data.input_key) holds chats, or something else that is not "
                f"text: row {row['id']} has one of type {type(row['prompt']).__name__}. Add "
                "--data.apply_chat_template, or name a column of texts"
            )
    kwargs = values(parse_kwargs(data.template_kwargs))
    prompts = render_prompts(named, model, data.apply_chat_template, template, kwargs)
    if empty := [prompt.key for prompt in prompts if not prompt.text]:
        raise UsageError(
            f"{source}: column {data.input_key!r} (--data.input_key) is empty in row {empty[0]}, and vLLM answers no "
            "empty prompt: leave the row out"
        )
    return prompts


def _template(args) -> str | None:
    """Return --data.input_template; None for one that upstream's validation drops."""
    template = args.data.input_template
    return template if template and "{}" in template else None


def describe_form(args) -> str:
    """Describe how the model gets its prompts, next to what its tokenizer has."""
    if args.data.apply_chat_template:
        return "prompts are in the tokenizer's chat template (--data.apply_chat_template)"
    template, folder = _template(args), local_folder(args.actor.model_name_or_path)
    given = f"--data.input_template is {template!r}" if template else "prompts are given as they are"
    has = folder is not None and has_chat_template(folder)
    more = ", and the tokenizer has a chat template that is not used (--data.apply_chat_template)" if has else ""
    return given + more


def cluster_notices(args) -> list[str]:
    """Warn of data sets without clusters, for an estimator that uses them."""
    column, names = args.data.cluster_key or CLUSTER_COLUMN, split_names(args.data.prompt_dataset)
    found = [(name, problem) for name in names for problem in dataset_problems(name, {"--data.cluster_key": column})]
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


def training_warnings(args) -> list[str]:
    """Compare a training's model with the prompts that are on this machine.

    Raises:
        UsageError: the prompts cannot be put into the form that was asked for, or have tokens that the model does not.
    """
    folder = local_folder(args.actor.model_name_or_path)
    if folder is None:
        return []  # the dry run says so
    found = or_warning("the prompts", lambda: _compare(args, str(folder), "data.prompt_dataset"))
    if args.eval.dataset:
        found += or_warning("the prompts of --eval.dataset", lambda: _compare(args, str(folder), "eval.dataset"))
    return found


def _compare(args, model: str, flag: str) -> list[str]:
    """Compare the prompts of --data.prompt_dataset with the model, or the lengths of those of --eval.dataset."""
    data, of_evaluation = args.data, flag == "eval.dataset"
    names, split = (args.eval.dataset, args.eval.split) if of_evaluation else (data.prompt_dataset, data.prompt_split)
    tokenizer, prompts = tokenizer_of(model), []  # an error of its files is not one of the prompts
    for name in filter(is_local, split_names(names)):
        prompts += make_prompts(args, open_prompts(args, name, split, MAX_ROWS), model, f"--{flag} {name}")
    lengths = prompt_lengths(prompts, model) if prompts else []
    most = data.max_len - (args.rollout.max_new_tokens or 1)  # upstream cuts a longer one, from its beginning
    if of_evaluation:
        longer = truncation_warnings(lengths, most, TRAINING, " of --eval.dataset")
        return [f"warning: {model}: {line}" for line in longer]
    example = {data.input_key: "1 + 1 =", data.label_key: "2"}
    texts = [prompt.text for prompt in prompts or make_prompts(args, [example], model)]
    return mismatches(model, tokenizer, Prompting(texts, lengths, data.apply_chat_template, most), TRAINING)
