"""The paper's pass@1, in percent: reported by the authors (arXiv 2602.05165), not measured here.

GRPO, EBPO-naive and EBPO-topic at G = 4 are those of the paper's first version. Dr. GRPO, DAPO and EntropyMech, the other group
sizes and LLaMA's EBPO-topic are those of its later revision: recipe/ebpo/neurips_2026_v2.tex of github.com/Tonyzhou98/verl, commit
75b0147, read on 22 November 2026. (One score of GRPO's, of Qwen3-14B, is 85.47 there and 85.00 in the first version.)
"""

from __future__ import annotations

import re

from openrlhf_ebpo.errors import UsageError

from .tasks import BENCHMARKS

SOURCE = "reported by the authors (arXiv 2602.05165), not measured here"


def _collected() -> dict[tuple[str, int], dict[str, dict[str, float]]]:
    found: dict = {}
    for task in BENCHMARKS.values():
        for row, methods in task.reported.items():
            for method, value in methods.items():
                found.setdefault(row, {}).setdefault(method, {})[task.name] = value
    return found


REPORTED = _collected()  # pass@1 by (model, G), method and task


def reported(choice: str) -> dict[str, dict[str, float]]:
    """pass@1 in percent by column title and task, for a choice "MODEL,G" such as "Qwen3-8B,4".

    Raises:
        UsageError: the paper has no such row; lists those that it has.
    """
    model, _, group = choice.rpartition(",")
    for (name, n_samples), methods in REPORTED.items():
        if _plain(name) == _plain(model) and group.strip() == str(n_samples):
            return {f"{method}, {name}, G = {n_samples}": values for method, values in methods.items()}
    known = ", ".join(f"'{name},{group}'" for name, group in REPORTED)
    raise UsageError(f"--reported {choice!r} is not in the paper; it has {known}")


def row_of_run(run: dict | None) -> str | None:
    """The choice that fits a run.json: its model's name and its samples per prompt; None where the paper has none."""
    if not run:
        return None
    model = str(run.get("model", "")).rstrip("/").rpartition("/")[2]
    group = run.get("args", {}).get("rollout", {}).get("n_samples_per_prompt")
    found = [f"{name},{n}" for name, n in REPORTED if _plain(name) == _plain(model) and n == group]
    return found[0] if found else None


def _plain(name: str) -> str:
    """Letters and digits, without the owner: meta-llama/Llama-3.1-8B is LLaMA3.1-8B."""
    return re.sub(r"[^a-z0-9]", "", name.rpartition("/")[2].lower())
