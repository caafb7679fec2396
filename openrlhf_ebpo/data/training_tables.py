"""Read tables of training data in every form that training reads (checks/data_files.py), in batches or at once, and
write them in Parquet (.parquet) or JSON lines (.jsonl), crash-safe.

A prepared set has the columns `id`, `prompt`, `label`, `question`, `datasource`; `cluster` and `pass_rate` come later.
"""

from __future__ import annotations

import codecs
import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from openrlhf_ebpo.checks.data_files import FIRST_ROWS, is_local, open_arrow, split_files
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import replacing
from openrlhf_ebpo.progress import file_identity, fingerprint

SUFFIXES = (".parquet", ".jsonl")
READ_SUFFIXES = (*SUFFIXES, ".json", ".csv", ".arrow")
ROW_BATCH_SIZE = 8192
NEEDS_DATASETS = "folders, CSV and the Hub need `pip install 'openrlhf_ebpo[data]'`; other local files do not"

# Which command makes a column that may be missing: the second half of the message.
MADE_BY = {
    **dict.fromkeys(("id", "prompt", "label", "question", "datasource"), "openrlhf-ebpo data prepare"),
    "cluster": "openrlhf-ebpo data topics",
    "pass_rate": "openrlhf-ebpo data difficulty",
}


def data_files(path: str | Path, flag: str = "--input", split: str = "train") -> list[Path]:
    """Return the files of a data set on this machine: a file, a folder, FOLDER@SUBFOLDER or TYPE@FOLDER.

    Raises:
        UsageError: there is none, or it has files of another kind.
    """
    if Path(path).suffix.lower() in READ_SUFFIXES or not is_local(str(path)):
        check_file(path, flag)
        return [Path(path)]
    try:
        files = [Path(file) for file in split_files(str(path), split)]
    except ImportError:
        raise UsageError(NEEDS_DATASETS) from None
    except Exception as error:  # of any library that reads the folder
        raise UsageError(f"{flag} {path}: {error or type(error).__name__}") from error
    for file in files:
        check_file(file, flag)
    return files


def read_table(path: str | Path, needed: Mapping[str, str] | Iterable[str] = (), flag: str = "--input") -> pa.Table:
    """Read a data set at once. Parquet and Arrow are memory-mapped.

    path: as for `data_files`, given by `flag`.
    needed: columns that must be there; as a mapping, with the flag that names each: {"cluster": "--cluster_column"}.

    Raises:
        UsageError: as `data_files`; a file is broken, or a needed column is missing.
    """
    tables = [_file_table(file, flag) for file in data_files(path, flag)]
    try:
        table = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise UsageError(f"{flag} {path}: its files do not fit together: {error}") from error
    check_columns(table.column_names, needed, path, flag)
    return table


def _file_table(path: Path, flag: str) -> pa.Table:
    if path.suffix.lower() not in (".parquet", ".arrow"):
        return _from_rows([row for rows in read_rows(path, flag=flag) for row in rows], path, flag)
    with _broken(path, flag):
        return (
            pq.read_table(path, memory_map=True) if path.suffix.lower() == ".parquet" else open_arrow(path).read_all()
        )


def read_rows(
    path: str | Path, columns: Sequence[str] | None = None, flag: str = "--input", batch_size: int = ROW_BATCH_SIZE
) -> Iterator[list[dict]]:
    """Yield a data set as lists of at most `batch_size` rows, without ever holding more of it than that; a JSON array
    is read at once.

    columns: what to read of a Parquet file (dots lead into structs); the other kinds always give all.

    Raises:
        UsageError: as `read_table`; a broken line of JSON is named by its number.
    """
    for file in data_files(path, flag):
        match file.suffix.lower():
            case ".parquet":
                with _parquet(file, flag) as parquet, _broken(file, flag):
                    for batch in parquet.iter_batches(batch_size, columns=columns):
                        yield batch.to_pylist()
            case ".arrow":
                with _broken(file, flag):
                    for batch in open_arrow(file).read_all().to_batches(batch_size):
                        yield batch.to_pylist()
            case ".csv":
                yield from _csv_rows(file, flag, batch_size)
            case _:
                yield from _json_rows(file, flag, batch_size)


def column_names(path: str | Path, flag: str = "--input") -> list[str]:
    """Return the names of the columns, those inside structs too, with dots: prompt, reward_model,
    reward_model.ground_truth. A data set is judged by its first file, and JSON lines and CSV by their first rows."""
    file = data_files(path, flag)[0]
    if file.suffix.lower() == ".parquet":
        with _parquet(file, flag) as parquet:
            return schema_names(parquet.schema_arrow)
    if file.suffix.lower() == ".arrow":
        with _broken(file, flag), open_arrow(file) as reader:
            return schema_names(reader.schema)
    rows = next(read_rows(file, flag=flag, batch_size=FIRST_ROWS), [])
    return list(dict.fromkeys(name for row in rows for name in _row_names(row)))


def schema_names(fields: Iterable[pa.Field], prefix: str = "") -> list[str]:
    names = []
    for field in fields:
        names.append(prefix + field.name)
        if pa.types.is_struct(field.type):
            names += schema_names(field.type, f"{prefix}{field.name}.")
    return names


