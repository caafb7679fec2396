"""What `train` says of the model and the prompts of the data sets together, before Ray starts."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

from openrlhf_ebpo.checks.model_check import model_folder
from openrlhf_ebpo.checks.model_fit import TRAINING, Asked, cut, fit_warnings
from openrlhf_ebpo.checks.preflight import DATA_SUFFIXES
from openrlhf_ebpo.engines.rendering import Prompt, is_text, prompt_lengths, render, tokenizer_of
from openrlhf_ebpo.errors import UsageError

FIRST = 64  # rows of a data set: what is wrong with the form of one prompt is mostly wrong with all
ROWS, SECONDS = 20_000, 3.0  # until which lengths are looked at
BATCH = 256


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
    data, model = args.data, str(folder)
    found, which = [], "the prompts"
    try:
        tokenizer = tokenizer_of(model)
        seen = look(DataSet("--data.prompt_dataset", data.prompt_dataset, data.prompt_split), args, model)
        texts = seen.texts or [prompt.text for prompt in render_rows([example(args)], args, model)]
        form = {"chat_template": data.apply_chat_template, "add_bos": data.add_bos, "example": not seen.texts}
        asked = Asked(texts, seen.lengths, room=room(args), whole=seen.whole, **form)
        found = [*fit_warnings(model, tokenizer, asked, TRAINING), *partly(seen, args)]
        if args.eval.dataset:
            which = "the prompts of --eval.dataset"
            seen = look(DataSet("--eval.dataset", args.eval.dataset, args.eval.split), args, model)
            too_long = cut(seen.lengths, room(args), TRAINING, seen.whole, " of --eval.dataset")
            found += [*(f"warning: {model}: {line}" for line in too_long), *partly(seen, args)]
        return found
    except UsageError:
        raise
    except Exception as error:  # of the tokenizer's or the data set's reader: the training itself will say it in full
        said = one_line(f"{type(error).__name__}: {error}", 300)
        return [*found, f"warning: {which} were not looked at: {said}"]


@dataclass(frozen=True)
class DataSet:
    """flag: what names it. names: one or several, as upstream takes them."""

    flag: str
    names: str
    split: str


@dataclass(frozen=True)
class Seen:
    """What was looked at of the prompts on this machine. texts: the first of each data set. lengths: in tokens. whole: whether
    of all."""

    texts: list[str]
    lengths: list[int]
    whole: bool
    flag: str


def look(data: DataSet, args, model: str) -> Seen:
    """Raises UsageError: prompts cannot be put into the form that was asked for."""
    texts, lengths, whole = [], [], True
    until = time.monotonic() + SECONDS
    for name in data.names.split(","):
        rows, seen = local_rows(name, data.split, args), 0
        whole = whole and rows is not None
        rows = islice(rows or (), args.data.max_samples)
        while batch := list(islice(rows, BATCH)):
            if len(lengths) >= ROWS or (lengths and time.monotonic() > until):
                whole = False
                break
            prompts = render_rows(batch, args, model, f"{data.flag} {name.strip()}", seen)
            texts += [prompt.text for prompt in prompts[: max(0, FIRST - seen)]]
            lengths += prompt_lengths(prompts, model)
            seen += len(batch)
    return Seen(texts, lengths, whole, data.flag)


def partly(seen: Seen, args) -> list[str]:
    """That there are more than were looked at, where nothing else says it."""
    if seen.whole or not seen.lengths or max(seen.lengths) > room(args):
        return []
    return [f"{seen.flag}: the first {len(seen.lengths)} prompts were looked at, and none is too long"]


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


def first_rows(args, count: int) -> list[dict]:
    """Of --data.prompt_dataset, fetched as training does it where that is not on this machine."""
    name = args.data.prompt_dataset.split(",")[0].strip()
    if rows := local_rows(name, args.data.prompt_split, args):
        return list(islice(rows, count))
    from openrlhf.datasets.utils import blending_datasets

    quiet = SimpleNamespace(print=lambda *_: None, is_rank_0=lambda: False, args=args)
    return list(blending_datasets(name, None, quiet, max_count=count, dataset_split=args.data.prompt_split))


def local_rows(name: str, split: str, args) -> Iterator[dict] | None:
    """Prompts and labels of one file or folder of this machine, read as training reads it, from its beginning; None for a data
    set that is elsewhere, or that comes as code."""
    place, _, data_dir = (part.strip() for part in name.partition("@"))
    path = Path(place)
    if path.is_file() and path.suffix in DATA_SUFFIXES:
        from datasets import load_dataset

        kind = "json" if path.suffix == ".jsonl" else path.suffix[1:]
        data = load_dataset(kind, data_files=place, split="train", streaming=True)
    elif path.is_dir() and not (path / f"{path.name}.py").exists():
        data = of_folder(place, data_dir or None, split)
    else:
        return None
    return iter(data.select_columns([key for key in (args.data.input_key, args.data.label_key) if key]))


def of_folder(place: str, data_dir: str | None, split: str):
    from datasets import Dataset, load_dataset, load_from_disk

    try:
        data = load_from_disk(place)
    except Exception:  # as upstream does: a folder of files
        data = load_dataset(place, data_dir=data_dir, streaming=True)
    if not isinstance(data, Dataset):
        if split not in data:
            raise ValueError(f"{place} has no split {split!r}; there are {', '.join(data)}")
        data = data[split]
    return data


def render_rows(
    rows: Iterable[dict], args, model: str, source: str = "--data.prompt_dataset", before: int = 0
) -> list[Prompt]:
    """The prompts that training makes of rows of its data set.

    source: where they are from, before: how many rows came before them; for people.

    Raises:
        UsageError: they cannot be put into the form that was asked for.
    """
    data = args.data
    named = [
        {"id": number, "prompt": row[data.input_key], "label": row[data.label_key] if data.label_key else ""}
        for number, row in enumerate(rows, before + 1)
    ]
    for row in named if not data.apply_chat_template else ():
        if not is_text(row["prompt"], data.input_template):
            raise UsageError(
                f"{source}: column {data.input_key!r} (--data.input_key) holds chats, or something else that is no text: row "
                f"{row['id']} has one of type {type(row['prompt']).__name__}. Add --data.apply_chat_template, or name a column of texts"
            )
    return render(named, model, data.apply_chat_template, data.input_template, add_bos=data.add_bos)
