"""`reasoning_gym:NAME[:size=100,seed=1,…]`: generated tasks of the reasoning-gym package, scored by its own scorers."""

from __future__ import annotations

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.rewards import gym

from .rows import FLAG, Rows, folder_name, make_task
from .types import REASONING_GYM, Rules, Task

PREFIX = "reasoning_gym:"
SIZE = 200
SEED = 100_000_000  # item i is drawn with seed + i: near seeds share items, so this one is far from any training's


def load_gym(spec: str) -> Task:
    """The task of a spec NAME[:size=100,seed=1,…]: generated questions, scored by reasoning-gym.

    Raises:
        UsageError: reasoning-gym is not installed, or has no such data set or setting.
    """
    try:
        name, given = gym.parse_spec(spec)
        settings = {"size": SIZE, "seed": SEED, **given}
        data = gym.create(name, settings)
        entries = [data[index] for index in range(settings["size"])]
        rows = [{"entry": entry, "text": gym.encode(name, settings, entry)} for entry in entries]
    except gym.EntryError as error:
        raise UsageError(f"{FLAG} {PREFIX}{error}") from error

    def read(row: dict):
        return row["entry"]["question"], gym.gold(row["entry"]), Rules(REASONING_GYM, entry=row["text"])

    place = f"reasoning_gym {_version()}:{name}"
    shown = ",".join(f"{key}={value}" for key, value in settings.items())
    source = Rows(("question", "answer"), rows, f"{place}:{shown}", place)
    return make_task(folder_name(PREFIX + spec.rstrip(":").replace(":", "-", 1)), source, read)


def _version() -> str:
    import importlib.metadata

    return importlib.metadata.version("reasoning-gym")
