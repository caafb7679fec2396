"""Find the runs: directories and data set repos of the Hub that the app was started with.

A visitor only ever names a run by its key. Paths come from the command line alone, and files of a run are opened
through `inside`, so a symbolic link in a run cannot lead out of it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from openrlhf_ebpo.files import whole_characters
from openrlhf_ebpo.run.results import SUMMARY, result_directories
from openrlhf_ebpo.run.run_log import SCHEMA, RunDirectoryError, read_run

from . import hub
from .errors import RunError

DEPTH = 3  # folders below a given directory in which runs are looked for
AT_ONCE = 20  # runs in one view
MAX_KEY_CHARS = 300  # `links` reads no more
GENERIC = ("run", "model")  # last folders of a run's path, in this order, that do not tell it from others
_MARKS = ("run.json", "metrics.jsonl")
_RESCAN = 5.0  # seconds
_AGAIN = 600.0  # seconds until the Hub is asked once more
_WAIT = 10.0  # seconds for another's download


@dataclass(frozen=True)
class Run:
    """A run directory. `key` names it in menus and links, `number` is its colour's (`Workspace.open` sets it)."""

    key: str
    path: Path
    number: int = 0
    problems: tuple[str, ...] = ()


@dataclass
class Runs:
    """The runs of this app.

    given: run directories, folders with run directories below them, or Hub data set repos (owner/name).
    """

    given: Sequence[str] = ()
    fetch: Callable[[str], tuple[Path, list[str]]] = hub.fetch
    _known: dict[str, Run] = field(default_factory=dict)
    _named: dict[Path, str] = field(default_factory=dict)
    _listed: dict[str, None] = field(default_factory=dict)
    _awaited: list[str] = field(default_factory=list)
    _scanned: float = 0.0
    _copies: dict[str, tuple[float, Run]] = field(default_factory=dict)  # of repos, and when they were fetched
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _downloading: threading.Lock = field(default_factory=threading.Lock)  # one at a time: it does not take every thread

    def listed(self) -> list[str]:
        """List the runs that the app was started with, in a stable order; looks for new ones every few seconds."""
        with self._lock:
            if self._scanned and time.monotonic() - self._scanned <= _RESCAN:
                return list(self._listed)
            repos = [given for given in self.given if hub.is_repo(given)]
            local = {given: find_runs(Path(given)) for given in self.given if given not in repos}
            self._awaited = [given for given, below in local.items() if not below]
            found = list(dict.fromkeys(path.resolve() for below in local.values() for path in below))
            self._named |= keys(found, self._named, repos)
            for path in found:
                key = self._named[path]
                self._known[key] = Run(key, path)
                self._listed[key] = None
            self._listed |= dict.fromkeys(repos)
            for given in self.given:  # the folder was written after its name was taken for a repo's
                if given in self._listed and given not in repos and given not in self._known:
                    del self._listed[given]
            self._scanned = time.monotonic()
            return list(self._listed)

    def awaited(self) -> list[str]:
        """Folders that the app was started with and that hold no run yet."""
        self.listed()
        return self._awaited

    def known(self, key: str) -> Run | None:
        """Return the run of this key if it is here; nothing is fetched."""
        self.listed()
        with self._lock:
            return self._known.get(key) or self._copies.get(key, (0.0, None))[1]

    def get(self, key: str) -> Run:
        """Return the run of this key; a Hub repo is fetched the first time.

        Raises:
            RunError: unknown, or it cannot be fetched.
        """
        listed = self.listed()
        with self._lock:
            if found := self._known.get(key):
                return found
        if key not in listed:
            raise RunError(f"There is no run called “{key}” here: the owner of this app names the runs that it shows.")
        return self._fetched(key)

    def _fetched(self, repo: str) -> Run:
        """Return the copy of a repo: fetched when first asked for, and again at intervals, since a run may grow; the
        one that is here stays if the Hub does not answer.

        Raises:
            RunError: it cannot be fetched.
        """
        at, copy = self._copies.get(repo, (0.0, None))
        if copy and time.monotonic() - at < _AGAIN:
            return copy
        if not self._downloading.acquire(timeout=0 if copy else _WAIT):
            if copy:
                return copy
            raise RunError(f"{repo}: other runs are being fetched from the Hub. Try again in a minute.")
        try:
            path, problems = self.fetch(repo)
            copy = Run(repo, path, problems=tuple(problems))
        except RunError:
            if copy is None:
                raise
        finally:
            self._downloading.release()
        self._copies[repo] = (time.monotonic(), copy)
        return copy


