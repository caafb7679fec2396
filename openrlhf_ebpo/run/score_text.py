"""Format scores, for the report, cards and the Space: percent with one digit, and the order of metrics.

A metric is a mapping with value, interval (over questions) and, if they are known, standard_error and run_interval
(across runs); all of them are fractions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

NONE = "–"
_NAME = re.compile(r"(pass|maj)@(\d{1,9})", re.ASCII)  # a summary.json may have other names, or come from elsewhere


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def whole_percent(share: float) -> str:
    """Format the share of a few samples, where a further digit would be noise."""
    return f"{100 * share:.0f} %"


def score(metric: Mapping | None) -> str:
    """Format 68.4 ± 0.8 (64.4 to 72.3): value, standard error across runs, interval over questions; – without a
    metric."""
    return NONE if metric is None else f"{percent(metric['value'])}{plus_minus(metric)} ({span(metric)})"


def plus_minus(metric: Mapping) -> str:
    """Format the standard error; "" where all responses to a question are alike, which leaves it unknown."""
    error = metric.get("standard_error")
    return f" ± {percent(error)}" if error else ""


def span(metric: Mapping) -> str:
    low, high = metric["interval"]
    return f"{percent(low)} to {percent(high)}"


def points(difference: float) -> str:
    """Format the difference of two scores, with a minus sign rather than a hyphen."""
    return f"{100 * difference:+.1f}".replace("-", "−")


def reported(percentage: float) -> str:
    """Format a number of the paper, with the digits that it has there."""
    return f"{percentage:.2f}"


def k_of(name: str) -> int | None:
    """Return 16 of pass@16 and of maj@16; None for another name."""
    found = _NAME.fullmatch(name)
    return int(found[2]) if found else None


def passes(names: Iterable[str]) -> list[str]:
    """Return pass@1, pass@2, … of the names, each once."""
    return _kind("pass", names)


def majorities(names: Iterable[str]) -> list[str]:
    return _kind("maj", names)


def _kind(kind: str, names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if name.startswith(f"{kind}@") and k_of(name) is not None}, key=k_of)


def order(name: str) -> tuple[bool, int, str]:
    """Sorts pass@1, pass@2, …, then maj@k, then what else there is."""
    return not name.startswith("pass@"), k_of(name) or 0, name
