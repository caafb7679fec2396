"""`my_package.my_module:TASK`: a benchmark of one's own, by its import path."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

from openrlhf_ebpo.errors import UsageError

from .benchmark import Benchmark
from .registry import BENCHMARKS

PATH = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")


def own_benchmark(path: str, flag: str) -> Benchmark:
    """What an import path names. Its module is looked for as Python does, and in the working directory.

    Raises:
        UsageError: there is no such module or name, importing it fails, it is no benchmark, or another one has its name.
    """
    module, _, attribute = path.partition(":")
    values = vars(_imported(module, f"{flag} {path}"))
    if attribute not in values:
        known = [name for name, value in values.items() if isinstance(value, Benchmark)]
        raise UsageError(
            f"{flag} {path}: {module} has no {attribute}; its benchmarks are {', '.join(known) or 'none: TASK = Benchmark(…)'}"
        )
    return _checked(values[attribute], f"{flag} {path}")


def _imported(module: str, named: str):
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # last: no file of this folder stands in for an installed package
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:  # somebody's code
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            raise UsageError(
                f"{named}: there is no module {error.name}, neither in this folder nor on PYTHONPATH"
            ) from error
        raise UsageError(f"{named}: importing {module} failed: {type(error).__name__}: {error}") from error


def _checked(found, named: str) -> Benchmark:
    if not isinstance(found, Benchmark):
        kind = type(found)
        raise UsageError(
            f"{named}: it has to be a {Benchmark.__module__}.Benchmark, and is a {kind.__module__}.{kind.__qualname__}"
        )
    if found.name in BENCHMARKS and BENCHMARKS[found.name] is not found:
        raise UsageError(
            f"{named}: its name is {found.name}, which is another benchmark here; give it a name of its own"
        )
    if found.name not in BENCHMARKS and (found.released_n or found.reported):
        raise UsageError(f"{named}: released_n and reported are for the benchmarks of the paper; leave them out")
    return found
