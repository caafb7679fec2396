"""Tables of responses as they are published: columns that are known, without secrets, in small row groups."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub import columns
from openrlhf_ebpo.hub.local_files import LocalFile, local_file
from openrlhf_ebpo.hub.public import public_data, public_text
from openrlhf_ebpo.redact import find_private, own_homes, private_pattern

LARGE_ROW_GROUP_BYTES = 32 << 20  # uncompressed: above it a reader of one page of rows loads too much
ROW_GROUP_BYTES = 8 << 20
KNOWN = {**columns.ROLLOUTS, **columns.SAMPLES}


@dataclass(frozen=True)
class CleanTable(LocalFile):
    """A table that has been looked through. places: columns that are not as they were."""

    places: tuple[str, ...] = ()


def publishable_parquet(source: LocalFile, scratch: Path) -> CleanTable:
    """The file itself or, where something in it must not go, or its row groups are too large to be read lazily, a copy in
    `scratch`. Read and written in pieces.

    Raises:
        UsageError: it is damaged.
    """
    try:
        with source.open() as opened:
            file = pq.ParquetFile(opened)
            if goes_as_it_is(file):
                return CleanTable(**vars(source))
            scratch.mkdir(parents=True, exist_ok=True)
            copy = scratch / f"{len(list(scratch.iterdir()))}.parquet"
            changed = _copy(file, copy)
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{source.path} cannot be read as Parquet: {error}; move it away, or repair it") from error
    return CleanTable(**vars(local_file(copy)), places=changed)


def private_column(content: LocalFile | bytes) -> str | None:
    """The first column of a table, made by whomever, that has something private; "schema" where its notes have.

    Raises:
        UsageError: it is no table.
    """
    try:
        with io.BytesIO(content) if isinstance(content, bytes) else content.open() as opened:
            file = pq.ParquetFile(opened)
            if find_private(file.schema_arrow.to_string(truncate_metadata=False), own_homes()) is not None:
                return "schema"
            for batch in file.iter_batches(batch_size=4096):
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    if not is_text(column.type) and not pa.types.is_primitive(column.type):
                        column = pa.array(map(str, column.to_pylist()), pa.string())
                    if is_text(column.type) and _is_private(column):
                        return name
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"a table that is to be published cannot be read as Parquet: {error}") from error
    return None


def _is_private(column: pa.Array) -> bool:
    texts = _plain(column).filter(suspicious(column)).to_pylist()
    return any(find_private(text, own_homes()) is not None for text in texts)


def read_schema(file: LocalFile) -> pa.Schema:
    with file.open() as opened:
        return pq.read_schema(opened)


def goes_as_it_is(file: pq.ParquetFile) -> bool:
    metadata, schema = file.metadata, file.schema_arrow
    large = any(metadata.row_group(i).total_byte_size > LARGE_ROW_GROUP_BYTES for i in range(metadata.num_row_groups))
    noted = schema.metadata or any(set(field.metadata or ()) - {b"PARQUET:field_id"} for field in schema)
    if large or noted or publishable(schema) != schema.names:
        return False
    texts = [field.name for field in schema if is_text(field.type)]
    return not any(map(must_change, file.iter_batches(columns=texts))) if texts else True


def publishable(schema: pa.Schema) -> list[str]:
    """The columns that go: those with a known name and plain values."""
    return [f.name for f in schema if f.name in KNOWN and not pa.types.is_nested(f.type) and not _is_binary(f.type)]


def must_change(batch: pa.RecordBatch) -> bool:
    """Whether there is an error, which may name local paths, or a secret in any column."""
    named = dict(zip(batch.schema.names, batch.columns, strict=True))
    error = named.pop("error", None)
    if error is not None and error.null_count < len(error):
        return True
    texts = [_plain(column).cast(pa.large_string()) for column in named.values()]
    return (
        bool(texts) and pc.any(suspicious(pa.concat_arrays(texts))).as_py()
    )  # at once: RE2 reads its pattern every time


def suspicious(column: pa.Array) -> pa.Array:
    return pc.fill_null(pc.match_substring_regex(_plain(column), _pattern()), False)


def _pattern() -> str:
    return private_pattern(own_homes())


def is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _copy(file: pq.ParquetFile, target: Path) -> tuple[str, ...]:
    """Returns the columns that are not as they were, or not there."""
    metadata, names = file.metadata, publishable(file.schema_arrow)
    size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    rows = max(1, metadata.num_rows * ROW_GROUP_BYTES // max(size, 1))
    schema = public_batch(pa.RecordBatch.from_pylist([], schema=file.schema_arrow).select(names)).schema
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        changed = dict.fromkeys(name for name in file.schema_arrow.names if name not in names)
        for batch in file.iter_batches(batch_size=min(rows, metadata.num_rows or 1), columns=names):
            public = public_batch(batch)
            writer.write_batch(public)
            changed |= dict.fromkeys(name for name in names if not public[name].equals(_plain(batch[name])))
    return tuple(changed)


def public_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Its texts without secrets, and errors without local paths. Prompts and responses are the data: they keep addresses
    with their query strings, and paths."""
    texts = {
        name: _public_column(_plain(column), public_text if name == "error" else public_data, name == "error")
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if is_text(column.type)
    }
    return pa.RecordBatch.from_pydict({**{name: batch[name] for name in batch.schema.names}, **texts})


def _public_column(column: pa.Array, clean, all_rows: bool) -> pa.Array:
    rows = column.is_valid() if all_rows else suspicious(column)
    if not pc.any(rows).as_py():
        return column
    cleaned = [clean(text) for text in column.filter(rows).to_pylist()]
    return pc.replace_with_mask(column, rows, pa.array(cleaned, column.type))
