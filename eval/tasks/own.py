"""`my_package.my_module:TASK`: a benchmark of one's own, by its import path."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from openrlhf_ebpo.data.source import lookup
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.extension import is_import_path, load

from .benchmark import Benchmark
from .registry import BENCHMARKS
from .types import OWN, Rules


def own_benchmark(path: str, flag: str) -> Benchmark:
    """What an import path names (extension.py).

    Raises:
        UsageError: there is no such module or name, importing it fails, it is no benchmark, or another one has its name.
    """
    return _checked(load(path, flag), f"{flag} {path}")


def identity(name: str) -> str:
    """The name of a benchmark, of one's own with a digest of its module's file: what was scored by other rules is not
    continued."""
    module = sys.modules.get(name.partition(":")[0]) if is_import_path(name) else None
    file = getattr(module, "__file__", None)
    return f"{name}@{hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]}" if file else name


def scored_rules(benchmark: Benchmark, named: str, row: Mapping) -> Rules:
    """The rules of a row of a benchmark with a scorer. named: what --tasks calls it.

    Raises:
        ValueError: the row holds what no JSON has; names the column.
    """
    names = dict.fromkeys(name for each in benchmark.data for name in each) if benchmark.data else benchmark.columns
    values = {name: lookup(row, name) for name in names}
    for name, value in values.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            raise ValueError(
                f"its column {name!r} is {type(value).__name__}, which its scorer cannot be given"
            ) from None
    path = named if is_import_path(named) else f"{__package__}.{named}:TASK"
    return Rules(OWN, entry=json.dumps(values, sort_keys=True), scorer=identity(path))


def benchmark_of(scorer: str, flag: str) -> Benchmark:
    """Raises UsageError as `own_benchmark`."""
    return own_benchmark(scorer.partition("@")[0], flag)


def _checked(found, named: str) -> Benchmark:
    if not isinstance(found, Benchmark):
        kind = type(found)
        raise UsageError(
            f"{named}: it has to be an {Benchmark.__module__}.Benchmark, and is a {kind.__module__}.{kind.__qualname__}"
        )
    if found.name in BENCHMARKS and BENCHMARKS[found.name] is not found:
        raise UsageError(
            f"{named}: its name is {found.name}, which is another benchmark here; give it a name of its own"
        )
    if found.name not in BENCHMARKS and found.released_n:
        raise UsageError(f"{named}: released_n is for the benchmarks of the paper; leave it out")
    return found