def find_runs(root: Path) -> list[Path]:
    """List the directory itself if it is a run, or all runs up to three folders below it, in order."""
    if is_run(root):
        return [root]
    found, level = [], [root]
    for _ in range(DEPTH):
        below = []
        for folder in level:
            with contextlib.suppress(OSError):  # one that may not be read
                children = [child for child in sorted(folder.iterdir()) if child.is_dir()]
                below += [c for c in children if not c.name.startswith(".") and c.name != "superseded"]
        runs = set(filter(is_run, below))
        found, level = [*found, *runs], [path for path in below if path not in runs]
    return sorted(found)


def is_run(path: Path) -> bool:
    """A folder that may not be read is none."""
    try:
        return any((path / mark).is_file() for mark in _MARKS) or bool(summaries(path))
    except OSError:
        return False


def summaries(path: Path) -> list[Path]:
    """List the files summary.json of a run's evaluations; of a folder of results alone, those in it."""
    folders = result_directories(path / "eval") or result_directories(path)
    return [folder / SUMMARY for folder in folders if len(folder.relative_to(path).parts) >= 3]


def keys(found: Sequence[Path], named: dict[Path, str], taken: Collection[str] = ()) -> dict[Path, str]:
    """Give a short name for each run that has none: its folder's own, without a last “run” or “model”; with as many of
    its parents as tell it from all others. A name that was given once stays, so that links do.

    Args:
        found: all runs, resolved.
        named: names that were given before.
        taken: names that belong to something else.
    """
    shared = Counter(name for path in {*found, *named} for name in set(_candidates(path)))
    used = {*named.values(), *taken}
    fresh: dict[Path, str] = {}
    for path in found:
        if path not in named:
            own = (name for name in _candidates(path) if shared[name] == 1 and name not in used)
            fresh[path] = next(own, _linkable(str(path)))
            used.add(fresh[path])
    return fresh


def _candidates(path: Path) -> Iterator[str]:
    """List names from the shortest to the complete path: first without the folders that tell nothing, then with
    them."""
    whole = parts = [part for part in path.parts if part != path.anchor]
    for folder in GENERIC:
        parts = parts[:-1] if len(parts) > 1 and parts[-1] == folder else parts
    for each in dict.fromkeys((tuple(parts), tuple(whole))):
        yield from (_linkable("/".join(each[-n:])) for n in range(1, len(each) + 1))


def _linkable(name: str) -> str:
    """Cut a name at the length of any value of a link."""
    return whole_characters(name)[-MAX_KEY_CHARS:].strip()


def inside(run: Run, *parts: str) -> Path:
    """Return a file below the run's directory, which may be missing.

    Raises:
        RunError: it leads out of it, through .. or a symbolic link, or is a folder.
    """
    path, named = run.path.joinpath(*parts), "/".join(parts)
    if not path.resolve().is_relative_to(run.path.resolve()):
        raise RunError(f"{named} leads out of the run's directory and is not read.")
    if path.exists() and not path.is_file():
        raise RunError(f"{named} is not a file and is not read.")
    return path


def stamp(path: Path) -> tuple[int, ...]:
    """Stamp a file: caches are keyed by it, so that a changed file is read again. () without a file."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_size, status.st_mtime_ns, status.st_ino


def describe(run: Run) -> dict:
    """Read run.json, {} without one.

    Raises:
        RunError: it is damaged, or of a newer schema.
    """
    path = inside(run, "run.json")
    if not path.is_file():
        return {}
    return _described(path, stamp(path))


@functools.lru_cache(64)
def _described(path: Path, stamp: tuple[int, ...]) -> dict:
    """Cached, since every click asks for it. Callers must not change it."""
    try:
        found = read_run(path.parent) or {}
    except RunDirectoryError:  # its message is for whoever trains there
        raise RunError("run.json is damaged, or holds no run; everything else is shown without it.") from None
    schema = found.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise RunError(f"run.json has schema {schema}; this app reads up to {SCHEMA}: update openrlhf_ebpo.")
    return found
