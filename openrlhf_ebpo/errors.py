"""The errors that every part of the project may raise."""

from __future__ import annotations


class UsageError(Exception):
    """A mistake on the command line, in words for the person who typed it."""


class SeamError(RuntimeError):
    """The installed OpenRLHF is not the one a seam was written for; the message names the row."""
