"""What all pages read: the runs of a view, with their metrics and groups, kept between views."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from openrlhf_ebpo.run.catalogue import Metric
from openrlhf_ebpo.run.own_metrics import own_metrics

from .distributions import Reader
from .errors import attempt
from .fetched import ADDED
from .groups import Index
from .metrics import Follower, Metrics
from .notes import Notes
from .runs import Run, Runs, describe, inside

SHOWN_AT_FIRST = 5  # runs in a view that names none
ALL_HIDDEN = "All runs are hidden: a click on the dot of a run, above, shows it again."


@dataclass(frozen=True)
class Opened:
    """One run of a view. `about` is run.json ({} where it cannot be read); dimmed: drawn faintly, as the visitor wants it."""

    run: Run
    about: dict
    metrics: Metrics
    problems: tuple[str, ...]
    dimmed: bool = False

    @property
    def status(self) -> str:
        return str(self.about.get("status") or "unknown")[:20]

    @property
    def estimator(self) -> str:
        """The run's --advantage_estimator; ebpo where run.json does not say."""
        found = self.about
        for part in ("args", "algo", "advantage", "estimator"):
            found = found.get(part) if isinstance(found, dict) else None
        return found if isinstance(found, str) and found else "ebpo"

    @property
    def own_metrics(self) -> dict[str, Metric]:
        """What the run says about metrics of its own code."""
        return own_metrics(self.about.get("metrics"))

    @property
    def rewards(self) -> tuple[float, float]:
        """Fail and pass reward."""
        settings = self.about
        for part in ("args", "algo", "advantage", "ebpo"):
            settings = settings.get(part) if isinstance(settings, dict) else None
        settings = settings if isinstance(settings, dict) else {}
        return _number(settings.get("fail_reward"), 0.0), _number(settings.get("pass_reward"), 1.0)


@dataclass
class Workspace:
    runs: Runs
    notes: Notes = field(default_factory=Notes)
    _followers: OrderedDict[str, Follower] = field(default_factory=OrderedDict)
    _indexes: OrderedDict[str, Index] = field(default_factory=OrderedDict)
    _readers: OrderedDict[str, Reader] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def chosen(self, view: dict) -> list[str]:
        """Keys of the view's runs; the first few where it names none."""
        return view["runs"] or self.runs.listed()[:SHOWN_AT_FIRST]

    def shown(self, view: dict) -> list[str]:
        """Keys of the view's runs that are not hidden."""
        return [key for key in self.chosen(view) if key not in view.get("hidden", ())]

    def open(self, key: str) -> Opened:
        """A run with its metrics and groups; what of it cannot be read is listed in `problems`.

        Raises:
            RunError: there is no such run.
        """
        run = self.runs.get(key)
        problems = list(run.problems)
        if not run.path.is_dir():
            problems.append("its directory is gone (moved, renamed or deleted); nothing of it can be shown.")
        about = attempt(lambda: describe(run), {}, problems, "run.json")
        follower = self._kept(self._followers, run, lambda: Follower(inside(run, "metrics.jsonl")), problems)
        metrics = attempt(follower.read, Metrics(), problems, "metrics.jsonl") if follower else Metrics()
        return Opened(run, about, metrics, (*problems, *metrics.problems))

    def open_all(self, view: dict) -> tuple[list[Opened], list[str]]:
        """The runs of a view that are not hidden, and what went wrong with those that are missing or incomplete."""
        opened, problems, listed = [], [], self.runs.listed()
        chosen, shown = self.chosen(view), self.shown(view)
        own = [key for key in chosen if key not in listed]  # of this view alone: nobody else's runs count
        for key in shown:
            found = attempt(lambda key=key: self.open(key), None, problems, key)
            if found is not None:
                run = found.run if key in listed else replace(found.run, number=len(listed) + own.index(key))
                opened.append(replace(found, run=run, dimmed=key in view.get("dimmed", ())))
                damage = self._indexes[key].damage if key in self._indexes else ""
                problems += [f"{key}: {problem}" for problem in (*found.problems, damage) if problem]
        return opened, problems if shown or not chosen else [ALL_HIDDEN]

    def warm(self) -> None:
        """Fetch and read what a visitor sees first, so that the first one does not wait for it."""
        for key in self.runs.listed()[:SHOWN_AT_FIRST]:
            attempt(lambda key=key: self.index(self.open(key)).read(), None, [])

    def index(self, opened: Opened) -> Index:
        return self._kept(self._indexes, opened.run, lambda: Index(opened.run, *opened.rewards), [])

    def rollouts(self, opened: Opened) -> Reader:
        """What distributions are made of."""
        return self._kept(self._readers, opened.run, lambda: Reader(opened.run, *opened.rewards), [])

    def _kept(self, store: OrderedDict, run: Run, make: Callable, problems: list[str]):
        """What is kept of a run; of those that visitors added, as long as their copies are."""
        listed = self.runs.listed()
        with self._lock:
            if run.key not in store:
                made = attempt(make, None, problems)
                if made is None:
                    return None
                store[run.key] = made
            store.move_to_end(run.key)
            added = [key for key in store if key not in listed]
            for key in added[:-ADDED]:
                del store[key]
            return store[run.key]


def _number(value, otherwise: float) -> float:
    try:
        return float(value) if type(value) in (int, float) and math.isfinite(value) else otherwise
    except OverflowError:  # JSON's whole numbers have no limit
        return otherwise
