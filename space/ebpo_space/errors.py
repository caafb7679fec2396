"""What a page shows instead of a traceback."""

from __future__ import annotations


class RunError(Exception):
    """Something about a run cannot be read or is not allowed; the message is for the visitor."""
