"""The rollouts of a selection as a download: CSV, Parquet or JSON lines, written while it is sent.

A spreadsheet takes a cell that begins with = + - or @ for a formula, and runs it. So in CSV a text that begins with one of
them, also behind blanks, or with ', gets a ' in front; a reader takes one ' off every text that begins with one. Numbers
have none. Parquet and JSON lines hold texts as they are.
"""

from __future__ import annotations

import csv
import io
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .errors import RunError
from .groups import Groups, file_of, listed, open_file
from .runs import Run
from .search import finite
from .selection import query
from .text import HTML, attribute, html, joined

ROWS = 200_000  # responses in one export
BYTES = 2**30  # of one file that is sent
SECONDS = 900.0  # to send it
_AT_A_TIME = 64  # rows
_ROW_GROUP = 16 * 2**20  # bytes of an exported Parquet file's row group
_LARGEST = 2 * 2**30  # bytes of one row group that is read, decompressed
_LOOKED_AT = 4  # files for an estimate
_FORMULA = re.compile(r"[\s\0\ufeff]*[=+\-@＝＋－＠]|'")


@dataclass(frozen=True)
class Format:
    """write: tables of one schema -> pieces of the file."""

    name: str
    media_type: str
    write: Callable[[Iterator[pa.Table], pa.Schema], Iterator[bytes]]


def links(view: dict, run: Run, groups: Groups, positions: np.ndarray) -> HTML:
    """A menu of the downloads of these groups: how many rows, about how large, one button a format."""
    rows = int(groups.size[positions].sum())
    if not rows:
        return HTML()
    if rows > ROWS:
        said = html("{:,} responses: an export has at most {:,}. Narrow the filters, or the steps.", rows, ROWS)
    else:
        size = about(run, groups, positions)
        of = html("{:,} group{}, {:,} responses{}", len(positions), "" if len(positions) == 1 else "s", rows, size)
        said = of + joined(_link(view, run, kind) for kind in FORMATS)
    return html('<details class="exports"><summary>Export</summary><p>{}</p><p role="status"></p></details>', said)


def _link(view: dict, run: Run, kind: str) -> HTML:
    asked = attribute(f"{query(view, run.key)}&format={kind}")
    return html(' <button type="button" data-download="{}">{}</button>', asked, FORMATS[kind].name)


def about(run: Run, groups: Groups, positions: np.ndarray) -> str:
    """ ", about 12 MB": by the bytes a row of a few of the files; nothing where they cannot be read."""
    steps = np.unique(groups.step[positions])
    size = rows = 0
    for step in steps[np.linspace(0, len(steps) - 1, min(_LOOKED_AT, len(steps))).astype(int)]:
        try:
            metadata = open_file(run, file_of(run, step) or "").metadata
        except RunError:
            continue
        size += sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        rows += metadata.num_rows
    total = size / rows * int(groups.size[positions].sum()) if rows else 0
    return f", about {readable_size(total)} of text" if total else ""


def readable_size(size: float) -> str:
    return f"{size / 2**20:,.0f} MB" if size >= 2**20 else f"{max(size / 2**10, 1):,.0f} kB"


def name_of(run: Run, kind: str) -> str:
    """Of the file, harmless in a header."""
    return f"{re.sub(r'[^A-Za-z0-9.-]+', '_', run.key).strip('._')[-80:] or 'run'}-rollouts.{kind}"


def export(run: Run, groups: Groups, positions: np.ndarray, kind: str) -> Iterator[bytes]:
    """The file, in pieces. What ends it in the middle is an error, so that nobody takes a part for the whole.

    Raises:
        RunError: there are too many rows, or what they are read from is gone, damaged or of several schemas.
    """
    if (rows := int(groups.size[positions].sum())) > ROWS:
        raise RunError(f"{rows:,} responses: an export has at most {ROWS:,}. Narrow the filters, or the steps.")
    steps = list(dict.fromkeys(groups.step[positions].tolist()))
    schema = _schema([_file(run, step).schema_arrow for step in steps])
    tables = (
        conformed(table, schema)
        for step in steps
        for table in rows_in(_file(run, step), groups, positions[groups.step[positions] == step])
    )
    return _bounded(FORMATS[kind].write(tables, schema))


def _bounded(pieces: Iterator[bytes]) -> Iterator[bytes]:
    sent, until = 0, time.monotonic() + SECONDS
    for piece in pieces:
        sent += len(piece)
        if time.monotonic() > until:
            raise RunError(f"The export took longer than {SECONDS:.0f} seconds. Narrow the filters, or the steps.")
        if sent > BYTES:
            raise RunError(f"The export is larger than {BYTES >> 20} MiB. Narrow the filters, or the steps.")
        yield piece


