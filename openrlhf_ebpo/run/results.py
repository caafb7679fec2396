"""Evaluation results on disk: <protocol>/<task>/step-000000/ with summary.json and samples.parquet, one row per
response.

`save_result` writes them, `find_results` and `read_samples` read them. summary.json is written last: it says that its
result is complete. They are a part of the run directory, which evaluation, Hub and Space share.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import replace_file, write_json
from openrlhf_ebpo.run.run_log import flatten
from openrlhf_ebpo.run.score_text import k_of

LIMITED = re.compile(r"-first\d+$")  # the suffix that --limit adds to a task's name
SCHEMA = 1
SUMMARY, SAMPLES_FILE = "summary.json", "samples.parquet"
REQUIRED = ("model", "step", "task", "protocol", "metrics")  # of a summary.json
MAX_NUMBER = 1e12  # in its metrics: a larger one is damage
NUMBERS = ("questions", "samples_per_question", "truncated", "mean_length")  # of its metrics, with pass@1
SAMPLES = pa.schema(
    [
        ("question_id", pa.string()),
        ("question", pa.string()),
        ("prompt", pa.string()),  # as the model got it
        ("gold", pa.string()),
        ("response", pa.string()),
        ("extracted", pa.string()),  # null: no answer
        ("correct", pa.bool_()),
        ("error", pa.string()),  # why grading failed, null otherwise
        ("length", pa.int32()),  # tokens
        ("finish_reason", pa.string()),  # "length": truncated
        ("seed", pa.int64()),
        ("sample", pa.int32()),  # the run, from 0
        ("class", pa.int32()),  # equivalence class of the answer within its question, -1: no answer
        ("rules", pa.string()),  # of the question, as JSON: score.py scores the file again by them
    ]
)
PLACES = ("*/*/step-*", "*/step-*", "step-*", "")  # a results directory, a protocol's, a task's, a step's


@dataclass(frozen=True)
class Result:
    """One task, evaluated at one step under one protocol; `path` is its directory."""

    path: Path
    summary: dict

    @property
    def task(self) -> str:
        return self.summary["task"]["name"]

    @property
    def step(self) -> int:
        return self.summary["step"]

    @property
    def protocol(self) -> dict:
        return self.summary["protocol"]

    @property
    def n(self) -> int:
        """Return the samples per question of the protocol."""
        return self.protocol["n"]

    @property
    def metrics(self) -> dict:
        """Return the metrics of metrics.summarise."""
        return self.summary["metrics"]

    @cached_property
    def samples(self) -> Samples:
        return read_samples(self.path, self.n)


@dataclass(frozen=True)
class Samples:
    """Graded samples as arrays: question_ids (Q,) in order, the others (Q, n), sample i of a question in column i."""

    question_ids: np.ndarray
    correct: np.ndarray
    classes: np.ndarray
    lengths: np.ndarray
    truncated: np.ndarray


def step_directory(results_dir: str | Path, protocol: str, task: str, step: int) -> Path:
    """Return the folder of a result; results_dir is a run's `eval/`."""
    return Path(results_dir) / protocol / task / f"step-{step:06d}"


def sample_rows(question_id: str, question: str, gold: str, rules: str, columns: Mapping[str, Sequence]) -> list[dict]:
    """Make rows of SAMPLES for the responses to one question. columns: the columns that differ between them, in order
    of samples."""
    common = {"question_id": question_id, "question": question, "gold": gold, "rules": rules}
    return [
        {**common, "sample": sample, **dict(zip(columns, values, strict=True))}
        for sample, values in enumerate(zip(*columns.values(), strict=True))
    ]


def save_result(directory: str | Path, summary: dict, rows: Sequence[dict]) -> None:
    """Write both files.

    Args:
        summary: model, step, task (name, source, questions, fingerprint), protocol (every setting, name and
            fingerprint), metrics (metrics.summarise), versions, seeds, counts (excluded_golds, errors); and, if it is
            known, prompt, the template and chat template of the questions, as a dict.
        rows: one per response, with the columns of SAMPLES.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / SUMMARY).unlink(missing_ok=True)
    with replace_file(directory / SAMPLES_FILE) as temporary:
        pq.write_table(pa.Table.from_pylist(list(rows), schema=SAMPLES), temporary, compression="zstd")
    write_json(directory / SUMMARY, {"schema": SCHEMA, **summary})


def find_results(directory: str | Path) -> list[Result]:
    """Return all results in a run directory, a results directory or a part of one, by task and step.

    Raises:
        UsageError: there is no result, one is damaged, or it was written by another version.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory; name a run or a directory with evaluation results")
    if paths := result_directories(directory / "eval") or result_directories(directory):
        return sorted(map(read_result, paths), key=lambda result: (result.task, result.step))
    raise UsageError(
        f"{directory} holds no evaluation results (<protocol>/<task>/step-*/summary.json of schema {SCHEMA}); make "
        "some with openrlhf-ebpo eval"
    )


def result_directories(folder: Path) -> list[Path]:
    """List the directories step-… of a results directory or a part of one."""
    found = (sorted(folder.glob(str(Path(place, SUMMARY)))) for place in PLACES)
    return [path.parent for path in next(filter(None, found), [])]


