"""Read prompts of a training's data sets as training reads them, and put them into the form that the model gets."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.generation.rendering import Prompt, is_text, render


def read_rows(name: str, split: str, args, max_rows: int) -> list[dict]:
    """The first rows of a data set, prompts and labels alone, by upstream's own reader. args: upstream's, nested.

    Raises:
        UsageError: the data set has no such split. Others: what the reader raises.
    """
    from datasets import disable_progress_bars
    from openrlhf.datasets.utils import blending_datasets

    disable_progress_bars()
    quiet = SimpleNamespace(print=lambda *_: None, is_rank_0=lambda: False, args=args)
    max_rows = min(max_rows, args.data.max_samples)
    try:
        data = blending_datasets(name, None, quiet, max_count=max_rows, dataset_split=split)
    except AttributeError as error:  # of the splits, upstream has taken none
        raise UsageError(f"{name} has no split {split!r}: give another --data.prompt_split (--eval.split)") from error
    return list(data.select_columns([key for key in (args.data.input_key, args.data.label_key) if key]))


def of_file(place: str):
    """The rows of a data file, one after the other, as datasets reads its kind."""
    from datasets import load_dataset

    kind = Path(place).suffix[1:]
    return load_dataset("json" if kind == "jsonl" else kind, data_files=place, split="train", streaming=True)


def render_rows(rows: Iterable[dict], args, model: str, source: str = "--data.prompt_dataset") -> list[Prompt]:
    """The prompts that training makes of rows of its data set. source: of the rows, for the error.

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
