"""Grading processes: hostile answers and many threads leave the pool working; test_reward_processes.py kills them."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from openrlhf_ebpo.command import positive_number
from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.rewards.processes.pool import Pool, Verdict

ENDLESS = r"\binom{10^{9}}{999999}"  # worked out while parsing: minutes
LARGE = "(a+b)^{60}(c+d)^{60}(e+f)^{60}"  # expanded: 226,981 terms


@pytest.fixture(scope="module")
def pool():
    """For tests that leave it as it was."""
    pool = Pool(workers=2, seconds=1)
    yield pool
    pool.close()


@pytest.fixture
def start():
    """Builds pools that are closed afterwards."""
    pools = []

    def build(**options):
        pools.append(Pool(**options))
        assert pools[-1].grade("42", r"\boxed{42}") == Verdict(True, "right")
        return pools[-1]

    yield build
    for pool in pools:
        pool.close()


def processes_of(pool: Pool) -> list[psutil.Process]:
    """Of its only worker: the keeper, and the grading process."""
    keeper = psutil.Process(pool._processes._workers[0]._popen.pid)
    return [keeper, *keeper.children(recursive=True)]


def grade_in_thread(pool: Pool, gold: str, answer: str):
    verdicts = []
    thread = threading.Thread(target=lambda: verdicts.append(pool.grade(gold, f"\\boxed{{{answer}}}")))
    thread.start()
    return thread, verdicts


def test_an_answer_that_takes_all_memory_is_wrong_and_the_pool_goes_on(start):
    pool = start(workers=1, seconds=20, memory_mb=16)
    assert pool.grade("42", f"\\boxed{{{LARGE}}}").outcome in ("crash", "wrong")
    assert pool.grade("43", "Answer: 43").correct


def test_many_threads_get_their_own_verdicts(pool):
    jobs = [(str(i), f"Answer: {i + i % 2}") for i in range(400)]
    with ThreadPoolExecutor(32) as threads:
        verdicts = list(threads.map(lambda job: pool.grade(*job), jobs))
    assert [verdict.correct for verdict in verdicts] == [i % 2 == 0 for i in range(400)]


def test_one_hostile_answer_is_cut_off_and_does_not_hold_up_the_others(pool):
    first, _ = grade_in_thread(pool, "41", ENDLESS)
    pool.grade("0", "Answer: 0")  # a second process has been started for it
    first.join()
    thread, verdicts = grade_in_thread(pool, "42", ENDLESS)
    assert all(pool.grade(str(i), f"Answer: {i}").correct for i in range(20))
    assert not verdicts, "they were graded while it was still at work"
    thread.join()
    assert verdicts == [Verdict(False, "timeout")]


def test_workers_import_neither_torch_nor_ray(pool):
    assert pool.grade("42", "Answer: 42").correct
    maps = Path(f"/proc/{processes_of(pool)[1].pid}/maps").read_text()
    assert "python" in maps
    assert "libtorch" not in maps
    assert "_raylet" not in maps


def test_a_grader_that_cannot_start_says_so(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    pool = Pool(workers=1)
    for _ in range(2):
        with pytest.raises(ReportedError, match=r"exit code 1.*pip install"):
            pool.grade("1", "Answer: 1")
    pool.close()


def test_settings_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("OPENRLHF_EBPO_MATH_WORKERS", "3")
    assert positive_number("OPENRLHF_EBPO_MATH_WORKERS", 2) == 3
    monkeypatch.delenv("OPENRLHF_EBPO_MATH_WORKERS")
    assert positive_number("OPENRLHF_EBPO_MATH_WORKERS", 2) == 2
    assert 2 <= Pool()._processes._most <= 8
    for wrong in ("many", "0", "-1", "nan", "inf"):
        monkeypatch.setenv("OPENRLHF_EBPO_MATH_SECONDS", wrong)
        with pytest.raises(UsageError, match=f"OPENRLHF_EBPO_MATH_SECONDS is '{wrong}'"):
            Pool(workers=1)
