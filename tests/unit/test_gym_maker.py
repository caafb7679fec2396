"""Tasks of reasoning-gym are the same in every process."""

from __future__ import annotations

import contextlib

import psutil
import pytest

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.rewards import gym, gym_maker, processes
from openrlhf_ebpo.rewards.gym_maker import make, maker

BY_HASH = (
    *("codeio", "isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note"),
    "word_ladder",
)  # they go through sets of texts
OTHERS = ("chain_sum", "arc_agi", "spell_backward")
SETTINGS = {"size": 6, "seed": 42}


@pytest.fixture(autouse=True)
def fresh():
    maker.cache_clear()
    yield
    maker().close()
    maker.cache_clear()


def drawn(names) -> dict[str, list]:
    maker.cache_clear()
    return {name: [make(name, name, SETTINGS, index) for index in range(6)] for name in names}


def test_processes_with_other_hash_seeds_draw_the_same(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    one = drawn(BY_HASH)
    monkeypatch.setenv("PYTHONHASHSEED", "2")
    assert drawn(reversed(BY_HASH)) == one
    monkeypatch.setattr(processes, "HASH_SEED", "3")
    other = drawn(BY_HASH)
    assert [name for name in BY_HASH if other[name] == one[name]] in ([], ["codeio"])


def test_what_is_the_same_in_every_process_anyway_is_as_it_was():
    found = drawn(OTHERS)
    for name in OTHERS:
        data = gym.create(name, SETTINGS)
        assert [gym.encode(name, {}, entry) for entry in found[name]] == [
            gym.encode(name, {}, data[i]) for i in range(6)
        ]


def test_problems_are_named_and_the_next_task_is_made():
    with pytest.raises(UsageError, match="my spec: reasoning-gym cannot make a task of these settings: IndexError"):
        make("my spec", "spell_backward", {"seed": 1, "min_word_len": 200, "max_word_len": 201}, 0)
    with pytest.raises(UsageError, match=r"chain_sum: .*Its settings are"):
        make("chain_sum", "chain_sum", {"min_terms": 0}, 0)
    with pytest.raises(gym.EntryError, match="an entry of gsm_symbolic cannot be saved"):
        for index in range(60):
            make("gsm_symbolic", "gsm_symbolic", {"seed": 777, "size": 60}, index)
    assert "question" in make("chain_sum", "chain_sum", SETTINGS, 0)


def test_a_process_that_somebody_kills_is_started_again():
    first = make("chain_sum", "chain_sum", SETTINGS, 0)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    assert make("chain_sum", "chain_sum", SETTINGS, 0) == first


def test_an_end_of_the_process_is_named(monkeypatch):
    monkeypatch.setattr(gym_maker, "MAKE_SECONDS", 0.0001)
    with pytest.raises(UsageError, match=r"a task of these settings: it took longer than 0\.0001 s"):
        make("arc_agi", "arc_agi", SETTINGS, 1)
