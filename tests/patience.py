"""Time limits of tests. On a busy machine a test is slow, not wrong: OPENRLHF_EBPO_TEST_SLOW multiplies every limit."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable

SLOW = float(os.environ.get("OPENRLHF_EBPO_TEST_SLOW", "1"))
MAX_TEST_SECONDS = {
    "unit": 120,
    "contract": 120,
    "gpu": 600,
    "integration": 300,
    "browser": 300,
    "integrations": 900,
}


def seconds(limit: float) -> float:
    """Scale a limit of so many seconds on an idle machine to this machine."""
    return limit * SLOW


def wait_until(condition: Callable[[], object], limit: float = 60, do: Callable[[], object] = lambda: None) -> None:
    """Wait until `condition()` holds, calling `do()` between looks; fail after `limit` seconds of an idle machine."""
    deadline = time.monotonic() + seconds(limit)
    while not condition():
        assert time.monotonic() < deadline, f"{condition} does not hold after {seconds(limit):g} s"
        do()
        time.sleep(0.02)


def wait_until_gone(pids: Iterable[int]) -> None:
    """Wait until none of these processes runs; a zombie, which no init may collect, does not."""
    import psutil

    def runs(pid: int) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        return False

    wait_until(lambda: not any(map(runs, pids)))