def read_result(directory: str | Path) -> Result:
    """Read the result in one directory step-…

    Raises:
        UsageError: the result is missing, damaged, or it was written by another version.
    """
    path = Path(directory) / SUMMARY
    try:
        summary = json.loads(path.read_text())
    except FileNotFoundError:
        raise UsageError(f"{path} is missing; evaluate again") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is damaged: {error}; evaluate again") from None
    if not isinstance(summary, dict):
        raise UsageError(f"{path} is damaged: it is not a JSON object; evaluate again")
    if (schema := summary.get("schema")) != SCHEMA:
        raise UsageError(f"{path} has schema {schema}, this version reads schema {SCHEMA}; evaluate again")
    if lacking := [name for name in REQUIRED if name not in summary]:
        raise UsageError(f"{path} is damaged: it has no {', '.join(lacking)}; evaluate again")
    if wrong := [name for name in REQUIRED if not _fits(name, summary[name])]:
        raise UsageError(f"{path} is damaged: {', '.join(wrong)} cannot be read; evaluate again")
    return Result(path.parent, summary)


def _fits(name: str, value: object) -> bool:
    """Return True if a field of a summary.json has the type that readers expect."""
    if name in ("task", "protocol"):
        return isinstance(value, dict) and isinstance(value.get("name"), str)
    if name == "metrics":
        return (
            isinstance(value, dict)
            and all(_is_number(value.get(each)) for each in NUMBERS)
            and _is_metric(value.get("pass@1"))
            and all(_is_metric(each) for name, each in value.items() if isinstance(each, dict) or k_of(name))
        )
    return name != "step" or type(value) is int


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < MAX_NUMBER


def _is_metric(metric: object) -> bool:
    if not isinstance(metric, dict):
        return False
    ends = [metric.get("interval"), metric.get("run_interval") or (0, 0)]
    if not all(isinstance(each, (list, tuple)) and len(each) == 2 for each in ends):
        return False
    numbers = [metric.get("value"), metric.get("standard_error") or 0, *ends[0], *ends[1]]
    return all(map(_is_number, numbers))


def read_samples(directory: str | Path, n: int) -> Samples:
    """Read the arrays of one result with n samples per question.

    Raises:
        UsageError: the file is missing or cannot be read, or samples are missing or too many.
    """
    table = read_columns(directory, ["question_id", "sample", "correct", "class", "length", "finish_reason"])
    column = {name: table[name].to_numpy() for name in table.column_names}
    try:
        check_counts(column["question_id"].tolist(), column["sample"].tolist(), n)
    except UsageError as error:
        raise UsageError(f"{Path(directory) / SAMPLES_FILE}: {error}; evaluate again") from None
    order = np.lexsort((column["sample"], column["question_id"]))
    grid = {name: values[order].reshape(-1, n) for name, values in column.items()}
    return Samples(
        question_ids=grid["question_id"][:, 0],
        correct=grid["correct"].astype(bool),
        classes=grid["class"].astype(int),
        lengths=grid["length"].astype(int),
        truncated=grid["finish_reason"] == "length",
    )


def read_columns(directory: str | Path, columns: Sequence[str]) -> pa.Table:
    """Read these columns of the samples of one result.

    Raises:
        UsageError: the file is missing, cannot be read, or has no rows.
    """
    path = Path(directory) / SAMPLES_FILE
    try:
        table = pq.read_table(path, columns=list(columns), partitioning=None)
    except FileNotFoundError:
        raise UsageError(f"{path} is missing; evaluate again") from None
    except pa.ArrowInvalid as error:
        raise UsageError(f"{path} cannot be read: {error}; columns {', '.join(columns)} are needed") from None
    if not table.num_rows:
        raise UsageError(f"{path} has no rows")
    return table


def check_counts(question_ids: Sequence[str], samples: Sequence[int], n: int) -> None:
    """Check that every question has the samples 0 … n - 1, each once; question_ids and samples are columns.

    Raises:
        UsageError: names the first question that has not; a mean over a wrong count is silently wrong.
    """
    numbers: dict[str, list[int]] = {}
    for question, sample in zip(question_ids, samples, strict=True):
        numbers.setdefault(question, []).append(sample)
    for question, found in numbers.items():
        if sorted(found) != list(range(n)):
            raise UsageError(
                f"question {question!r} has {len(found)} samples, {n} are needed for each question: 0 to {n - 1}, each "
                f"once; these are numbered {', '.join(map(str, sorted(found)[: n + 1]))}"
            )


def check_comparable(results: Sequence[Result]) -> None:
    """Check that results may share a table.

    Raises:
        UsageError: they are of different protocols, or of different questions under one task's name; names the settings
            that differ.
    """
    first = results[0]
    tasks: dict[str, Result] = {}
    for result in results:
        if different := differences(_settings(first.protocol), _settings(result.protocol)):
            settings = "; ".join(f"{name} is {was!r} and {now!r}" for name, was, now in different)
            raise UsageError(
                f"results of different protocols cannot share a table: {first.path} and {result.path} differ: "
                f"{settings}. Choose one protocol with --protocol NAME, or evaluate again under the same."
            )
        same = tasks.setdefault(result.task, result)
        asked = (
            {name: each.summary["task"].get(name) for name in ("fingerprint", "questions")} for each in (same, result)
        )
        if different := differences(*asked):
            raise UsageError(
                f"{result.task} stands for different questions in {same.path} and {result.path}: "
                + "; ".join(f"{name} {was!r} and {now!r}" for name, was, now in different)
            )


def _settings(protocol: dict) -> dict:
    return {name: value for name, value in protocol.items() if name not in ("name", "fingerprint")}


def differences(a: dict, b: dict) -> list[tuple[str, object, object]]:
    """Return (name, value in a, value in b) of all that differs, nested names with dots."""
    was, now = flatten(a), flatten(b)
    return [(name, was.get(name), now.get(name)) for name in {**was, **now} if was.get(name) != now.get(name)]
