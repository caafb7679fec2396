"""The errors that every part of the project may raise."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

COLOUR = re.compile(r"\x1b\[[\d;]*m")  # in Ray's messages


class ReportedError(Exception):
    """Its message is for the person who typed the command: `command.error_exit` prints it without a traceback."""


class UsageError(ReportedError):
    """A mistake on the command line, for the person who typed it; one problem per line."""


def raise_problems(problems: Sequence[str]) -> None:
    """Raise UsageError if there are any."""
    if problems:
        raise UsageError("\n".join(problems))


class SeamError(ReportedError, RuntimeError):
    """The installed OpenRLHF is not the one a seam was written for; the message names the row."""


class TrainingPaused(ReportedError):
    """The training was asked to end, saved after its current step, and ended; the same command resumes it."""


class HealthError(ReportedError):
    """A training step that must not be repeated as it was: no automatic restart follows it.

    Attributes:
        report: what each rank has found, for the run directory.
    """

    def __init__(self, message: str, report: list[dict] | None = None):
        super().__init__(message)
        self.report = report or []


def without_traceback(error: BaseException) -> str:
    """Return the message on one line, without the traceback and the colours that Ray puts into it."""
    message = re.split(r'\n  File "[^\n]*(?:\n\s[^\n]*)*\n', COLOUR.sub("", str(error)))[-1]
    return textwrap.shorten(message, 600, placeholder=" …") or type(error).__name__
