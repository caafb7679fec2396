"""The scorer of a custom benchmark. Runs in the processes of rewards/pool.py, which end where it takes too long.

Custom code: whatever it does to its process is a failed sample with its cause, and never more than that.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import traceback
from collections.abc import Callable
from pathlib import Path

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import whole_characters
from openrlhf_ebpo.redact import redacted_text

from .tasks import Benchmark
from .tasks.custom_benchmarks import benchmark_of, identity

FAILED = "score: "  # how the error of a response begins that its scorer has raised
MAX_ERROR = 300  # characters of an error: samples.parquet has one for every response
MAX_ANSWER = 10_000  # of an answer that is longer than its response: samples.parquet has that, too


class ScoreError(ValueError):
    """A scorer gave something that is not a score."""


def warm_up(scorer: str) -> Callable[..., dict]:
    """Import the benchmark once, so that no response pays for it. Returns its `grade`. scorer: as Rules has it.

    Raises:
        UsageError: it is not there, or it is another version by now.
    """
    benchmark = benchmark_of(scorer, "the scorer")
    if identity(scorer.partition("@")[0]) != scorer:
        raise UsageError(f"the file of {scorer} has changed since the command began: repeat the command")
    return functools.partial(grade, benchmark)


def parse_gold(gold: str) -> None:
    """Do nothing: golds are left to the scorer."""


def grade(benchmark: Benchmark, gold: str, response: str, row: str) -> dict:
    """Return correct, extracted and error of a response, as grader.Grader.grade. row: its columns as JSON."""
    try:
        answer = _answer(benchmark.extract(response) if benchmark.extract else response.strip(), len(response))
        correct = bool(answer) and _is_right(benchmark.score(response, gold, json.loads(row)))
        return {"correct": correct, "extracted": answer, "error": None}
    except BaseException as error:  # SystemExit and MemoryError too
        return {"correct": False, "extracted": None, "error": FAILED + described(error)}


def _answer(found, room: int) -> str | None:
    """Return the answer that can be written to a file, None for an empty one.

    Raises:
        ScoreError: it is neither text nor None, or too long.
    """
    if found is not None and not isinstance(found, str):
        raise ScoreError(f"extract gave {type(found).__name__} {found!r:.60}; a text, or None for no answer, is needed")
    if found and len(found) > max(room, MAX_ANSWER):
        raise ScoreError(f"extract gave {len(found):,} characters; an answer has up to {MAX_ANSWER:,}")
    return whole_characters(found) if found else None


def _is_right(found) -> bool:
    """Return whether it is full marks, or True. Numbers of other libraries (numpy's) have a float in them.

    Raises:
        ScoreError: it is neither a number nor True or False.
    """
    with contextlib.suppress(TypeError, ValueError):
        if not isinstance(found, (str, bytes)) and not math.isnan(float(found)):
            return float(found) >= 1
    raise ScoreError(f"score gave {type(found).__name__} {found!r:.60}; True, False or a number is needed")


def described(error: BaseException) -> str:
    """Return the error and, unless it is a ScoreError, where it was raised, on one line. Errors may repeat a response:
    no signs for a screen, nor halves of characters, which no file takes. Reports are published: no folders."""
    text, places = str(error), []
    if not isinstance(error, ScoreError):
        last = traceback.extract_tb(error.__traceback__)[1:][-1:]
        places = [f" ({Path(frame.filename).name}:{frame.lineno} in {frame.name})" for frame in last]
        text = redacted_text(": ".join(filter(None, [type(error).__name__, text]))[:MAX_ERROR])
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text + "".join(places)).split())
