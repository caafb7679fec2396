"""The benchmarks, in the order that every list and table has them. Another one: its file here, and its name below."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from .benchmark import Benchmark

FILES = (
    "aime24",
    "aime25",
    "amc23",
    "math500",
    "olympiadbench",
    "gpqa_diamond",
)
BENCHMARKS: dict[str, Benchmark] = {
    task.name: task for task in (import_module(f".{file}", __package__).TASK for file in FILES)
}


def order(task: str) -> tuple[int, str]:
    """Sorts tasks: the benchmarks first, others by name."""
    return (list(BENCHMARKS).index(task) if task in BENCHMARKS else len(BENCHMARKS), task)


def ordered(tasks: Iterable[str]) -> list[str]:
    return sorted(set(tasks), key=order)


def described() -> str:
    """The benchmarks for --help, one per line."""
    return "\n".join(f"  {task.name:<15} {task.about}" for task in BENCHMARKS.values())
