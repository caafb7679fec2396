"""The stand-in for pycosat finds every solution, and reasoning-gym makes its puzzles with it."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys

import pytest

from openrlhf_ebpo.rewards.sat import itersolve


def brute_force(clauses: list[tuple[int, ...]], variables: int) -> set[tuple[int, ...]]:
    signs = itertools.product((-1, 1), repeat=variables)
    models = (tuple(sign * (i + 1) for i, sign in enumerate(row)) for row in signs)
    return {model for model in models if all(any(literal in model for literal in clause) for clause in clauses)}


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_every_solution_once(seed):
    draw = random.Random(seed)
    clauses = [tuple(draw.choice((-1, 1)) * v for v in draw.sample(range(1, 7), 3)) for _ in range(draw.randint(6, 30))]
    clauses += [(v, -v) for v in range(1, 7)]
    found = [tuple(model) for model in itersolve(clauses)]
    assert len(found) == len(set(found)) and set(found) == brute_force(clauses, 6)


def test_reasoning_gym_makes_zebra_puzzles_with_it():
    code = """
from openrlhf_ebpo.rewards import sat
sat.importlib.util.find_spec = lambda name: None  # also where pycosat is installed
sat.provide_pycosat()
import reasoning_gym
puzzle = reasoning_gym.create_dataset("zebra_puzzles", seed=3, size=1, num_people=2, num_characteristics=2)[0]
print(puzzle["answer"])
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.strip().isalpha(), done.stderr
