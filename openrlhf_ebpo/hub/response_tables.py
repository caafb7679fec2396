"""Tables of responses as they are published: columns that are known, without secrets. Tests compare the names of these
columns with the writers'."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub.content import Content, LocalFile, local_file, opened, suspicious
from openrlhf_ebpo.hub.markdown import meanings
from openrlhf_ebpo.hub.public import public, public_data, public_text
from openrlhf_ebpo.run.run_log import PRIOR_START

ROW_GROUP_ROWS = 128  # as the trainings write them
ROLLOUTS = meanings(
    {
        "step": "training step",
        "prompt_id": "hash of prompt and label; the same in every run",
        "group": "number of the group (all responses to one prompt) in the batch, from 0",
        "sample": "number of the response in its group, from 0",
        "cluster": "topic of the prompt, where the training data has one",
        "prompt": "prompt as the model read it",
        "response": "response from its first token to the end, special tokens shown",
        "label": "what the reward function compared the response with",
        "raw_reward": "reward as the reward function gave it; null where it failed",
        "reward": "reward after length penalties and clipping; null for a response that was left out",
        "valid": "false for a response that was left out of training",
        "error": "why the reward failed; null otherwise",
        "group_mean": "mean reward of the group's valid responses",
        "baseline": "what was taken from the reward: EBPO's baseline of the group; null under estimators of OpenRLHF",
        "shrinkage": "weight of the prior in that baseline; null under estimators without one",
        "advantage": "advantage that was trained on (under EBPO: normalised, before any KL penalty)",
        "grpo_advantage": "what GRPO would have given for these rewards; 0 in a group of equal rewards",
        "response_length": "tokens of the response",
        "truncated": "true for a response that reached the token limit",
        "action_tokens": "tokens of the response that are trained on",
        "score_weight": "sum of (1 - probability)² over them, what score-weighted baselines weigh the response with",
    }
)
SAMPLES = meanings(
    {
        "question_id": "id of the question",
        "question": "the question, without any instruction",
        "prompt": "the prompt as the model got it",
        "gold": "the right answer",
        "response": "the model's response, special tokens left out",
        "extracted": "the answer found in it; null: none",
        "correct": "true if that answer is right",
        "error": "why grading failed; null otherwise",
        "length": "tokens of the response",
        "finish_reason": "`length`: the response was cut at the token limit",
        "seed": "of the engine that generated it",
        "sample": "number of the response to its question, from 0",
        "class": "responses to one question with the same number gave equivalent answers; -1: no answer",
        "rules": "how the question is scored (unit, tolerance, several answers), as JSON",
    }
)
KNOWN = {**ROLLOUTS, **SAMPLES}


def publishable_parquet(source: LocalFile, scratch: Path) -> LocalFile:
    """Return the file itself or, if something in it must not go, a copy in `scratch`. Read and written in pieces.

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
    except (pa.ArrowException, OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{source.path} cannot be read as Parquet: {error}; move it away, or repair it") from error
    return replace(local_file(copy), cleared=True, places=places)


def read_schema(content: Content) -> pa.Schema:
    with opened(content) as file:
        return pq.read_schema(file)


def goes_as_it_is(file: pq.ParquetFile) -> bool:
    schema = file.schema_arrow
    has_notes = schema.metadata or any(set(field.metadata or ()) - {b"PARQUET:field_id"} for field in schema)
    if has_notes or publishable(schema) != schema.names:
        return False
    texts = [field.name for field in schema if is_text(field.type)]
    return not any(changed(batch, public_batch(batch)) for batch in file.iter_batches(4096, columns=texts))


def publishable(schema: pa.Schema) -> list[str]:
    """The columns that go: those with a known name and plain values."""
    return [f.name for f in schema if f.name in KNOWN and (is_text(f.type) or pa.types.is_primitive(f.type))]


def changed(batch: pa.RecordBatch, public: pa.RecordBatch) -> list[str]:
    """Columns that are not as they were."""
    return [name for name in public.schema.names if not public[name].equals(_plain(batch[name]))]


def is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _copy(file: pq.ParquetFile, target: Path) -> tuple[str, ...]:
    """Returns the columns that are not as they were, or not there."""
    names = publishable(file.schema_arrow)
    schema = public_batch(pa.RecordBatch.from_pylist([], schema=file.schema_arrow).select(names)).schema
    if start := (file.schema_arrow.metadata or {}).get(PRIOR_START):
        schema = schema.with_metadata({PRIOR_START: json.dumps(public(json.loads(start)))})
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        places = dict.fromkeys(name for name in file.schema_arrow.names if name not in names)
        for batch in file.iter_batches(ROW_GROUP_ROWS, columns=names):
            shown = public_batch(batch)
            writer.write_batch(shown.replace_schema_metadata(schema.metadata))
            places |= dict.fromkeys(changed(batch, shown))
    return tuple(places)


def public_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Its texts without secrets, and errors without local paths. Prompts and responses are the data: they keep
    addresses with their query strings, and paths."""
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
