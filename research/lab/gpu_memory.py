"""The GPU's memory in use, asked of nvidia-smi in a thread while something runs."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

EVERY = 0.5  # seconds
QUERY = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")


def used_mib() -> int | None:
    """Of all GPUs together; None where that cannot be asked."""
    try:
        done = subprocess.run(QUERY, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    numbers = [int(line) for line in done.stdout.split() if line.isdigit()]
    return sum(numbers) if numbers and done.returncode == 0 else None


@contextmanager
def peak() -> Iterator[dict]:
    """Inside, the largest use so far under "peak_mib"; None without a GPU, or before the first measurement."""
    found: dict = {"peak_mib": None}
    end = threading.Event()

    def watch() -> None:
        while (used := used_mib()) is not None:
            found["peak_mib"] = max(used, found["peak_mib"] or 0)
            if end.wait(EVERY):
                return

    thread = threading.Thread(target=watch, name="memory of the GPU")
    thread.start()
    try:
        yield found
    finally:
        end.set()
        thread.join(timeout=15)
