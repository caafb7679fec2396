"""Hypothesis without its deadline of 200 ms, which a busy machine exceeds; loaded before a test is decorated."""

from hypothesis import assume, given, settings
from hypothesis import strategies as st

settings.register_profile("tests", settings(settings.default, deadline=None))
settings.load_profile("tests")

__all__ = ["assume", "given", "settings", "st"]
