"""Sums that a small model works out term by term: tasks of reasoning-gym, and a prompt with solved examples."""

from __future__ import annotations

import json
from pathlib import Path

from openrlhf_ebpo.data.gym import main as data_gym

TASK = "State the final answer to the following arithmetic problem:"
EXAMPLES = (
    ("3 + 6 =", "3 + 6 = 9. Answer: 9"),
    ("4 + 3 - 5 =", "4 + 3 = 7, 7 - 5 = 2. Answer: 2"),
    ("9 - 6 + 2 + 8 =", "9 - 6 = 3, 3 + 2 = 5, 5 + 8 = 13. Answer: 13"),
)
TEMPLATE = "".join(f"{TASK} {task}\n{steps}<|im_end|>\n" for task, steps in EXAMPLES) + "{question}\n"
SETTINGS = {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 1}


def write(folder: Path, size: int, heldout: int) -> None:
    """tasks.parquet and, held out, tasks.validation.parquet; nothing where they are there."""
    words = [
        f"chain_sum:{json.dumps({'size': size, **SETTINGS})}",
        "--validation",
        str(heldout),
        "--template",
        TEMPLATE,
    ]
    data_gym([*words, "--output", str(folder / "tasks.parquet")])
