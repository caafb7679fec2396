"""The paper's pass@1, reported by the authors and not measured here: reported.json has the numbers and where they are
from."""

from __future__ import annotations

import json
import re
from pathlib import Path

from openrlhf_ebpo.errors import UsageError

_published = json.loads(Path(__file__).with_name("reported.json").read_text())
SOURCE = _published["source"]
REPORTED: dict[tuple[str, int], dict[str, dict[str, float]]] = {}  # in percent, by (model, G), method and task
for _row in _published["rows"]:
    REPORTED.setdefault((_row["model"], _row["group"]), {})[_row["method"]] = _row["pass@1"]


def reported(choice: str) -> dict[str, dict[str, float]]:
    """Return pass@1 in percent by column title and task, for a choice "MODEL,G" such as "Qwen3-8B,4".

    Raises:
        UsageError: the paper has no such row; lists those that it has.
    """
    model, _, group = choice.rpartition(",")
    for (name, n_samples), methods in REPORTED.items():
        if _plain(name) == _plain(model) and group.strip() == str(n_samples):
            return {f"{method}, {name}, G = {n_samples}": values for method, values in methods.items()}
    known = ", ".join(f"'{name},{group}'" for name, group in REPORTED)
    raise UsageError(f"--reported {choice!r} is not in the paper; it has {known}")


def _plain(name: str) -> str:
    """Letters and digits, without the owner: meta-llama/Llama-3.1-8B is LLaMA3.1-8B."""
    return re.sub(r"[^a-z0-9]", "", name.rpartition("/")[2].lower())
