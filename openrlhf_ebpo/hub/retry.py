"""Trying again, with pauses that grow: the only place where this project repeats a call to the Hub."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from openrlhf_ebpo.hub_client import HubError, seconds_of

PAUSE = "OPENRLHF_EBPO_HUB_PAUSE"  # seconds before the first repetition
FIRST_PAUSE = 5.0
LONGEST_PAUSE = 600.0
LONGEST_ASKED = 3600.0  # whatever the Hub asks for
ATTEMPTS = 5

T = TypeVar("T")


def pause_after(failures: int, error: HubError | None = None) -> float:
    """Seconds to wait after `failures` >= 1 failures in a row: 5, 10, 20 … 600, or longer, an hour at most, where the Hub asks for it."""
    asked = (error.retry_after if error else None) or 0.0
    own = seconds_of(PAUSE, FIRST_PAUSE) * 2.0 ** min(failures - 1, 20)
    return max(min(own, LONGEST_PAUSE), min(asked, LONGEST_ASKED))


def retrying(
    action: Callable[[], T],
    attempts: int = ATTEMPTS,
    report: Callable[[str], None] = print,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """The result of `action`, called up to `attempts` times while it raises a HubError that may pass.

    Raises:
        HubError: the last one, or the first permanent one.
    """
    for failures in range(1, attempts + 1):
        try:
            return action()
        except HubError as error:
            if error.permanent or failures == attempts:
                raise
            seconds = pause_after(failures, error)
            report(f"{error}\n  trying again in {seconds:g} s ({failures} of {attempts} attempts)")
            sleep(seconds)
    raise AssertionError("not reached")
