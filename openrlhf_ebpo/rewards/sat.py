"""reasoning-gym without a C compiler. It imports pycosat, which comes as source only, for one kind of task (zebra
puzzles), and uses one function of it; python-sat, which has wheels, solves the same."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType


def provide_pycosat() -> None:
    """Before reasoning_gym is imported: where pycosat is not installed, put a module in its place."""
    if "pycosat" in sys.modules or importlib.util.find_spec("pycosat"):
        return
    module = ModuleType("pycosat")
    module.itersolve = itersolve
    sys.modules["pycosat"] = module


def itersolve(clauses: Iterable[Iterable[int]]) -> Iterator[list[int]]:
    """All solutions of a formula in conjunctive normal form; a solution has every variable, negative where false.

    clauses: DIMACS literals, 1 to n, -1 to -n.
    """
    from pysat.solvers import Solver

    with Solver(name="minisat22", bootstrap_with=[list(clause) for clause in clauses]) as solver:
        yield from solver.enum_models()
