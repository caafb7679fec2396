"""Columns of the Parquet files of a run, which may have any type: as tables, Python's values, and arrays."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .errors import reading


def columns_of(file: pq.ParquetFile) -> list[str]:
    """List the names of the columns with one value a row. No file of a run has others (lists, structs), so they are not
    read."""
    schema = file.metadata.schema
    flat = (schema.column(i) for i in range(file.metadata.num_columns))
    return [column.path for column in flat if column.max_repetition_level == 0 and "." not in column.path]


def read(
    file: pq.ParquetFile, named: str, columns: Collection[str], start: int = 0, stop: int | None = None
) -> pa.Table:
    """Read those of the columns that the file has, of the rows from start to stop; only their row groups are read.

    Raises:
        RunError: they cannot be read.
    """
    with reading(named):
        row_groups, first, at = [], 0, 0
        for i in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(i).num_rows
            if (stop is None or at < stop) and at + rows > start:
                first = first if row_groups else at
                row_groups.append(i)
            at += rows
        table = file.read_row_groups(row_groups, [name for name in columns_of(file) if name in columns])
        # a copy: a slice would keep all of the row groups
        return table if stop is None else table.take(pa.array(range(start - first, min(stop - first, len(table)))))


def rows_of(table: pa.Table) -> list[dict]:
    """Return the rows of a table as dicts.

    Raises:
        RunError: a column cannot be read.
    """
    names = table.column_names
    return [dict(zip(names, values, strict=True)) for values in zip(*map(to_python, table.columns), strict=True)]


def to_python(column: pa.ChunkedArray) -> list:
    """Return Python's own values. Arrow does not look whether text is UTF-8: what is not becomes �.

    Raises:
        RunError: values that Python does not have.
    """
    with reading(f"A column of type {str(column.type)[:80]}"):
        try:
            return column.to_pylist()
        except UnicodeDecodeError:
            return [v if v is None else v.decode("utf-8", "replace") for v in column.cast(pa.binary()).to_pylist()]


def numbers(table: pa.Table, name: str) -> np.ndarray:
    """Return a column as float64, NaN where it has nothing."""
    if name not in table.column_names:
        return np.full(table.num_rows, np.nan)
    return table[name].cast(pa.float64()).to_numpy(zero_copy_only=False).astype(float)


def flags(table: pa.Table, name: str, default: np.ndarray) -> np.ndarray:
    if name not in table.column_names:
        return default
    column = table[name].cast(pa.bool_())
    return np.where(
        column.is_valid().to_numpy(zero_copy_only=False),
        pc.fill_null(column, False).to_numpy(zero_copy_only=False),
        default,
    )
