"""Tasks by name: the benchmarks of FILES and outside this package, and any file.

NAME                                           from the Hugging Face Hub
NAME=FILE, NAME=OWNER/NAME[@REVISION]          from a local file, or another of its known copies on the Hub
my_package.my_module:TASK                      a benchmark outside this package; with =… as above
file:questions.jsonl                           any .parquet or .jsonl file with a question and an answer

Each benchmark is a file of this folder and its name in FILES; benchmark.py has its fields, loading.py makes a Task of
it.
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from importlib import import_module

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.extension import is_import_path
from openrlhf_ebpo.extension import load as load_object

from .benchmark import Benchmark, gold_text
from .loading import FILE, load_benchmark, load_file
from .task_rows import TASKS_FLAG, HubSet
from .types import MATH, Question, Rules, Task, column_rules

__all__ = [
    "BENCHMARKS",
    "FILE",
    "MATH",
    "Benchmark",
    "HubSet",
    "Question",
    "Rules",
    "Task",
    "check_specs",
    "column_rules",
    "describe_benchmarks",
    "find_benchmark",
    "gold_text",
    "load_task",
    "split_specs",
]

FILES = (
    "aime24",
    "aime25",
    "amc23",
    "math500",
    "olympiadbench",
)
BENCHMARKS: dict[str, Benchmark] = {
    task.name: task for task in (import_module(f".{file}", __name__).TASK for file in FILES)
}


def describe_benchmarks() -> str:
    """Return the benchmarks for --help, one per line."""
    return "\n".join(f"  {task.name:<15} {task.about}" for task in BENCHMARKS.values())


def load_task(
    spec: str, question_column: str | None = None, answer_column: str | None = None, reward: str | None = None
) -> Task:
    """Return the task that one item of --tasks names (forms above).

    question_column, answer_column: of `file:` tasks. reward: MATH or a file, in place of what the benchmark names.

    Raises:
        UsageError: no such task, or its rows cannot be read; rows that cannot be used are in Task.skipped.
    """
    spec = spec.strip()
    if spec.startswith(FILE):
        return load_file(spec.removeprefix(FILE), question_column, answer_column, reward=reward or MATH)
    benchmark, place = _find_copy(spec)
    task = load_benchmark(benchmark, spec.partition("=")[0], place)
    return replace(task, reward=reward or task.reward)


def _find_copy(spec: str) -> tuple[Benchmark, str | None]:
    """Return the benchmark that an item of --tasks names, and its file or data set, without reading rows.

    Raises:
        UsageError: as `find_benchmark`, or nothing follows the =.
    """
    name, equals, place = spec.partition("=")
    if equals and not place:
        raise UsageError(f"{TASKS_FLAG} {spec}: a file, or a data set's name on the Hub, belongs behind the =")
    return find_benchmark(name, TASKS_FLAG), place or None


def find_benchmark(name: str, flag: str) -> Benchmark:
    """Return a benchmark by its name or its import path.

    Raises:
        UsageError: it does not exist, its module cannot be imported, or it has the name of another.
    """
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    if not is_import_path(name):
        lowered = name.lower().replace("-", "").replace("_", "").replace("20", "")
        near = [lowered] if lowered in BENCHMARKS else difflib.get_close_matches(lowered, BENCHMARKS, 2)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        files = f"; of --tasks also NAME=FILE and {FILE}PATH" if flag == TASKS_FLAG else ""
        known = f"There are {', '.join(BENCHMARKS)}, and my_module:TASK for a custom one{files}"
        raise UsageError(f"{flag} {name}: no such task.{hint} {known}")
    found = load_object(name, flag)
    if not isinstance(found, Benchmark):
        kind = type(found)
        raise UsageError(
            f"{flag} {name}: it has to be an {Benchmark.__module__}.Benchmark, and is a "
            f"{kind.__module__}.{kind.__qualname__}"
        )
    if BENCHMARKS.get(found.name, found) is not found:
        raise UsageError(f"{flag} {name}: its name is {found.name}, which is another benchmark here; rename it")
    return found


def check_specs(text: str) -> None:
    """Raises UsageError: --tasks names no task, or a benchmark that does not exist. Rows are not read."""
    specs = split_specs(text)
    if not specs:
        raise UsageError(f"{TASKS_FLAG} names no task")
    for spec in specs:
        if not spec.startswith(FILE):
            _find_copy(spec)


def split_specs(text: str) -> list[str]:
    """Return the items of a comma-separated --tasks."""
    return [spec.strip() for spec in text.split(",") if spec.strip()]
