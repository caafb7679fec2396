"""Describe the metrics that a run's own code logs: --logger.metrics at the start, then `metrics` in run.json.

run.json may come from anywhere. So an entry counts only if all of it is short, printable text, and never for a name
that the catalogue knows. The page escapes it too.
"""

from __future__ import annotations

import json
from pathlib import Path

from openrlhf_ebpo.errors import UsageError, raise_problems
from openrlhf_ebpo.run.catalogue import Metric, find

MAX_CHARS = {"name": 120, "title": 40, "unit": 20, "description": 200, "warning": 200}
REQUIRED = ("name", "title")
MAX_ENTRIES = 100
COLUMNS = ("step", "time")  # of metrics.jsonl, and not metrics
FLAG = "--logger.metrics"
FORM = 'a list of objects is needed: [{"name": "own/x", "title": "X", "unit": "", "description": "", "warning": ""}]'


def custom_metrics(entries: object) -> dict[str, Metric]:
    """Return the metrics by name, in their order, without wrong entries and those beyond the first hundred."""
    found = {}
    for entry in entries[:MAX_ENTRIES] if isinstance(entries, list) else []:
        if problem(entry) is None:
            found.setdefault(entry["name"], Metric(**entry))
    return found


def read_entries(path: str | Path | None) -> list[dict]:
    """Read the entries of a JSON file, for run.json; [] for None.

    Raises:
        UsageError: the file cannot be read or an entry is wrong; all problems, one per line.
    """
    if path is None:
        return []
    where = f"{FLAG} {path}"
    try:
        entries = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise UsageError(f"{where}: cannot be read ({error.strerror}); {FORM}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON ({error}); {FORM}") from None
    if not isinstance(entries, list) or len(entries) > MAX_ENTRIES:
        count = f"{len(entries)} entries" if isinstance(entries, list) else type(entries).__name__
        raise UsageError(f"{where} holds {count}; {FORM}, at most {MAX_ENTRIES}")
    problems = [f"{where}: entry {i}: {found}" for i, e in enumerate(entries, 1) if (found := problem(e))]
    names = [entry["name"] for entry in entries if not problem(entry)]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    raise_problems([*problems, *(f"{where}: {name!r} is listed twice" for name in twice)])
    return entries


def problem(entry: object) -> str | None:
    """Return why an entry cannot be used; None if it can."""
    if not isinstance(entry, dict):
        return f"an object with {' and '.join(REQUIRED)} is needed, not {_shorten(entry)}"
    if missing := [field for field in REQUIRED if field not in entry]:
        return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    for field, value in entry.items():
        if field not in MAX_CHARS:
            return f"unknown field {_shorten(field)}; the fields are {', '.join(MAX_CHARS)}"
        if not isinstance(value, str) or not value.isprintable() or len(value) > MAX_CHARS[field]:
            return f"{field} is {_shorten(value)}; text of at most {MAX_CHARS[field]} printable characters is needed"
        if field in REQUIRED and not value.strip():
            return f"{field} is empty"
    if entry["name"] != entry["name"].strip():
        return f"name is {_shorten(entry['name'])}, with a space at its end: a metric is never logged so"
    if entry["name"] in COLUMNS or find(entry["name"]):
        return f"{entry['name']!r} is a name of OpenRLHF's or of this project's; choose another"
    return None


def _shorten(value: object) -> str:
    text = ascii(value) if isinstance(value, str) else type(value).__name__  # other values have reprs of any length
    return text if len(text) <= 80 else text[:77] + "..."