def _file(run: Run, step: int) -> pq.ParquetFile:
    name = file_of(run, step)
    if name is None:
        raise RunError(f"The rollouts of step {step} are gone.")
    return open_file(run, name)


def _schema(schemas: list[pa.Schema]) -> pa.Schema:
    try:
        return pa.unify_schemas([schema.remove_metadata() for schema in schemas], promote_options="permissive")
    except pa.ArrowException:
        raise RunError("The files of these steps have columns of different types; choose fewer steps.") from None


def rows_in(file: pq.ParquetFile, groups: Groups, positions: np.ndarray) -> Iterator[pa.Table]:
    """Rows of these groups of one step, in the file's order; row groups without any are not read.

    Raises:
        RunError: the file is damaged.
    """
    wanted = np.zeros(file.metadata.num_rows, bool)
    for first, size in zip(groups.row[positions], groups.size[positions], strict=True):
        wanted[first : first + size] = True
    start = 0
    try:
        for number in range(file.metadata.num_row_groups):
            stop = start + file.metadata.row_group(number).num_rows
            if file.metadata.row_group(number).total_byte_size > _LARGEST:
                raise RunError(f"A rollout file has more than {_LARGEST >> 30} GiB unpacked.")
            if wanted[start:stop].any():
                yield from _marked(file, number, wanted[start:stop])
            start = stop
    except (pa.ArrowException, OSError, ValueError):
        raise RunError("A rollout file is damaged or incomplete.") from None


def _marked(file: pq.ParquetFile, row_group: int, wanted: np.ndarray) -> Iterator[pa.Table]:
    at = 0
    for batch in file.iter_batches(_AT_A_TIME, row_groups=[row_group]):
        mask = wanted[at : at + batch.num_rows]
        if mask.any():
            yield pa.Table.from_batches([batch.filter(pa.array(mask))])
        at += batch.num_rows


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """With all columns of the schema: what an older version has not written is null."""
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _csv(tables: Iterator[pa.Table], schema: pa.Schema) -> Iterator[bytes]:
    yield _csv_lines([[guarded(name) for name in schema.names]])
    for table in tables:
        yield _csv_lines(zip(*(map(_cell, listed(column)) for column in table.columns), strict=True))


def _csv_lines(rows) -> bytes:
    lines = io.StringIO(newline="")
    csv.writer(lines, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n").writerows(rows)
    return lines.getvalue().encode("utf-8", "replace")


def _cell(value):
    """A number as it is, anything else as guarded text; nothing for null and NaN."""
    if value is None or value != value:
        return ""
    if isinstance(value, (bool, int, float)):
        return value
    return guarded(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def guarded(text: str) -> str:
    return f"'{text}" if _FORMULA.match(text) else text


def _json_lines(tables: Iterator[pa.Table], schema: pa.Schema) -> Iterator[bytes]:
    for table in tables:
        rows = zip(*map(listed, table.columns), strict=True)
        lines = (finite(dict(zip(schema.names, row, strict=True))) for row in rows)
        yield "".join(f"{json.dumps(line, ensure_ascii=False, default=str)}\n" for line in lines).encode()


def _parquet(tables: Iterator[pa.Table], schema: pa.Schema) -> Iterator[bytes]:
    written = _Written()
    with pq.ParquetWriter(pa.PythonFile(written, "w"), schema, compression="zstd") as writer:
        for table in _gathered(tables):
            writer.write_table(table)
            yield written.taken()
    yield written.taken()


def _gathered(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Larger tables: each becomes a row group."""
    kept: list[pa.Table] = []
    for table in tables:
        kept.append(table)
        if sum(each.nbytes for each in kept) > _ROW_GROUP:
            yield pa.concat_tables(kept)
            kept = []
    if kept:
        yield pa.concat_tables(kept)


class _Written(io.RawIOBase):
    """Takes what a writer writes; `taken` hands over what has come since the last time."""

    def __init__(self):
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        self._pieces.append(bytes(data))
        return len(self._pieces[-1])

    def taken(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


FORMATS = {
    "csv": Format("CSV", "text/csv; charset=utf-8", _csv),
    "parquet": Format("Parquet", "application/vnd.apache.parquet", _parquet),
    "jsonl": Format("JSON lines", "application/jsonl; charset=utf-8", _json_lines),
}
