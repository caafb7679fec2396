"""reasoning-gym tasks: warm-start examples, training prompts and held-out tasks, disjoint by prompt text."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from types import ModuleType

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import write_json_lines

EXAMPLE = Path(__file__).parents[2] / "examples" / "reasoning_gym"

DATASET = "spell_backward"
SETTINGS = {"min_word_len": 3, "max_word_len": 8}
TEMPLATE = "{}\n"  # the newline tells the model that the word is over
SEED = 20_602
SPACING = 10_000_000  # reasoning-gym seeds item i with seed + i: near seeds share items


def split(sizes: dict[str, int]) -> dict[str, list[dict]]:
    """Make tasks {prompt, label, entry} by split: the right answer, and what the reward needs. Each split has
    its own range of seeds; a prompt that an earlier split holds is skipped. Prompts of `heldout` and `train` are
    distinct; warm-start examples may repeat."""
    taken: set[str] = set()
    splits = {}
    for number, (name, size) in enumerate(sizes.items()):
        tasks: list[dict] = []
        own: set[str] = set()
        drawn = {"seed": SEED + number * SPACING, "size": SPACING, **SETTINGS}
        for entry, kept in example("make").tasks(DATASET, drawn):
            task = {"prompt": entry["question"], "label": entry["answer"], "entry": kept}
            if task["prompt"] in taken or (task["prompt"] in own and name != "warm_start"):
                continue
            own.add(task["prompt"])
            tasks.append(task)
            if len(tasks) == size:
                break
        taken |= own
        splits[name] = tasks
    return splits


@functools.cache
def example(name: str) -> ModuleType:
    """Import `make` or `reward` of examples/reasoning_gym.

    Raises:
        UsageError: the package was not installed from a checkout, which has them.
    """
    if not EXAMPLE.is_dir():
        raise UsageError(f"{EXAMPLE} is missing: run this in a checkout (bash scripts/quickstart.sh)")
    spec = importlib.util.spec_from_file_location(f"reasoning_gym_{name}", EXAMPLE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(directory: str | Path, splits: dict[str, list[dict]]) -> None:
    for name, tasks in splits.items():
        write_json_lines(Path(directory) / f"{name}.jsonl", ({**task, "datasource": DATASET} for task in tasks))
