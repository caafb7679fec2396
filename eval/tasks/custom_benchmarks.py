"""`my_package.my_module:TASK`: a benchmark outside this package, by its import path."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from openrlhf_ebpo.data.source import lookup
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.extension import is_import_path, load
from openrlhf_ebpo.progress import fingerprint

from .benchmark import Benchmark
from .types import OWN, Rules


def custom_benchmark(path: str, flag: str) -> Benchmark:
    """Return the benchmark that an import path names (extension.py).

    Raises:
        UsageError: there is no such module or name, importing it fails, or it is not a Benchmark.
    """
    found = load(path, flag)
    if not isinstance(found, Benchmark):
        kind = type(found)
        raise UsageError(
            f"{flag} {path}: it has to be an {Benchmark.__module__}.Benchmark, and is a "
            f"{kind.__module__}.{kind.__qualname__}"
        )
    return found


def identity(name: str) -> str:
    """Return the name of a benchmark, with a digest of its module's file where it is an import path: what was scored
    by other rules is not continued."""
    module = sys.modules.get(name.partition(":")[0]) if is_import_path(name) else None
    file = getattr(module, "__file__", None)
    return f"{name}@{fingerprint(Path(file).read_bytes())}" if file else name


def scored_rules(benchmark: Benchmark, named: str, row: Mapping) -> Rules:
    """Return the rules of a row of a benchmark with a scorer. named: what --tasks calls it.

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
    """Raises UsageError as `custom_benchmark`."""
    return custom_benchmark(scorer.partition("@")[0], flag)
