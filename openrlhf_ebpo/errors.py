"""The errors that every part of the project may raise."""

from __future__ import annotations


class ReportedError(Exception):
    """Its message is for the person who typed the command: `command.error_exit` prints it without a traceback."""


class UsageError(ReportedError):
    """A mistake on the command line, in words for the person who typed it; one problem per line."""


class SeamError(ReportedError, RuntimeError):
    """The installed OpenRLHF is not the one a seam was written for; the message names the row."""


class HealthError(ReportedError):
    """A training step that must not be repeated as it was: nothing restarts after it of its own accord."""
