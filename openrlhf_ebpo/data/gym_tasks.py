"""Different tasks of one kind of reasoning-gym, drawn until there are enough, each tried with its own right answer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from openrlhf_ebpo.data.questions import question_id
from openrlhf_ebpo.rewards import gym
from openrlhf_ebpo.rewards.gym_maker import TRIED, make
from openrlhf_ebpo.rewards.pool import Pool
from openrlhf_ebpo.rewards.reasoning_gym import oracle_problem

SIZE = 1000
PATIENCE = 100  # draws of nothing new, and twice as many as there was new: there is no more


@dataclass(frozen=True)
class Kind:
    """spec: as it was given. settings: of its configuration, size and seed among them."""

    spec: str
    name: str
    settings: dict

    @classmethod
    def of(cls, spec: str, seed: int) -> Kind:
        """Read a spec. Raises UsageError."""
        name, given = gym.parse_spec(spec)
        return cls(spec, name, {"size": SIZE, "seed": seed, **given})

    @property
    def size(self) -> int:
        return self.settings["size"]


@dataclass
class Drawn:
    """rows: question, its id and its label, by the id. repeats: draws of a question that was there already. failed: tasks
    that cannot be saved, or whose own answer does not pass. problem: of the last of those."""

    rows: dict[str, dict] = field(default_factory=dict)
    draws: int = 0
    repeats: int = 0
    failed: int = 0
    problem: str = ""

    @property
    def refused(self) -> bool:
        return not self.rows and self.failed >= TRIED


def draw(kind: Kind, count: int, taken: set[str], pool: Pool, tick: Callable[[], object] = int) -> Drawn:
    """Draw `count` tasks whose questions are not in `taken`, to which they are added; fewer if the kind has no more, or is
    refused.

    tick: called for each task found.

    Raises:
        UsageError: reasoning-gym fails to make a task.
    """
    drawn, seen, idle = Drawn(), set(), 0
    for entry in entries(kind, count):
        if len(drawn.rows) == count or drawn.refused or idle > max(PATIENCE, 2 * len(seen)):
            break
        drawn.draws += 1
        idle += 1
        if isinstance(entry, str):
            drawn.failed, drawn.problem = drawn.failed + 1, entry
            continue
        question = entry["question"]
        number = question_id(question)
        if number in taken:
            drawn.repeats += 1
            if number not in seen:  # drawn for another kind: not a sign of an end
                seen.add(number)
                idle = 0
            continue
        label = gym.encode(kind.name, {**kind.settings, "size": 1}, entry)  # a small data set will do for the scorer
        if problem := oracle_problem(pool, label, thorough=drawn.draws <= TRIED):
            drawn.failed, drawn.problem = drawn.failed + 1, problem
            continue
        taken.add(number)
        seen.add(number)
        drawn.rows[number] = {"id": number, "question": question, "label": label, "datasource": kind.name}
        idle = 0
        tick()
    return drawn


def entries(kind: Kind, size: int) -> Iterator[dict | str]:
    """Yield entries without end, or why one cannot be saved. Item i of a data set is drawn with seed + i; some data sets are
    made at once, so the next items come from the next data set, and not from a very large one."""
    for seed in itertools.count(kind.settings["seed"], size):
        settings = {**kind.settings, "size": size, "seed": seed}
        for index in range(size):
            try:
                yield make(kind.spec, kind.name, settings, index)
            except gym.EntryError as error:
                yield str(error)


def shares(sizes: list[int], held_out: int | float) -> list[int]:
    """Return how many of the held-out tasks each kind gets: a share of its size, or of a number, by size and without loss."""
    if isinstance(held_out, float):
        return [round(held_out * size) for size in sizes]
    ends = [held_out * end // sum(sizes) for end in itertools.accumulate(sizes)]
    return [end - start for start, end in itertools.pairwise([0, *ends])]
