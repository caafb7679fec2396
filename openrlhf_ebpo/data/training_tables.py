"""Read tables of training data in every form that training reads (data/data_files.py), in batches or at once, and
write them in Parquet (.parquet) or JSON lines (.jsonl), crash-safe.

A prepared set has the columns `id`, `prompt`, `label`, `question`, `datasource`; `cluster` and `pass_rate` come later.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from openrlhf_ebpo.data.data_files import DATA_SUFFIXES, load, local_files
from openrlhf_ebpo.errors import UsageError, raise_problems
from openrlhf_ebpo.files import replace_file
from openrlhf_ebpo.progress import file_identity, fingerprint, output_problems

SUFFIXES = (".parquet", ".jsonl")
READ_SUFFIXES = DATA_SUFFIXES
ROW_BATCH_SIZE = 8192

# Which command makes a column that may be missing: the second half of the message.
MADE_BY = {
    **dict.fromkeys(("id", "prompt", "label", "question", "datasource"), "openrlhf-ebpo data prepare"),
    "cluster": "openrlhf-ebpo data topics",
    "pass_rate": "openrlhf-ebpo data difficulty",
}


def read_table(path: str | Path, needed: Mapping[str, str] | Iterable[str] = (), flag: str = "--input") -> pa.Table:
    """Read a data set at once. Its columns are memory-mapped.

    path: as for `load`, given by `flag`.
    needed: columns that must be there; as a mapping, with the flag that names each: {"cluster": "--data.cluster_key"}.

    Raises:
        UsageError: as `load`; a column has values of several types, or a needed one is missing.
    """
    data = load(str(path), flag=flag)
    check_columns(data.column_names, needed, path, flag)
    if mixed := [name for name, kind in data.features.items() if _is_mixed(kind)]:
        raise UsageError(f"{flag} {path}: column {mixed[0]!r} fits no one type")
    return data.with_format("arrow")[:]


def read_rows(
    path: str | Path, columns: Sequence[str] | None = None, flag: str = "--input", batch_size: int = ROW_BATCH_SIZE
) -> Iterator[list[dict]]:
    """Yield a data set as lists of at most `batch_size` rows. columns: None for all.

    Raises:
        UsageError: as `load`.
    """
    yield from batches(load(str(path), flag=flag), columns, batch_size)


def batches(data, columns: Sequence[str] | None = None, batch_size: int = ROW_BATCH_SIZE) -> Iterator[list[dict]]:
    """Yield the rows of a `datasets.Dataset` in batches."""
    data = data.select_columns(list(columns)) if columns else data
    if any(map(_is_mixed, data.features.values())):
        for batch in data.iter(batch_size):
            yield [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)]
        return
    for table in data.with_format("arrow").iter(batch_size):
        yield table.to_pylist()


def _is_mixed(kind) -> bool:
    """Return True for a column of JSON values of several types, which is text in Arrow."""
    return "Json(" in repr(kind)


def column_names(path: str | Path, flag: str = "--input") -> list[str]:
    """Return the names of the columns, those inside structs too, with dots: prompt, reward_model,
    reward_model.ground_truth."""
    return nested_names(load(str(path), flag=flag).features.arrow_schema)


def nested_names(fields: Iterable[pa.Field], prefix: str = "") -> list[str]:
    names = []
    for field in fields:
        names.append(prefix + field.name)
        if pa.types.is_struct(field.type):
            names += nested_names(field.type, f"{prefix}{field.name}.")
    return names


def add_key_flags(parser: argparse.ArgumentParser) -> None:
    """Add training's flags that name the columns of prompts and labels."""
    parser.add_argument(
        "--data.input_key", default="prompt", metavar="NAME", help="column of prompts (default: %(default)s)"
    )
    parser.add_argument(
        "--data.label_key", default="label", metavar="NAME", help="column of labels (default: %(default)s)"
    )


def keys_of(args: argparse.Namespace) -> tuple[str, str]:
    """Return the names of the columns of prompts and labels."""
    return vars(args)["data.input_key"], vars(args)["data.label_key"]


def ids_of(table: pa.Table, input_key: str) -> list[str]:
    """Return the column id, or without it a digest of each prompt."""
    if "id" in table.column_names:
        return table["id"].to_pylist()
    return [fingerprint(json.dumps(prompt).encode()) for prompt in table[input_key].to_pylist()]


def count_rows(path: str | Path, flag: str = "--input") -> int:
    return len(load(str(path), flag=flag))


def identity(path: str | Path) -> str:
    """Return the name of a data set on this machine with a digest of its content."""
    files = local_files(str(path))
    if files == [Path(path)]:
        return file_identity(path)
    return f"{path}@{fingerprint(' '.join(map(file_identity, files)).encode())}"


def write_table(table: pa.Table | Iterable[pa.Table], path: str | Path) -> None:
    """Write a table (or several of one schema, one after the other) as the suffix of `path` says. The file is
    complete or missing.

    Raises:
        UsageError: another suffix.
    """
    suffix = check_suffix(path, "--output")
    tables = [table] if isinstance(table, pa.Table) else table
    with replace_file(path) as temporary, contextlib.ExitStack() as opened:
        if suffix == ".parquet":
            writer = None
            for each in tables:
                writer = writer or opened.enter_context(pq.ParquetWriter(temporary, each.schema, compression="zstd"))
                writer.write_table(each)
        else:
            file = opened.enter_context(open(temporary, "w", encoding="utf-8"))
            for batch in (batch for each in tables for batch in each.to_batches(ROW_BATCH_SIZE)):
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in batch.to_pylist())


def with_column(table: pa.Table, name: str, values, type: pa.DataType | None = None) -> pa.Table:
    """Return the table with a column of that name: in place of the old one, or as the last."""
    column = pa.array(values, type)
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, column)
    return table.append_column(name, column)


def check_output(output: str, source: str) -> None:
    """Check the file that a command writes. Raises UsageError: it is of another kind, or the file that is read."""
    check_suffix(output, "--output")
    raise_problems(output_problems(output, source, force=True))


def check_suffix(path: str | Path, flag: str, suffixes: Sequence[str] = SUFFIXES) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in suffixes:
        raise UsageError(
            f"{flag} {path}: the name must end in {' or '.join(suffixes)}, which says what kind of file it is"
        )
    return suffix


def check_columns(
    found: Iterable[str], needed: Mapping[str, str] | Iterable[str], path: str | Path, flag: str = "--input"
) -> None:
    """Check that the columns which a command needs are there.

    Raises:
        UsageError: a needed column is missing; names the file, the columns found, and the command or flag that helps.
    """
    found = list(found)
    flags = needed if isinstance(needed, Mapping) else {}
    for name in needed:
        if name in found:
            continue
        remedies = [f"`{MADE_BY[name]}` makes it"] if name in MADE_BY else []
        remedies += [f"{flags[name]} names another"] if flags.get(name) else []
        raise UsageError(
            f"{flag} {path} has no column {name!r}, only {', '.join(found) or 'none'}"
            + (": " + "; ".join(remedies) if remedies else "")
        )
