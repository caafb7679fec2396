"""The paper's five benchmarks: where they are, which columns hold what, and their traps.

| task | copies and what differs |
| --- | --- |
| aime24 | HuggingFaceH4 (problem, answer "025"), Maxwell-Jia (Problem, Answer), math-ai (problem, solution `\\boxed{204}`) |
| aime25 | math-ai and yentinglin (problem, answer) |
| amc23 | math-ai and Qwen2.5-Math's copy (question, answer 27.0 or ["27.0"]); sets of 46 or 83 rows are others |
| math500 | HuggingFaceH4 (problem, answer; subject, level, unique_id) |
| olympiadbench | Hothan, OE_TO_maths_en_COMP (question, final_answer list, …); Qwen2.5-Math's copy has 675 rows |
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from openrlhf_ebpo.data.source import lookup
from openrlhf_ebpo.data.table import READ_SUFFIXES
from openrlhf_ebpo.errors import UsageError

from .gold import gold_text, integer_text
from .rows import FLAG, HubSet, Rows, choose_column, file_rows, hub_rows, make_task, question_text
from .types import Rules, Task


@dataclass(frozen=True)
class Benchmark:
    """hub: the copies on the Hub, the default one first. rows: of the copies that count as this benchmark.
    other_sets: row counts of sets that go by the same name, and which they are. integer: all golds are integers."""

    hub: tuple[HubSet, ...]
    rows: tuple[int, ...]
    question: tuple[str, ...] = ("problem", "question", "prompt")
    answer: tuple[str, ...] = ("answer", "final_answer", "solution")
    integer: bool = False
    other_sets: dict[int, str] = field(default_factory=dict)


BENCHMARKS = {
    "aime24": Benchmark(
        hub=(
            HubSet("HuggingFaceH4/aime_2024", "train"),
            HubSet("Maxwell-Jia/AIME_2024", "train"),
            HubSet("math-ai/aime24", "test"),
        ),
        rows=(30,),
        integer=True,
        other_sets={90: "AIME of 2022, 2023 and 2024 together"},
    ),
    "aime25": Benchmark(
        hub=(HubSet("math-ai/aime25", "test"), HubSet("yentinglin/aime_2025", "train")), rows=(30,), integer=True
    ),
    "amc23": Benchmark(
        hub=(HubSet("math-ai/amc23", "test"),),
        rows=(40,),
        integer=True,
        other_sets={46: "another selection", 83: "AMC of 2022 and 2023 together"},
    ),
    "math500": Benchmark(
        hub=(HubSet("HuggingFaceH4/MATH-500", "test"),), rows=(500,), other_sets={5000: "the whole MATH test set"}
    ),
    "olympiadbench": Benchmark(
        hub=(HubSet("Hothan/OlympiadBench", "train", "OE_TO_maths_en_COMP"),),
        rows=(674, 675),
        question=("question", "problem"),
        answer=("final_answer", "answer"),
    ),
}
# Of OlympiadBench; each may be missing.
OLYMPIAD_COLUMNS = ("context", "is_multiple_answer", "unit", "answer_type", "error")


def load_benchmark(name: str, place: str | None = None, data_dir: str | None = None) -> Task:
    """place: a file, or OWNER/NAME[@REVISION] of one of its copies on the Hub; None: `<name>.parquet`, `.jsonl` or
    `.json` in data_dir if there is one, or else the default copy on the Hub.

    Raises:
        UsageError: neither can be read, or what is there is another data set.
    """
    benchmark = BENCHMARKS[name]
    rows = _rows(name, benchmark, place, data_dir)
    if other := benchmark.other_sets.get(len(rows.rows)):
        raise UsageError(
            f"{FLAG} {name}: {rows.place} has {len(rows.rows)} rows, {name} has {_numbers(benchmark)}. This is {other}. "
            f"{FLAG} file:PATH evaluates on it under a name of its own"
        )
    question = choose_column(rows.columns, benchmark.question, rows.place, "question")
    answer = choose_column(rows.columns, benchmark.answer, rows.place, "gold answer")
    read = functools.partial(_read, question=question, answer=answer, integer=benchmark.integer)
    return make_task(name, rows, read, _missing_columns(name, rows), benchmark.rows)


def _rows(name: str, benchmark: Benchmark, place: str | None, data_dir: str | None) -> Rows:
    place = place or _file_in(name, data_dir)
    if place is None:
        return _from_hub(benchmark.hub[0], benchmark, name)
    if Path(place).suffix.lower() in READ_SUFFIXES:
        return file_rows(place)
    repo, _, revision = place.partition("@")
    known = {hub.repo: hub for hub in benchmark.hub}
    if repo not in known:
        raise UsageError(
            f"{FLAG} {name}={place}: neither a {'/'.join(READ_SUFFIXES)} file nor a known copy on the Hub "
            f"({', '.join(known)}). {FLAG} file:PATH evaluates on any file with questions and answers"
        )
    hub = known[repo]
    return _from_hub(HubSet(repo, hub.split, hub.subset, revision or None), benchmark, name)


def _from_hub(hub: HubSet, benchmark: Benchmark, name: str) -> Rows:
    names = (*benchmark.question, *benchmark.answer)
    return hub_rows(hub, [*names, *(text.capitalize() for text in names), *OLYMPIAD_COLUMNS], name)


def _file_in(name: str, data_dir: str | None) -> str | None:
    if data_dir is None:
        return None
    if not Path(data_dir).is_dir():
        raise UsageError(f"--data_dir {data_dir}: no such folder")
    files = [Path(data_dir, name + suffix) for suffix in READ_SUFFIXES]
    return next((str(file) for file in files if file.is_file()), None)


def _read(row: dict, question: str, answer: str, integer: bool) -> tuple[str, str, Rules]:
    value = lookup(row, answer)
    text, gold = _with_context(row, question_text(row, question)), gold_text(value)
    if integer:
        return text, integer_text(gold), Rules()
    first = str(value[0] if isinstance(value, (list, tuple)) else value)
    return text, gold, olympiad_rules(row, value, first if first != gold else "")


def _with_context(row: dict, question: str) -> str:
    context = row.get("context")
    return f"{context.strip()}\n\n{question}" if isinstance(context, str) and context.strip() else question


def olympiad_rules(row: dict, answer, source_gold: str = "") -> Rules:
    """Rules from OlympiadBench's columns, where a row has them.

    Raises:
        ValueError: a tolerance that is no number.
    """
    several = isinstance(answer, (list, tuple)) and len(answer) > 1
    answer_type = row.get("answer_type") or ""
    multiple = bool(row.get("is_multiple_answer")) or several
    return Rules(
        answer_type=answer_type,
        is_multiple_answer=multiple,
        ordered=answer_type == "Tuple" and not multiple,
        unit=str(row.get("unit") or "").replace("$", "").strip(),
        tolerance=_tolerance(row.get("error")),
        source_gold=source_gold,
    )


def _tolerance(value) -> float | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        return abs(float(value))
    except (TypeError, ValueError):
        raise ValueError(f"its tolerance (column error) is no number: {value!r}") from None


def _missing_columns(name: str, rows: Rows) -> Sequence[str]:
    missing = [column for column in OLYMPIAD_COLUMNS[1:] if column not in rows.columns]
    if name != "olympiadbench" or not missing:
        return []
    return [f"{rows.place} has no {', '.join(missing)}: units and tolerances there may be are not known"]


def _numbers(benchmark: Benchmark) -> str:
    return " or ".join(map(str, benchmark.rows))
