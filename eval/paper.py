"""The paper's pass@1, in percent: reported by the authors (arXiv 2602.05165), not measured here."""

from __future__ import annotations

import re

from openrlhf_ebpo.errors import UsageError

SOURCE = "reported by the authors (arXiv 2602.05165), not measured here"
TASKS = ("math500", "aime24", "aime25", "amc23", "olympiadbench")
REPORTED = {  # model, G: pass@1 in the order of TASKS
    ("Qwen3-8B", 4): {
        "GRPO": (65.60, 50.21, 42.29, 89.53, 45.99),
        "EBPO-naive": (68.58, 53.75, 41.88, 87.34, 48.44),
        "EBPO-topic": (76.80, 56.04, 47.92, 86.25, 54.93),
    },
    ("Qwen3-14B", 4): {
        "GRPO": (75.73, 49.99, 37.92, 85.00, 50.77),
        "EBPO-naive": (72.08, 52.29, 40.21, 86.56, 48.41),
        "EBPO-topic": (71.01, 58.13, 45.63, 85.47, 48.52),
    },
    ("LLaMA3.1-8B", 4): {
        "GRPO": (22.66, 2.71, 0.00, 12.66, 6.97),
        "EBPO-topic": (23.84, 2.29, 0.21, 15.78, 7.75),
    },
    ("Qwen3-8B", 8): {
        "GRPO": (68.79, 47.29, 31.46, 79.69, 44.06),
        "EBPO-topic": (74.26, 64.37, 48.96, 89.69, 50.44),
    },
    ("Qwen3-8B", 16): {
        "GRPO": (77.98, 55.42, 44.58, 85.94, 51.89),
        "EBPO-topic": (77.39, 60.00, 46.46, 85.94, 53.41),
    },
    ("Qwen3-8B", 32): {
        "GRPO": (76.94, 59.37, 40.00, 86.88, 51.34),
        "EBPO-topic": (72.24, 61.04, 44.79, 85.47, 48.52),
    },
}


def reported(choice: str) -> dict[str, dict[str, float]]:
    """pass@1 in percent by column title and task, for a choice "MODEL,G" such as "Qwen3-8B,4".

    Raises:
        UsageError: the paper has no such row; lists those that it has.
    """
    model, _, group = choice.rpartition(",")
    for (name, n_samples), methods in REPORTED.items():
        if _plain(name) == _plain(model) and group.strip() == str(n_samples):
            return {
                f"{method}, {name}, G = {n_samples}": dict(zip(TASKS, values, strict=True))
                for method, values in methods.items()
            }
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
