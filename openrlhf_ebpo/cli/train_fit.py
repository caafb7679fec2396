"""What `train` says of the model and the first prompts of the data set together, before Ray starts."""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

from openrlhf_ebpo.checks.model_check import model_folder
from openrlhf_ebpo.checks.model_fit import TRAINING, Asked, fit_warnings
from openrlhf_ebpo.checks.preflight import DATA_SUFFIXES
from openrlhf_ebpo.engines.rendering import Prompt, render, token_ids, tokenizer_of
from openrlhf_ebpo.errors import UsageError

FIRST = 64  # rows of the data set


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument_group("prompts").add_argument(
        "--data.add_bos",
        action="store_true",
        default=False,
        help="begin every prompt with the tokenizer's begin token (<bos> of Gemma, <s> of Llama), where it does not begin with "
        "it: OpenRLHF reads prompts without, whatever the tokenizer does by itself. --dry_run says where a model needs it",
    )


def fit_notices(args) -> list[str]:
    """args: upstream's, nested. Reads files of this machine alone.

    Raises:
        UsageError: the prompts cannot be put into the form that was asked for.
    """
    folder = model_folder(args.actor.model_name_or_path)
    if folder is None:
        return []  # the dry run says so
    try:
        tokenizer, rows = tokenizer_of(str(folder)), first_rows(args, FIRST)
        texts = [prompt.text for prompt in render_rows(rows or [example(args)], args, str(folder))]
        data, lengths = args.data, [len(token_ids(tokenizer, text)) for text in texts]
        asked = Asked(texts, lengths if rows else [], data.apply_chat_template, data.add_bos, room(args))
        return fit_warnings(str(folder), tokenizer, asked, TRAINING)
    except UsageError:
        raise
    except Exception as error:  # of the tokenizer's or the data set's reader: the training itself will say it in full
        return [f"warning: the prompts were not looked at: {one_line(f'{type(error).__name__}: {error}', 300)}"]


def room(args) -> int:
    """Tokens that a prompt may have: what is longer is cut by upstream, from its beginning."""
    return args.data.max_len - (args.rollout.max_new_tokens or 1)


def example(args) -> dict:
    """In place of rows that are not on this machine."""
    return {args.data.input_key: "1 + 1 =", args.data.label_key: "2"}


def one_line(text: str, width: int) -> str:
    """Somebody else's text for a terminal: no control characters, and its middle left out where it is long."""
    text = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return text if len(text) <= width else f"{text[: width // 2]} … {text[-(width // 2) :]}"


def first_rows(args, count: int, fetch: bool = False) -> list[dict]:
    """Of --data.prompt_dataset. fetch: also where that is no file of this machine, as training fetches it; else none then."""
    name = args.data.prompt_dataset.split(",")[0].strip()
    path = Path(name.partition("@")[0])
    if path.is_file() and path.suffix in DATA_SUFFIXES:
        from datasets import load_dataset

        kind = "json" if path.suffix == ".jsonl" else path.suffix[1:]
        return list(islice(load_dataset(kind, data_files=str(path), split="train", streaming=True), count))
    if not fetch:
        return []
    from openrlhf.datasets.utils import blending_datasets

    quiet = SimpleNamespace(print=lambda *_: None, is_rank_0=lambda: False, args=args)
    return list(blending_datasets(name, None, quiet, max_count=count, dataset_split=args.data.prompt_split))


def render_rows(rows: list[dict], args, model: str) -> list[Prompt]:
    """The prompts that training makes of rows of its data set.

    Raises:
        UsageError: they cannot be put into the form that was asked for.
    """
    data = args.data
    if not data.apply_chat_template and not all(isinstance(row[data.input_key], str) for row in rows):
        raise UsageError(
            f"--data.prompt_dataset {data.prompt_dataset}: column {data.input_key!r} (--data.input_key) holds chats, or "
            "something else that is no text: add --data.apply_chat_template, or name a column of texts"
        )
    named = [
        {"id": number, "prompt": row[data.input_key], "label": row[data.label_key] if data.label_key else ""}
        for number, row in enumerate(rows, 1)
    ]
    return render(named, model, data.apply_chat_template, data.input_template, add_bos=data.add_bos)
