"""Read Parquet within bounds of memory. A file of a few kilobytes may hold gigabytes: encodings store a value once that
thousands of rows repeat. So what counts here is what lies in memory, not what the file says of its size."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from .errors import RunError, reading

MAX_TABLE_ROWS = 2**21
MAX_TABLE_BYTES = 256 * 2**20  # of the rows that are kept
MAX_READ_BYTES = 4 * 2**30  # of the rows on the way to them
_BATCH_BYTES = 256 * 2**20
_BATCH_ROWS = 2**17
_NUMBER_BYTES = 16  # of the widest number: a decimal


def columns_of(file: pq.ParquetFile) -> list[str]:
    """Names of the columns with one value a row. No file of a run has others (lists, structs), so they are not read."""
    schema = file.metadata.schema
    flat = (schema.column(i) for i in range(file.metadata.num_columns))
    return [column.path for column in flat if column.max_repetition_level == 0 and "." not in column.path]


def batches(
    file: pq.ParquetFile, columns: Collection[str], row_groups: Sequence[int], most_rows: int = _BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Rows of these row groups in order, so many at a time that no batch can exceed _BATCH_BYTES; dictionaries and
    views as plain columns.

    Raises:
        RunError: more than MAX_READ_BYTES were read.
    """
    rows = max(min(_BATCH_BYTES // _longest_row(file.metadata, columns, row_groups), most_rows), 1)
    size = 0
    for batch in file.iter_batches(rows, row_groups=row_groups, columns=list(columns)):
        plain = pa.RecordBatch.from_arrays([_plain(column) for column in batch.columns], names=batch.schema.names)
        size += plain.nbytes
        if size > MAX_READ_BYTES:
            raise RunError(f"It has more than {MAX_READ_BYTES >> 30} GiB of text; read the Parquet file itself.")
        yield plain


def read(
    file: pq.ParquetFile, named: str, columns: Collection[str], start: int = 0, stop: int | None = None
) -> pa.Table:
    """Read those of the columns that the file has, of the rows from start to stop.

    Raises:
        RunError: it cannot be read, or the rows have more than MAX_TABLE_ROWS or MAX_TABLE_BYTES.
    """
    stop = file.metadata.num_rows if stop is None else min(stop, file.metadata.num_rows)
    if stop - start > MAX_TABLE_ROWS:
        raise RunError(f"{named} is left out: more than {MAX_TABLE_ROWS:,} rows.")
    present = [name for name in columns_of(file) if name in columns]
    with reading(named):
        return _cut(file, named, present, start, stop)


def _cut(file: pq.ParquetFile, named: str, columns: list[str], start: int, stop: int) -> pa.Table:
    parts, size = [], 0
    row_groups, at = _row_groups(file.metadata, start, stop)
    for batch in batches(file, columns, row_groups) if row_groups and columns else ():
        first, last = max(start - at, 0), min(stop - at, batch.num_rows)
        if first < last:
            # a copy: a slice would keep all of the batch
            parts.append(batch if last - first == batch.num_rows else batch.take(pa.array(range(first, last))))
            size += parts[-1].nbytes
        if size > MAX_TABLE_BYTES:
            raise RunError(f"{named} is left out: more than {MAX_TABLE_BYTES >> 20} MiB of rows; read the file itself.")
        at += batch.num_rows
        if at >= stop:
            break
    if parts:
        return pa.Table.from_batches(parts)
    empty = file.schema_arrow.empty_table().select(columns)
    return pa.table({name: _plain(empty[name].combine_chunks()) for name in columns})


def _row_groups(metadata: pq.FileMetaData, start: int, stop: int) -> tuple[list[int], int]:
    """Numbers of the row groups that hold these rows, and the first row of the first."""
    chosen, first, at = [], 0, 0
    for i in range(metadata.num_row_groups):
        rows = metadata.row_group(i).num_rows
        if at < stop and at + rows > start:
            first = first if chosen else at
            chosen.append(i)
        at += rows
    return chosen, first


def _longest_row(metadata: pq.FileMetaData, columns: Collection[str], row_groups: Sequence[int]) -> int:
    """Bytes that no row exceeds: a text is not longer than all the texts that its part of the file stores."""
    longest = 1
    for number in row_groups:
        group = metadata.row_group(number)
        chunks = (group.column(i) for i in range(metadata.num_columns))
        longest = max(longest, sum(_longest_value(chunk) for chunk in chunks if chunk.path_in_schema in columns))
    return longest


def _longest_value(chunk: pq.ColumnChunkMetaData) -> int:
    return chunk.total_uncompressed_size if chunk.physical_type.endswith("BYTE_ARRAY") else _NUMBER_BYTES


def _plain(column: pa.Array) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    views = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary(), pa.large_string(): pa.string()}
    return column.cast(views[column.type]) if column.type in views else column
