"""Tables of responses as they are published: columns that are known, without secrets, in small row groups."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub import columns
from openrlhf_ebpo.hub.local_files import LocalFile, local_file, opened
from openrlhf_ebpo.hub.public import public_data, public_text
from openrlhf_ebpo.redact import find_private, own_homes, private_pattern

LARGE_ROW_GROUP_BYTES = 32 << 20  # uncompressed: above it a reader of one page of rows loads too much
ROW_GROUP_BYTES = 8 << 20
KNOWN = {**columns.ROLLOUTS, **columns.SAMPLES}


def publishable_parquet(source: LocalFile, scratch: Path) -> LocalFile:
    """The file itself or, where something in it must not go, or its row groups are too large to be read lazily, a copy in
    `scratch`. Read and written in pieces.

    Raises:
        UsageError: it is damaged.
    """
    try:
        with source.open() as table:
            file = pq.ParquetFile(table)
            if goes_as_it_is(file):
                return replace(source, cleared=True)
            scratch.mkdir(parents=True, exist_ok=True)
            copy = scratch / f"{len(list(scratch.iterdir()))}.parquet"
            places = _copy(file, copy)
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{source.path} cannot be read as Parquet: {error}; move it away, or repair it") from error
    return replace(local_file(copy), cleared=True, places=places)


def private_column(content: LocalFile | bytes) -> str | None:
    """The first column of any table that has something private; "schema" where its notes have.

    Raises:
        UsageError: it is not a table.
    """
    try:
        with opened(content) as source:
            file = pq.ParquetFile(source)
            if find_private(file.schema_arrow.to_string(truncate_metadata=False), own_homes()) is not None:
                return "column schema"
            for batch in file.iter_batches(batch_size=4096):
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    if not is_text(column.type) and not pa.types.is_primitive(column.type):
                        column = pa.array(map(str, column.to_pylist()), pa.string())
                    if is_text(column.type) and _is_private(column):
                        return f"column {name}"
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"a table that is to be published cannot be read as Parquet: {error}") from error
    return None


def _is_private(column: pa.Array) -> bool:
    texts = _plain(column).filter(suspicious(column)).to_pylist()
    return any(find_private(text, own_homes()) is not None for text in texts)


def suspicious(column: pa.Array) -> pa.Array:
    """Mark the texts that may hold something private; placeholders too."""
    return pc.fill_null(pc.match_substring_regex(_plain(column), private_pattern(own_homes())), False)


def read_schema(file: LocalFile) -> pa.Schema:
    with file.open() as table:
        return pq.read_schema(table)


def goes_as_it_is(file: pq.ParquetFile) -> bool:
    metadata, schema = file.metadata, file.schema_arrow
    large = any(metadata.row_group(i).total_byte_size > LARGE_ROW_GROUP_BYTES for i in range(metadata.num_row_groups))
    noted = schema.metadata or any(set(field.metadata or ()) - {b"PARQUET:field_id"} for field in schema)
    if large or noted or publishable(schema) != schema.names:
        return False
    texts = [field.name for field in schema if is_text(field.type)]
    return not any(changed(batch, public_batch(batch)) for batch in file.iter_batches(4096, columns=texts))


def publishable(schema: pa.Schema) -> list[str]:
    """The columns that go: those with a known name and plain values."""
    return [f.name for f in schema if f.name in KNOWN and not pa.types.is_nested(f.type) and not _is_binary(f.type)]


def changed(batch: pa.RecordBatch, public: pa.RecordBatch) -> list[str]:
    """Columns that are not as they were."""
    return [name for name in public.schema.names if not public[name].equals(_plain(batch[name]))]


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
        places = dict.fromkeys(name for name in file.schema_arrow.names if name not in names)
        for batch in file.iter_batches(batch_size=min(rows, metadata.num_rows or 1), columns=names):
            public = public_batch(batch)
            writer.write_batch(public)
            places |= dict.fromkeys(changed(batch, public))
    return tuple(places)


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
