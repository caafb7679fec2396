"""Notes and tags on groups: `notes.jsonl` in the run directory, one line a change; the last one of a group counts.

A line belongs to a step, a group and its prompt: after a resume from an earlier step another prompt may stand in that
place, and has no note.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from openrlhf_ebpo.files import try_lock, whole_characters
from openrlhf_ebpo.run.run_log import NOTES as FILE

from .errors import RunError
from .groups import Groups
from .runs import Run, inside

LOOPBACK = ("127.0.0.1", "localhost", "::1")
LONGEST = 1000  # characters of a note
TAGS, TAG = 8, 40  # of a group; characters of one
ROOM = 4 * 2**20  # bytes of the file
ANY = "*"  # in place of a tag: every group with a note or a tag
WAIT = 3.0  # seconds for another writer


@dataclass(frozen=True)
class Note:
    """time: when it was written, "" where it never was; it tells one version from another."""

    text: str = ""
    tags: tuple[str, ...] = ()
    time: str = ""
    prompt: str = ""

    def __bool__(self) -> bool:
        return bool(self.text or self.tags)


class Changed(RunError):
    """Somebody else has written this note meanwhile: `note`."""

    def __init__(self, note: Note):
        super().__init__("This note was changed since the page was loaded; save once more to replace what it says now:")
        self.note = note


def text_of(value) -> str:
    """A note's text within its limits."""
    return whole_characters(str(value or "")).replace("\r\n", "\n").strip()[:LONGEST]


def tags_of(value) -> list[str]:
    """Tags: a list, or text with commas between them; no blanks around, none twice."""
    names = value.split(",") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else []
    words = (" ".join(whole_characters(str(name)).replace(",", " ").split())[:TAG].strip() for name in names)
    return [word for word in dict.fromkeys(words) if word and word != ANY][:TAGS]


def kept_by(option: str, host: str) -> Notes:
    """What --notes says for an app that listens there: "auto" is on where only this machine reaches it. A Space on the Hub
    has none."""
    here = host in LOOPBACK
    enabled = option == "on" or (option == "auto" and here)
    return Notes(enabled and "SPACE_ID" not in os.environ, anywhere=option == "on")


@dataclass
class Notes:
    """The notes of runs on this machine. enabled: whether this app reads and writes them at all. anywhere: also for pages
    that were opened under another name than this machine's own."""

    enabled: bool = False
    anywhere: bool = False
    _read: dict[Path, tuple[tuple, dict]] = field(default_factory=dict)

    def keeps(self, run: Run) -> bool:
        return self.enabled and not run.remote

    def of(self, run: Run) -> dict[tuple[int, int], Note]:
        """(step, group) -> its note; those that were taken away are left out."""
        if not self.keeps(run):
            return {}
        path = inside(run, FILE)
        sign = _sign(path)
        if path not in self._read or self._read[path][0] != sign:
            self._read[path] = sign, _latest(_lines(path)) if sign else {}
        return {place: note for place, note in self._read[path][1].items() if note}

    def keep(self, run: Run, place: tuple[int, int], prompt: str, note: Note) -> Note:
        """Append a note. note.time: of the version that its writer has seen, "" for none.

        Raises:
            Changed: there is a later one.
            RunError: notes are not kept here, or cannot be written.
        """
        if not self.keeps(run):
            raise RunError("Notes are not kept here; a link carries the note of the group that it shows.")
        text, tags, now = text_of(note.text), tags_of(note.tags), datetime.now(timezone.utc).isoformat()
        line = {"time": now, "step": place[0], "group": place[1], "prompt_id": prompt, "note": text, "tags": tags}
        _append(inside(run, FILE), line, note.time)
        return Note(text, tuple(tags), now, prompt)


def note_at(notes: dict[tuple[int, int], Note], groups: Groups, position: int) -> Note:
    """The note of a group; none where it was written about another prompt."""
    found = notes.get((int(groups.step[position]), int(groups.group[position])), Note())
    return found if found.prompt == (groups.prompt_id[position] or "") else Note()


def tagged(notes: dict[tuple[int, int], Note], groups: Groups, positions: np.ndarray, tag: str) -> np.ndarray:
    """Those of the positions that have the tag (`ANY`: a note or a tag)."""
    if not tag:
        return positions
    places = [place for place, note in notes.items() if tag == ANY or tag in note.tags]
    wanted = np.array([_code(*place) for place in places], np.int64)
    found = positions[np.isin(_code(groups.step[positions].astype(np.int64), groups.group[positions]), wanted)]
    return found[np.array([bool(note_at(notes, groups, int(p))) for p in found], bool)]


def _code(step, group):
    return step * 2**31 + group


def tags_in(notes: dict[tuple[int, int], Note]) -> list[tuple[str, int]]:
    """Each tag and how many groups have it, the most frequent first."""
    return Counter(tag for note in notes.values() for tag in note.tags).most_common(40)


def _latest(lines: Iterable[dict]) -> dict[tuple[int, int], Note]:
    found: dict[tuple[int, int], Note] = {}
    for line in lines:
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
            place = int(line["step"]), int(line["group"])
            if not all(0 <= part < 2**31 for part in place):
                continue
            prompt = str(line.get("prompt_id") or "")
            tags = tuple(tags_of(line.get("tags")))
            found[place] = Note(text_of(line.get("note")), tags, str(line.get("time"))[:40], prompt)
    return found


def _lines(path: Path) -> Iterator[dict]:
    """Whole objects of the file, whatever else stands in it."""
    try:
        with open(_opened(path, os.O_RDONLY), "rb") as file:
            data = file.read(ROOM)
    except OSError:
        return
    yield from _objects(data)


def _objects(data: bytes) -> Iterator[dict]:
    for line in data.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(line)
            if isinstance(found, dict):
                yield found


def _append(path: Path, line: dict, seen: str) -> None:
    """One write, under a lock that other writers hold meanwhile; a torn line before it is ended."""
    try:
        with open(_opened(path, os.O_RDWR | os.O_CREAT), "r+b", buffering=0) as file:
            _lock(file)
            data = file.read(ROOM + 1)
            _check_unchanged(data, line, seen)
            text = b"\n" * (data[-1:] not in (b"", b"\n")) + json.dumps(line).encode() + b"\n"
            if len(data) + len(text) > ROOM:
                raise RunError(f"{FILE} is full ({ROOM >> 20} MiB): move it away, or take old lines out of it.")
            file.seek(0, os.SEEK_END)
            if file.write(text) < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
    except OSError as error:
        raise RunError(f"{FILE} cannot be written: {error.strerror or type(error).__name__}.") from None


def _check_unchanged(data: bytes, line: dict, seen: str) -> None:
    there = _latest(_objects(data)).get((line["step"], line["group"]), Note())
    if there and there.prompt == line["prompt_id"] and there.time != seen:
        raise Changed(there)


def _opened(path: Path, how: int) -> int:
    """Neither a link nor a pipe nor a device.

    Raises:
        OSError: it is, or cannot be opened.
    """
    descriptor = os.open(path, how | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(None, "it is no ordinary file")
    return descriptor


def _lock(file) -> None:
    """Wait for the lock, which is held until the file is closed. Raises OSError where another writer has it for longer than WAIT."""
    until = time.monotonic() + WAIT
    while not try_lock(file):
        if time.monotonic() > until:
            raise OSError(None, f"another program has held it for {WAIT:.0f} seconds")
        time.sleep(0.02)


def _sign(path: Path) -> tuple:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_size, status.st_mtime_ns, status.st_ino
