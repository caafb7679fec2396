"""Several downloads at a time, with one progress bar, which end together: by Ctrl-C at once, and with the first error."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping

SHOW_SECONDS = 0.2


class Cancelled(BaseException):
    """Another download has failed, so that this one is of no use. No Exception, which would count as a failure of the Hub,
    and be repeated."""


class Downloads:
    """What threads have in common. Each thread holds one file at a time, and of that one chunk in memory.

    sizes: file -> bytes, all that is to come.
    """

    def __init__(self, sizes: Mapping[str, int]):
        self.sizes, self.come = dict(sizes), dict.fromkeys(sizes, 0)
        self.left, self.errors = deque(sizes), []
        self.cancelled = threading.Event()

    def run(self, fetch: Callable[[str], None], workers: int, show: Callable[[int], None]) -> None:
        """Call `fetch` for each file, and `show` with the bytes that have come, again and again.

        Raises:
            whatever `fetch` raised first; by then nothing is being written any more.
        """
        work = [threading.Thread(target=self._work, args=(fetch,), daemon=True) for _ in range(workers)]
        for thread in work:  # daemons, so that Ctrl-C does not wait for them
            thread.start()
        for thread in work:
            while thread.is_alive():
                thread.join(SHOW_SECONDS)
                show(sum(self.come.values()))
        if self.errors:
            raise self.errors[0]

    def _work(self, fetch: Callable[[str], None]) -> None:
        while not self.cancelled.is_set():
            try:
                file = self.left.popleft()
            except IndexError:
                return
            try:
                fetch(file)
                self.come[file] = self.sizes[file]
            except BaseException as error:
                self.errors += [] if isinstance(error, Cancelled) else [error]
                self.cancelled.set()

    def sleep(self, seconds: float) -> None:
        if self.cancelled.wait(seconds):
            raise Cancelled

    def bar(self, file: str) -> type:
        """A class for huggingface_hub's `tqdm_class`: counts what comes of `file`, and ends it where all are to end."""

        class Counted(_Silent):
            def __init__(bar, *_, initial: int = 0, **__):
                self.come[file] = initial

            def update(bar, size: float = 1) -> None:
                if self.cancelled.is_set():
                    raise Cancelled
                self.come[file] = min(self.come[file] + int(size), self.sizes[file])

        return Counted


class _Silent:
    """What huggingface_hub calls of a progress bar."""

    total = None

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        pass

    def ignore(self, *_, **__) -> None:
        pass

    close = set_postfix_str = update_transfer = set_transfer_postfix_str = ignore
