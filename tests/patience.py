"""Time limits of tests. On a busy machine a test is slow, not wrong: OPENRLHF_EBPO_TEST_SLOW multiplies every limit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

SLOW = float(os.environ.get("OPENRLHF_EBPO_TEST_SLOW", "1"))
MAX_TEST_SECONDS = {
    "unit": 120,
    "contract": 120,
    "gpu": 600,
    "integration": 300,
    "browser": 300,
    "faults": 300,
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
