"""`my_package.my_module:TASK`: a benchmark of one's own, by its import path."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.extension import is_import_path, load

from .benchmark import Benchmark
from .registry import BENCHMARKS


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
    if found.name not in BENCHMARKS and (found.released_n or found.reported):
        raise UsageError(f"{named}: released_n and reported are for the benchmarks of the paper; leave them out")
    return found
