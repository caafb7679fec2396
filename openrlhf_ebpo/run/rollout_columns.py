"""Read the columns of rollouts/ that an estimator was given and gave; never prompts and responses.

Files may come from anywhere: one that is damaged, has other columns, or would not fit in memory is an error that names
it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from openrlhf_ebpo.run.run_log import PRIOR_START, RunDirectoryError

NUMBERS = {
    **dict.fromkeys(("group", "sample"), pa.int64()),
    "valid": pa.bool_(),
    **dict.fromkeys(("reward", "baseline", "advantage", "action_tokens", "score_weight"), pa.float64()),
}
TEXTS = ("prompt_id", "cluster")
ROLLOUT_COLUMNS = (*NUMBERS, *TEXTS)
MAX_ROWS = 2**24  # of a step
MAX_BYTES = 2**30  # of a step's columns, decompressed


def read_prior_start(path: Path) -> Any:
    """Read the estimator's state before the step, as in prior.json; None where the step before leads to it.

    Raises:
        RunDirectoryError: the file is damaged.
    """
    try:
        stored = (pq.read_metadata(path).metadata or {}).get(PRIOR_START)
        return None if stored is None else json.loads(stored)
    except (pa.ArrowException, OSError, ValueError, RecursionError) as error:
        raise RunDirectoryError(f"{path} is not a rollout file, or is damaged: {str(error)[:300]}") from error


def read_columns(path: Path) -> dict[str, np.ndarray]:
    """Return name -> one value per response, of ROLLOUT_COLUMNS: float64 with NaN for null; int64; bool; text as
    objects, None for null.

    Raises:
        RunDirectoryError: the file is damaged, too large, lacks a column, or has one of another type.
    """
    try:
        table = _read(path)
    except RunDirectoryError:
        raise
    except (pa.ArrowException, OSError, LookupError, ValueError, TypeError, MemoryError) as error:
        raise RunDirectoryError(f"{path} is not a rollout file, or is damaged: {str(error)[:300]}") from error
    numbers = {name: _numbers(f"{path}: the column {name}", table[name], kind) for name, kind in NUMBERS.items()}
    return numbers | {name: _texts(f"{path}: the column {name}", table[name]) for name in TEXTS}


def _read(path: Path) -> pa.Table:
    metadata = pq.read_metadata(path)
    names = metadata.schema.to_arrow_schema().names
    if lacking := [name for name in ROLLOUT_COLUMNS if names.count(name) != 1]:
        raise RunDirectoryError(f"{path} must have one column {' and one '.join(lacking)}; its columns: {len(names)}")
    columns = [
        i for i in range(metadata.num_columns) if metadata.schema.column(i).path.split(".")[0] in ROLLOUT_COLUMNS
    ]
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    size = sum(group.column(i).total_uncompressed_size for group in groups for i in columns)
    if metadata.num_rows > MAX_ROWS or size > MAX_BYTES:
        raise RunDirectoryError(
            f"{path} says that it has {metadata.num_rows:,} rows, {size:,} bytes without the texts; at most "
            f"{MAX_ROWS:,} rows and {MAX_BYTES:,} bytes are read"
        )
    with pq.ParquetFile(path, metadata=metadata, read_dictionary=[*TEXTS]) as file:
        return file.read(columns=[*ROLLOUT_COLUMNS])


def _numbers(named: str, column: pa.ChunkedArray, kind: pa.DataType) -> np.ndarray:
    is_bool = pa.types.is_boolean(column.type)
    is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if not (is_bool if kind == pa.bool_() else is_number):
        raise RunDirectoryError(f"{named} is of type {str(column.type)[:80]}, and not {kind}")
    if column.null_count and kind != pa.float64():
        raise RunDirectoryError(f"{named} lacks {column.null_count:,} values")
    return column.cast(kind).to_numpy()


def _texts(named: str, column: pa.ChunkedArray) -> np.ndarray:
    """Read texts from a dictionary, so that a long text that many rows share is held once."""
    column = column.combine_chunks()
    if pa.types.is_null(column.type):
        return np.full(len(column), None)
    if not (pa.types.is_dictionary(column.type) and pa.types.is_string(column.type.value_type)):
        raise RunDirectoryError(f"{named} is of type {str(column.type)[:80]}, and not text")
    values = np.array([*column.dictionary.to_pylist(), None], dtype=object)
    return values[column.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)]
