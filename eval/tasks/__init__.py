"""Tasks by name: the five benchmarks of the paper, reasoning-gym's generated ones, and any file.

aime24, aime25, amc23, math500, olympiadbench   from the Hugging Face Hub, or <task>.parquet|.jsonl in --data_dir
aime24=FILE, aime24=OWNER/NAME[@REVISION]       from a local file, or another of its known copies on the Hub
reasoning_gym:chain_sum[:size=100,seed=1,…]     generated; settings are those of the data set's configuration
file:questions.jsonl                            any .parquet or .jsonl file with a question and an answer
"""

from __future__ import annotations

import difflib

from openrlhf_ebpo.errors import UsageError

from .benchmarks import BENCHMARKS, load_benchmark
from .files import load_file
from .gym import PREFIX as GYM
from .gym import load_gym
from .rows import FLAG
from .types import MATH, REASONING_GYM, Question, Rules, Task

__all__ = ["BENCHMARKS", "FILE", "MATH", "REASONING_GYM", "Question", "Rules", "Task", "load", "split_specs"]

FILE = "file:"


def load(
    spec: str, data_dir: str | None = None, question_column: str | None = None, answer_column: str | None = None
) -> Task:
    """The task that one item of --tasks names (forms above).

    data_dir: folder with local copies of benchmarks. question_column, answer_column: of `file:` tasks.

    Raises:
        UsageError: no such task, or its rows cannot be had; rows that cannot be used are in Task.skipped.
    """
    spec = spec.strip()
    if spec.startswith(FILE):
        return load_file(spec.removeprefix(FILE), question_column, answer_column)
    if spec.startswith(GYM):
        return load_gym(spec.removeprefix(GYM))
    name, equals, place = spec.partition("=")
    if name not in BENCHMARKS or (equals and not place):
        raise UsageError(_unknown(spec, name))
    return load_benchmark(name, place or None, data_dir)


def split_specs(text: str) -> list[str]:
    """The items of a comma-separated --tasks. Settings of a reasoning-gym task have commas too: an item like seed=1
    belongs to the reasoning-gym task before it."""
    specs: list[str] = []
    for item in filter(None, (item.strip() for item in text.split(","))):
        name, equals, _ = item.partition("=")
        is_setting = equals and name.isidentifier() and name not in BENCHMARKS
        if is_setting and specs and specs[-1].startswith(GYM) and "=" in specs[-1]:
            specs[-1] += f",{item}"
        else:
            specs.append(item)
    return specs


def _unknown(spec: str, name: str) -> str:
    lowered = name.lower().replace("-", "").replace("_", "").replace("20", "")
    near = [lowered] if lowered in BENCHMARKS else difflib.get_close_matches(lowered, BENCHMARKS, 2)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return (
        f"{FLAG} {spec}: no such task.{hint} There are {', '.join(BENCHMARKS)} (each also as NAME=FILE), "
        f"{GYM}NAME such as {GYM}chain_sum, and {FILE}PATH for a .jsonl or .parquet file"
    )