def count_rows(path: str | Path, flag: str = "--input") -> int:
    """Count the rows of a data set: by Parquet's footer, or by the lines of JSON lines that hold something."""
    return sum(_count_rows(file, flag) for file in data_files(path, flag))


def _count_rows(path: Path, flag: str) -> int:
    if path.suffix.lower() == ".parquet":
        with _parquet(path, flag) as file:
            return file.metadata.num_rows
    if path.suffix.lower() == ".jsonl":
        with open(path, "rb") as file:
            return sum(not line.isspace() for line in file)
    return sum(map(len, read_rows(path, flag=flag)))


def identity(path: str | Path, flag: str = "--input") -> str:
    """Return a data set's name with a digest of its content."""
    files = data_files(path, flag)
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
    with replacing(path) as temporary:
        (_write_parquet if suffix == ".parquet" else _write_json)(tables, temporary)


def with_column(table: pa.Table, name: str, values, type: pa.DataType | None = None) -> pa.Table:
    """Return the table with a column of that name: in place of the old one, or as the last."""
    column = pa.array(values, type)
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, column)
    return table.append_column(name, column)


def check_file(path: str | Path, flag: str = "--input") -> str:
    """Return the suffix of a file.

    Raises:
        UsageError: no such file, or another kind.
    """
    suffix = check_suffix(path, flag, READ_SUFFIXES)
    if not Path(path).is_file():
        raise UsageError(f"{flag} {path}: no such file")
    return suffix


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


@contextlib.contextmanager
def _broken(path: Path, flag: str) -> Iterator[None]:
    """Name a file that the reader inside cannot read."""
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError) as error:
        kind = {".parquet": "Parquet", ".arrow": "Arrow"}[path.suffix.lower()]
        raise UsageError(f"{flag} {path} cannot be read as {kind}: {error}") from error


def _parquet(path: Path, flag: str) -> pq.ParquetFile:
    with _broken(path, flag):
        # Neither mapped nor prefetched: a row group may be all of the file, and is then read page by page.
        return pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)


def _csv_rows(path: Path, flag: str, batch_size: int) -> Iterator[list[dict]]:
    """Read a CSV file by the reader of training, which chooses the types."""
    if not path.stat().st_size:
        return
    try:
        from datasets import load_dataset

        for batch in load_dataset("csv", data_files=str(path), split="train", streaming=True).iter(batch_size):
            yield [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)]
    except ImportError:
        raise UsageError(NEEDS_DATASETS) from None
    except (ValueError, pa.ArrowException) as error:
        raise UsageError(f"{flag} {path} cannot be read as CSV: {error}") from error


def _json_rows(path, flag: str, batch_size: int) -> Iterator[list[dict]]:
    with open(path, "rb") as file:
        rows = _json_array(path, flag)
        if rows is None:
            rows = (_json_row(line, number, path, flag) for number, line in enumerate(file, 1) if line.strip())
        rows = iter(rows)
        while batch := list(itertools.islice(rows, batch_size)):
            yield batch


def _json_array(path, flag: str) -> list[dict] | None:
    """Return the rows of a file that is one array of objects, or one object over several lines; None for any other."""
    with open(path, "rb") as file:
        head = file.read(1024).removeprefix(codecs.BOM_UTF8).lstrip()
        if not head.startswith(b"[") and head.partition(b"\n")[0].strip() != b"{":
            return None
        file.seek(0)
        try:
            rows = json.loads(file.read())
            rows = rows if isinstance(rows, list) else [rows]
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{flag} {path} is neither a JSON array nor lines of JSON objects: {error}") from error
    if wrong := next((number for number, row in enumerate(rows, 1) if not isinstance(row, dict)), None):
        raise UsageError(f"{flag} {path}: row {wrong} of its array is not a JSON object")
    return rows


def _json_row(line: bytes, number: int, path, flag: str) -> dict:
    try:
        row, why = json.loads(line), "another value"
    except (ValueError, RecursionError) as error:
        row, why = None, error
    if not isinstance(row, dict):
        raise UsageError(
            f"{flag} {path}, line {number} is not a JSON object ({why}): a .jsonl file has an object per line"
        )
    return row


def _row_names(row: dict, prefix: str = "") -> list[str]:
    names = []
    for name, value in row.items():
        names.append(prefix + name)
        if isinstance(value, dict):
            names += _row_names(value, f"{prefix}{name}.")
    return names


def _from_rows(rows: list[dict], path, flag: str) -> pa.Table:
    names = {name: None for row in rows for name in row}  # from_pylist alone looks at the first row
    columns = {name: [row.get(name) for row in rows] for name in names}
    for name, values in columns.items():
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise UsageError(f"{flag} {path}: column {name!r} fits no one type: {error}") from error
    return pa.table(columns)


def _write_parquet(tables: Iterable[pa.Table], path: Path) -> None:
    writer = None
    try:
        for table in tables:
            writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
            writer.write_table(table)
    finally:
        if writer:
            writer.close()


def _write_json(tables: Iterable[pa.Table], path: Path) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for table in tables:
            for batch in table.to_batches(ROW_BATCH_SIZE):
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in batch.to_pylist())
