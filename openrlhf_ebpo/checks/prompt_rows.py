"""Read prompts of a training's data sets as training reads them, and put them into the form that the model gets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from openrlhf_ebpo.checks.preflight import DATA_SUFFIXES
from openrlhf_ebpo.engines.rendering import Prompt, is_text, prompt_lengths, render, tokenizer_of
from openrlhf_ebpo.errors import UsageError

FIRST_TEXTS = 64  # of each data set: a mistake in the form of one prompt is mostly in all
MAX_ROWS = 10_000  # of a data set, whose lengths are compared: about 5 s at 450 tokens each


class Seen(NamedTuple):
    """Prompts on this machine. texts: the first of each data set. lengths: in tokens. all_rows: whether there are no others."""

    texts: list[str]
    lengths: list[int]
    all_rows: bool


def read_prompts(flag: str, names: str, split: str, args, model: str) -> Seen:
    """Raises UsageError: prompts cannot be put into the form that was asked for."""
    tokenizer_of(model)  # an error of its files is not one of the prompts
    texts, lengths, all_rows = [], [], True
    for name in names.split(","):
        rows = local_rows(name, split, args)
        first = list(islice(rows or (), min(MAX_ROWS + 1, args.data.max_samples)))
        all_rows = all_rows and rows is not None and len(first) <= MAX_ROWS
        prompts = render_rows(first[:MAX_ROWS], args, model, f"{flag} {name.strip()}")
        texts += [prompt.text for prompt in prompts[:FIRST_TEXTS]]
        lengths += prompt_lengths(prompts, model) if prompts else []
    return Seen(texts, lengths, all_rows)


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
        data = of_file(place)
    elif path.is_dir() and not (path / f"{path.name}.py").exists():
        data = _of_folder(place, data_dir or None, split)
    else:
        return None
    return iter(data.select_columns([key for key in (args.data.input_key, args.data.label_key) if key]))


def of_file(place: str):
    """The rows of a data file, one after the other, as datasets reads its kind."""
    from datasets import load_dataset

    kind = Path(place).suffix[1:]
    return load_dataset("json" if kind == "jsonl" else kind, data_files=place, split="train", streaming=True)


def _of_folder(place: str, data_dir: str | None, split: str):
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


def render_rows(rows: Iterable[dict], args, model: str, source: str = "--data.prompt_dataset") -> list[Prompt]:
    """The prompts that training makes of rows of its data set. source: where they are from, for people.

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
                f"{source}: column {data.input_key!r} (--data.input_key) holds chats, or something else that is no text: row "
                f"{row['id']} has one of type {type(row['prompt']).__name__}. Add --data.apply_chat_template, or name a column of texts"
            )
    return render(named, model, data.apply_chat_template, data.input_template, add_bos=data.add_bos)
