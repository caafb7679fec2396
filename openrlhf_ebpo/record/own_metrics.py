"""What a run says about the metrics that its own code logs: --logger.metrics at the start, then `metrics` in run.json.

run.json may come from anywhere. So an entry counts only if all of it is short, printable text, and never for a name that the
catalogue knows; whoever shows it escapes it all the same.
"""

from __future__ import annotations

import json
from pathlib import Path

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.record.catalogue import Metric, find

LONGEST = {"name": 120, "title": 40, "unit": 20, "tells": 200, "worry": 200}  # characters
NEEDED = ("name", "title")
ENTRIES = 100
LARGEST = 2**20  # bytes of the file
COLUMNS = ("step", "time")  # of metrics.jsonl, and no metrics
FLAG = "--logger.metrics"


def own_metrics(entries: object) -> dict[str, Metric]:
    """By name, in their order. Entries that are wrong are left out, and so are all beyond the first hundred."""
    found = {}
    for entry in entries[:ENTRIES] if isinstance(entries, list) else []:
        if problem(entry) is None:
            found.setdefault(entry["name"], Metric(**{"unit": "", "tells": "", **entry}))
    return found


def read_entries(path: str | Path | None) -> list[dict]:
    """The entries of a JSON file, for run.json; [] for None.

    Raises:
        UsageError: the file cannot be read or an entry is wrong; all problems, one per line.
    """
    if path is None:
        return []
    entries = _read(Path(path))
    problems = [f"{FLAG} {path}: entry {i}: {found}" for i, e in enumerate(entries, 1) if (found := problem(e))]
    names = [entry["name"] for entry in entries if not problem(entry)]
    problems += [
        f"{FLAG} {path}: {name!r} stands there twice" for name in dict.fromkeys(names) if names.count(name) > 1
    ]
    if problems:
        raise UsageError("\n".join(problems))
    return entries


def _read(path: Path) -> list:
    wanted = 'a list of objects is needed: [{"name": "own/x", "title": "X", "unit": "", "tells": "", "worry": ""}]'
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise UsageError(f"{FLAG} {path} is larger than {LARGEST >> 20} MiB; {wanted}")
        entries = json.loads(content)
    except OSError as error:
        raise UsageError(f"{FLAG} {path}: cannot be read ({error.strerror}); {wanted}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{FLAG} {path}: no JSON ({error}); {wanted}") from None
    if not isinstance(entries, list) or len(entries) > ENTRIES:
        count = f"{len(entries)} entries" if isinstance(entries, list) else type(entries).__name__
        raise UsageError(f"{FLAG} {path} holds {count}; {wanted}, at most {ENTRIES}")
    return entries


def problem(entry: object) -> str | None:
    """What is wrong with an entry, in words; None where nothing is."""
    if not isinstance(entry, dict):
        return f"an object with {' and '.join(NEEDED)} is needed, not {_cut(entry)}"
    if missing := [field for field in NEEDED if field not in entry]:
        return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    for field, value in entry.items():
        if field not in LONGEST:
            return f"there is no field {_cut(field)}; the fields are {', '.join(LONGEST)}"
        if not isinstance(value, str) or not value.isprintable() or len(value) > LONGEST[field]:
            return f"{field} is {_cut(value)}; text of at most {LONGEST[field]} printable characters is needed"
        if field in NEEDED and not value.strip():
            return f"{field} is empty"
    if entry["name"] != entry["name"].strip():
        return f"name is {_cut(entry['name'])}, with a space at its end: no metric is logged so"
    if entry["name"] in COLUMNS or find(entry["name"]):
        return f"{entry['name']!r} is a name of OpenRLHF's or of this project's own; choose another"
    return None


def _cut(value: object) -> str:
    text = ascii(value) if isinstance(value, str) else type(value).__name__  # other values have reprs of any length
    return text if len(text) <= 80 else text[:77] + "..."
