"""The errors that every part of the project may raise."""

from __future__ import annotations

from collections.abc import Sequence


class ReportedError(Exception):
    """Its message is for the person who typed the command: `command.error_exit` prints it without a traceback."""


class UsageError(ReportedError):
    """A mistake on the command line, in words for the person who typed it; one problem per line."""


def raise_problems(problems: Sequence[str]) -> None:
    """Raises UsageError where there are any."""
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
