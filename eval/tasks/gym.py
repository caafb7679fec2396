"""`reasoning_gym:NAME[:size=100,seed=1,…]`: generated tasks of the reasoning-gym package, scored by its own scorers."""

from __future__ import annotations

import difflib
import functools
import json

from openrlhf_ebpo.upstream import UsageError

from .rows import FLAG, Rows, folder_name, make_task
from .types import REASONING_GYM, Rules, Task

PREFIX = "reasoning_gym:"
SIZE = 200
SEED = 100_000_000  # item i is drawn with seed + i: near seeds share items, so this one is far from any training's
# Where many answers are right there is no gold answer to show.
ANY = "(any answer that reasoning-gym's scorer accepts)"


def load_gym(spec: str) -> Task:
    """Raises:
    UsageError: reasoning-gym is not installed, or has no such data set or setting.
    """
    name, _, text = spec.partition(":")
    settings = {"size": SIZE, "seed": SEED, **_settings(text, spec)}
    data = create(name, settings)
    entries = [data[index] for index in range(settings["size"])]
    _check_scorer(name, data, entries[0])

    def read(entry: dict):
        answer = entry["answer"]
        rules = Rules(
            REASONING_GYM, entry=json.dumps({"name": name, "settings": settings, "entry": entry}, default=str)
        )
        return entry["question"], ANY if answer is None else str(answer), rules

    place = f"reasoning_gym {_version()}:{name}"
    shown = ",".join(f"{key}={value}" for key, value in settings.items())
    rows = Rows(("question", "answer"), entries, f"{place}:{shown}", place)
    return make_task(folder_name(PREFIX + name + (f"-{text}" if text else "")), rows, read)


def score(entry: str, answer: str) -> float:
    """reasoning-gym's score, 0 to 1, of an answer. entry: Rules.entry. Unbounded in time, as its scorers are."""
    kept = json.loads(entry)
    return float(_scorer(kept["name"], json.dumps(kept["settings"]))(answer, kept["entry"]))


@functools.lru_cache(maxsize=64)
def _scorer(name: str, settings: str):
    return create(name, json.loads(settings)).score_answer


def create(name: str, settings: dict):
    """The data set with these settings of its configuration.

    Raises:
        UsageError: as `load_gym`.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise UsageError(f"{FLAG} {PREFIX}{name} needs `pip install reasoning-gym`") from None
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, 1)
        hint = f"Did you mean {PREFIX}{near[0]}? " if near else ""
        raise UsageError(f"{FLAG} {PREFIX}{name}: no such data set. {hint}There are {', '.join(sorted(DATASETS))}")
    try:
        return reasoning_gym.create_dataset(name, **settings)
    except (TypeError, ValueError, AssertionError) as error:
        known = ", ".join(DATASETS[name][1].__dataclass_fields__)
        raise UsageError(f"{FLAG} {PREFIX}{name}: {error}. Its settings are {known}") from error


def _settings(text: str, spec: str) -> dict:
    settings = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise UsageError(f"{FLAG} {PREFIX}{spec}: settings are written as size=100,seed=1, not {part!r}")
        try:
            settings[key.strip()] = json.loads(value)
        except ValueError:
            settings[key.strip()] = value
    size = settings.get("size", SIZE)
    if not isinstance(size, int) or size < 1:
        raise UsageError(f"{FLAG} {PREFIX}{spec}: size must be a whole number from 1 on")
    return settings


def _check_scorer(name: str, data, entry: dict) -> None:
    """Some scorers compare tuples, which a file or another process gives back as lists."""
    answer = entry["answer"]
    kept = json.loads(json.dumps(entry, default=str))
    if isinstance(answer, str) and data.score_answer(answer, entry) != data.score_answer(answer, kept):
        raise UsageError(
            f"{FLAG} {PREFIX}{name}: its scorer needs Python objects that cannot be saved with the results"
        )


def _version() -> str:
    import importlib.metadata

    return importlib.metadata.version("reasoning-gym")
