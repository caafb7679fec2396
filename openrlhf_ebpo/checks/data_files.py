"""Find the files of a data set in the forms that OpenRLHF's loader takes, and read the names of their columns.

FILE, FOLDER (of files, or saved by `Dataset.save_to_disk`), FOLDER@SUBFOLDER, TYPE@FOLDER; OWNER/NAME[@SUBFOLDER] on
the Hub.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

DATA_SUFFIXES = (".json", ".jsonl", ".csv", ".parquet", ".arrow")
TYPES = {  # of TYPE@FOLDER, which reads every file of the folder
    "json": (".json", ".jsonl"),
    "csv": (".csv",),
    "parquet": (".parquet",),
    "arrow": (".arrow",),
    "text": (".txt",),
}
FIRST_ROWS = 256  # of JSON lines: a row may leave a column out
SAVED, SAVED_SPLITS = "state.json", "dataset_dict.json"  # save_to_disk writes them


class DataSetError(ValueError):
    """A data set that is not there or holds other files; the message continues its name."""


class NoSplitError(DataSetError):
    """It has no such split."""


def parts(name: str) -> tuple[str, str]:
    """Return the place of a data set, and what follows its `@`, or "". A path with an @ in it is a place."""
    if Path(name).exists():
        return name, ""
    place, _, folder = name.partition("@")
    return place.strip(), folder.strip()


def is_local(name: str) -> bool:
    place, folder = parts(name)
    return Path(place).exists() or bool(folder and place in TYPES)


def absolute(name: str) -> str:
    """Return the name with absolute paths; unchanged if it is not on this machine."""
    place, folder = parts(os.path.expanduser(name))
    if Path(place).exists():
        return str(Path(place).absolute()) + (f"@{folder}" if folder else "")
    if folder and place in TYPES:
        return f"{place}@{Path(folder).expanduser().absolute()}"
    return name


def split_files(name: str, split: str, subset: str | None = None, revision: str | None = None) -> list[str]:
    """List paths or hf:// addresses (commit included) of a split's files, as `datasets` finds them.

    Raises:
        DataSetError: its folder is not there or holds other files. NoSplitError. Others: what `datasets` and the Hub's
            client raise.
    """
    place, folder = parts(name)
    if Path(place).is_file():
        splits = {"train": [place]}
    elif (splits := _saved_splits(Path(place), split)) is None:
        from datasets import load_dataset_builder

        if place in TYPES and folder and not Path(folder).is_dir():
            raise DataSetError(f"{folder}: no such folder, whose files {place}@FOLDER reads")
        builder = load_dataset_builder(place, subset, data_dir=folder or None, revision=revision)
        splits = builder.config.data_files or {}
        if folder and place in TYPES:
            _check_kinds(place, [file for files in splits.values() for file in files])
    if split not in splits:
        raise NoSplitError(f"has {', '.join(map(str, splits)) or 'no data files'}, and no split {split!r}")
    return list(splits[split])


def _check_kinds(kind: str, files: Iterable[str]) -> None:
    """Raises DataSetError: the folder of TYPE@FOLDER holds another kind of file."""
    others = [file for file in files if not set(TYPES[kind]) & set(Path(file).suffixes)]
    if others:
        raise DataSetError(
            f"holds {Path(others[0]).name}, which would be read as {kind} too: move it to another folder"
        )


def _saved_splits(folder: Path, split: str) -> dict[str, list[str]] | None:
    """Return the files of a folder that `save_to_disk` wrote; None for another one. A set without splits is every
    split."""
    if (folder / SAVED_SPLITS).is_file():
        names = json.loads((folder / SAVED_SPLITS).read_text())["splits"]
        return {name: _saved_files(folder / name) for name in names}
    return {split: _saved_files(folder)} if (folder / SAVED).is_file() else None


def _saved_files(folder: Path) -> list[str]:
    state = json.loads((folder / SAVED).read_text())
    return [str(folder / each["filename"]) for each in state["_data_files"]]


def data_columns(path: Path) -> list[str]:
    """Return the column names of a data file, from its beginning; none of a file without rows.

    Raises:
        ValueError: one of its first rows is not an object. Others: what the file's reader raises.
    """
    if path.suffix == ".parquet":
        import pyarrow.parquet

        return pyarrow.parquet.read_schema(path).names
    if path.suffix == ".arrow":
        with open_arrow(path) as reader:
            return reader.schema.names
    with open(path, newline="", encoding="utf-8-sig") as file:
        if path.suffix == ".csv":
            rows = list(itertools.islice(csv.reader(file), 2))
            return rows[0] if len(rows) > 1 else []
        if path.suffix == ".txt":
            return ["text"]
        lines = list(itertools.islice(filter(str.strip, file), FIRST_ROWS))
        try:
            rows = [json.loads(lines[0])] if lines else []
        except ValueError:  # a list or an object over several lines
            file.seek(0)
            rows, lines = [json.load(file)], []
    if rows and isinstance(rows[0], list):
        rows = rows[0][:FIRST_ROWS]
    elif rows:
        rows += [json.loads(line) for line in lines[1:]]
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise ValueError(f"row {number} is {row!r:.60}, and must be an object with a value for each column")
    return list(dict.fromkeys(name for row in rows for name in row))


def open_arrow(path: str | Path) -> pa.RecordBatchReader | pa.RecordBatchFileReader:
    """Open an Arrow file: a stream, as `datasets` saves it, or one with a footer. Memory-mapped.

    Raises:
        pa.ArrowException: it is neither.
    """
    try:
        return pa.ipc.open_stream(pa.memory_map(str(path)))
    except pa.ArrowInvalid:
        return pa.ipc.open_file(pa.memory_map(str(path)))
