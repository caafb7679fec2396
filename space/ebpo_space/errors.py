"""Errors that a page shows in place of a traceback."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

Found = TypeVar("Found")


class RunError(Exception):
    """Something about a run cannot be read or is not allowed; the message is for the visitor."""


@contextlib.contextmanager
def reading(named: str) -> Iterator[None]:
    """Turn any exception into a RunError that names what was read: a run's files come from anywhere, and libraries
    raise KeyError, NotImplementedError or their own types for what they do not read.

    Raises:
        RunError: the block raised; a RunError passes through.
    """
    try:
        yield
    except RunError:
        raise
    except FileNotFoundError:
        raise RunError(f"{named} is missing.") from None
    except Exception as error:
        why = f"it is damaged, or a part of it has another type ({type(error).__name__})"
        raise RunError(f"{named} is left out: {why}.") from error


def attempt(make: Callable[[], Found], otherwise: Found, problems: list[str], named: str = "A part of it") -> Found:
    """Return the result of `make` or, where it raises, `otherwise`, with the message added to `problems`: one bad file
    neither ends the app nor hides what can be read."""
    try:
        with reading(named):
            return make()
    except RunError as error:
        problems.append(str(error))
        return otherwise
