"""The columns of rollouts/ that say what an estimator was given and what it gave; never prompts and responses.

Files may come from anywhere: what is no rollout file, or would not fit in memory, is an error that names the file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from openrlhf_ebpo.record.run_log import RunDirectoryError, first_kept, step_files

WHOLE = ("group", "sample")
NUMBERS = ("reward", "baseline", "advantage", "action_tokens", "score_weight")
TEXTS = ("prompt_id", "cluster")
NEEDED = (*WHOLE, "valid", *NUMBERS, *TEXTS)
MOST_ROWS = 2**24  # of a step
MOST_BYTES = 2**30  # of a step's columns, decompressed


def logged_steps(run_dir: Path) -> dict[int, Path]:
    """step -> file, in order of step, of the steps that are kept: what is dropped may be there for a moment.

    Raises:
        ReportedError: dropped.json is damaged.
    """
    first = first_kept(run_dir)
    return {step: path for step, path in step_files(run_dir).items() if step >= first}


def read_columns(path: Path, named: str = "", most_rows: int = MOST_ROWS) -> dict[str, np.ndarray]:
    """name -> one value per response, of the columns in NEEDED: float64 with NaN for null; int64; bool; text as objects,
    None for null.

    Args:
        named: what errors call the file, where not by its path.

    Raises:
        RunDirectoryError: the file is damaged, too large, lacks a column of NEEDED, or has one of another type.
    """
    try:
        return _read(path, named or str(path), most_rows)
    except (pa.ArrowException, OSError, ValueError, TypeError, MemoryError) as error:
        if isinstance(error, RunDirectoryError):
            raise
        why = "" if named else f": {str(error)[:300]}"  # it may hold the path
        raise RunDirectoryError(f"{named or path} is no rollout file, or is damaged{why}") from error


def _read(path: Path, named: str, most_rows: int) -> dict[str, np.ndarray]:
    metadata = pq.read_metadata(path)
    names = metadata.schema.to_arrow_schema().names
    if lacking := [name for name in NEEDED if names.count(name) != 1]:
        raise RunDirectoryError(f"{named} must have one column {' and one '.join(lacking)}; its columns: {len(names)}")
    _check_size(named, metadata, most_rows)
    with pq.ParquetFile(path, metadata=metadata, read_dictionary=[*TEXTS]) as file:
        table = file.read(columns=[*NEEDED])
    kinds = {**dict.fromkeys(WHOLE, pa.int64()), **dict.fromkeys(NUMBERS, pa.float64()), "valid": pa.bool_()}
    numbers = {name: _numbers(named, table, name, kind) for name, kind in kinds.items()}
    return numbers | {name: _texts(named, table, name) for name in TEXTS}


def _check_size(named: str, metadata: pq.FileMetaData, most_rows: int) -> None:
    columns = [i for i in range(metadata.num_columns) if metadata.schema.column(i).path.split(".")[0] in NEEDED]
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    size = sum(group.column(i).total_uncompressed_size for group in groups for i in columns)
    if metadata.num_rows > most_rows or size > MOST_BYTES:
        raise RunDirectoryError(
            f"{named} says that it has {metadata.num_rows:,} rows, {size:,} bytes without the texts; at most {most_rows:,} "
            f"rows and {MOST_BYTES:,} bytes are read"
        )


def _numbers(named: str, table: pa.Table, name: str, kind: pa.DataType) -> np.ndarray:
    column = table[name]
    if not (pa.types.is_boolean(column.type) if name == "valid" else _is_number(column.type)):
        raise RunDirectoryError(f"{named}: the column {name} is of type {str(column.type)[:80]}, and not {kind}")
    if column.null_count and kind != pa.float64():
        raise RunDirectoryError(f"{named}: the column {name} lacks {column.null_count:,} values")
    return column.cast(kind).to_numpy()


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _texts(named: str, table: pa.Table, name: str) -> np.ndarray:
    """From a dictionary, so that a long text that many rows share is there once."""
    column = table[name].combine_chunks()
    if pa.types.is_null(column.type):
        return np.full(len(column), None)
    if not (pa.types.is_dictionary(column.type) and pa.types.is_string(column.type.value_type)):
        raise RunDirectoryError(f"{named}: the column {name} is of type {str(column.type)[:80]}, and not text")
    values = np.array([*column.dictionary.to_pylist(), None], dtype=object)
    return values[column.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)]
