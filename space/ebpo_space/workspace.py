"""The runs of a view, with their metrics and groups, and rendered pages, kept between views for all pages."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from openrlhf_ebpo.run.run_log import get_nested

from . import seeds
from .errors import attempt
from .figures import finite
from .groups import Index
from .metrics import Follower, Metrics
from .runs import AT_ONCE, Run, Runs, describe, inside

PAGE_SECONDS = 60.0  # that a rendered page is kept; it may say how long ago something was
MAX_KEPT_PAGES = 24  # of at most some megabytes
USUAL_GROUP = 8  # responses to a prompt, where run.json does not say
ALL_HIDDEN = "All runs are hidden: a click on the dot of a run, above, shows it again."


@dataclass(frozen=True)
class LoadedRun:
    """One run of a view. `about` is run.json ({} where it cannot be read)."""

    run: Run
    about: dict
    metrics: Metrics
    problems: tuple[str, ...]

    @property
    def estimator(self) -> str:
        """The run's --advantage_estimator; ebpo where run.json does not say."""
        found = get_nested(self.about, "args", "algo", "advantage", "estimator")
        return found if isinstance(found, str) and found else "ebpo"

    @property
    def prompts(self) -> tuple[np.ndarray, np.ndarray]:
        """Steps, and the prompts of each; as few as its responses may be worth."""
        steps, responses = self.metrics.series("rollout/num_samples")
        size = get_nested(self.about, "args", "rollout", "n_samples_per_prompt")
        return steps, responses / (size if type(size) is int and size > 0 else USUAL_GROUP)

    @property
    def rewards(self) -> tuple[float, float]:
        """Fail and pass reward."""
        fail, passing = (
            get_nested(self.about, "args", "algo", "advantage", "ebpo", f"{end}_reward") for end in ("fail", "pass")
        )
        fail, passing = finite(fail), finite(passing)
        return 0.0 if fail is None else fail, 1.0 if passing is None else passing


@dataclass
class Workspace:
    runs: Runs
    _followers: dict[str, Follower] = field(default_factory=dict)
    _indexes: dict[str, Index] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def chosen(self, view: dict) -> list[str]:
        """Return the keys of the view's runs; if it names none, those of all configurations in turn, up to AT_ONCE."""
        return view["runs"][:AT_ONCE] or self._first()

    def _first(self) -> list[str]:
        groups: dict[int, list[str]] = {}
        for run in self.describe_runs():
            groups.setdefault(run.run.number, []).append(run.run.key)
        turns = [key for turn in itertools.zip_longest(*groups.values()) for key in turn if key is not None]
        return sorted(turns[:AT_ONCE], key=list(itertools.chain(*groups.values())).index)

    def describe_runs(self) -> list[LoadedRun]:
        """Return the listed runs as their run.json describes them, without metrics. Those that differ only in their
        seed share the number of a colour."""
        known = {key: self.runs.known(key) for key in self.runs.listed()}
        about = {key: attempt(lambda run=run: describe(run), {}, []) if run else {} for key, run in known.items()}
        runs = [LoadedRun(run or Run(key, Path()), about[key], Metrics(), ()) for key, run in known.items()]
        return [
            replace(run, run=replace(run.run, number=number))
            for number, group in enumerate(seeds.group_by_configuration(runs))
            for run in group
        ]

    def numbers(self) -> dict[str, int]:
        """Return key -> number of its colour."""
        return {run.run.key: run.run.number for run in self.describe_runs()}

    def visible(self, view: dict) -> list[str]:
        """List the keys of the view's runs that are not hidden."""
        return [key for key in self.chosen(view) if key not in view.get("hidden", ())]

    def open(self, key: str, numbers: Mapping[str, int] | None = None) -> LoadedRun:
        """Open a run with its metrics and groups; what of it cannot be read is listed in `problems`.

        Raises:
            RunError: the run is unknown.
        """
        run = self.runs.get(key)
        run = replace(run, number=(numbers or self.numbers())[key])
        problems = list(run.problems)
        if not run.path.is_dir():
            problems.append("its directory is gone (moved, renamed or deleted); nothing of it can be shown.")
        about = attempt(lambda: describe(run), {}, problems, "run.json")
        follower = self._kept(self._followers, run, lambda: Follower(inside(run, "metrics.jsonl")), problems)
        metrics = attempt(follower.read, Metrics(), problems, "metrics.jsonl") if follower else Metrics()
        return LoadedRun(run, about, metrics, (*problems, *metrics.problems))

    def open_all(self, view: dict) -> tuple[list[LoadedRun], list[str]]:
        """Open the runs of a view that are not hidden, and what went wrong with those that are missing or
        incomplete."""
        opened, problems = [], []
        chosen, shown = self.chosen(view), self.visible(view)
        numbers = self.numbers()
        for key in shown:
            found = attempt(lambda key=key: self.open(key, numbers), None, problems, key)
            if found is not None:
                opened.append(found)
                damage = self._indexes[key].damage if key in self._indexes else ""
                problems += [f"{key}: {problem}" for problem in (*found.problems, damage) if problem]
        if len(view["runs"]) > AT_ONCE:
            problems.append(f"{len(view['runs'])} runs are asked for; the first {AT_ONCE} are shown.")
        elif not view["runs"] and len(chosen) < len(numbers):
            problems.append(f"{len(chosen)} of {len(numbers)} runs are shown; the table of runs above has the others.")
        return opened, problems if shown or not chosen else [ALL_HIDDEN]

    def warm(self) -> None:
        """Fetch and read what a visitor sees first, so that the first one does not wait for it."""
        for key in self._first():
            attempt(lambda key=key: self.index(self.open(key)).read(), None, [])

    def index(self, opened: LoadedRun) -> Index:
        return self._kept(self._indexes, opened.run, lambda: Index(opened.run, *opened.rewards), [])

    def _kept(self, store: dict, run: Run, make: Callable, problems: list[str]):
        """Keep what is made of a run."""
        with self._lock:
            if run.key not in store and (made := attempt(make, None, problems)) is not None:
                store[run.key] = made
            return store.get(run.key)


@dataclass
class _Place:
    lock: threading.Lock = field(default_factory=threading.Lock)
    until: float = 0.0
    found: dict = field(default_factory=dict)


class Rendered:
    """A cache of rendered pages for the next visitor of the same view, valid while the files are the same."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.clock = clock
        self._place = functools.lru_cache(MAX_KEPT_PAGES)(lambda key: _Place())

    def get(self, key: Hashable, render: Callable[[], dict]) -> dict:
        """Return the page kept under the key, or the result of `render`. Of visitors who ask at once one renders and
        the others wait; an error is not kept."""
        place = self._place(key)
        with place.lock:
            if self.clock() >= place.until:
                place.found = render()
                place.until = self.clock() + PAGE_SECONDS
            return place.found
