"""The parts of `openrlhf-ebpo verify`: each reads one thing of a run, and says what it found. None writes, follows a link in
the run directory or in a checkpoint, or runs code of a run's own."""

from __future__ import annotations

import itertools
import json
import math
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from openrlhf_ebpo.cli import replay
from openrlhf_ebpo.cli.replay import Ran
from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.estimator import registry, stored
from openrlhf_ebpo.estimator.replay import Difference, Replayed, logged
from openrlhf_ebpo.estimator.replay import replay as replayed
from openrlhf_ebpo.extension import is_import_path
from openrlhf_ebpo.record import resume
from openrlhf_ebpo.record.retention import DROPPED, first_kept
from openrlhf_ebpo.record.rollout_columns import logged_steps, read_columns
from openrlhf_ebpo.record.run_log import PRIOR

SHOWN = 5  # of things of one kind
MOST = 10**7  # steps
EVALUATED = "eval_"  # how metrics of an evaluation begin, whose row is one of its own


class Part(NamedTuple):
    """found: in words. problems: what is wrong. notes: what is worth knowing, and no problem."""

    name: str
    found: str
    problems: Sequence[str] = ()
    notes: Sequence[str] = ()


class Run(NamedTuple):
    """A run that was read: what run.json says, and the steps that it has come to."""

    ran: Ran
    json: dict
    ckpt: Path | None
    last: int

    @property
    def folder(self) -> Path:
        return self.ran.folder

    @property
    def ended(self) -> bool:
        return self.json.get("status") == "complete"

    @property
    def groups(self) -> list[Path]:
        return resume.groups(self.ckpt, self.ran.estimator) if self.ckpt else []


def refuse_links(folder: Path) -> None:
    """That all below the folder is files and folders of its own.

    Raises:
        UsageError: there are links, pipes or devices.
    """
    if found := list(itertools.islice(strange(folder), SHOWN)):
        raise UsageError(
            f"{folder} holds what is no file and no folder, and is not followed: {', '.join(found)}. Put the files "
            "themselves there, and repeat the command"
        )


def strange(folder: Path) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        for name in sorted([*folders, *names]):
            mode = os.lstat(os.path.join(place, name)).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                yield ascii(os.path.relpath(os.path.join(place, name), folder))


# metrics.jsonl and rollouts/


def metrics(run_dir: Path) -> tuple[Part, int]:
    """And the last step."""
    path = run_dir / "metrics.jsonl"
    try:
        text = path.read_text()
    except FileNotFoundError:
        return Part("metrics", "none yet"), 0
    except (OSError, ValueError) as error:
        return Part("metrics", "unreadable", [f"metrics.jsonl cannot be read ({str(error)[:200]})"]), 0
    lines = text.splitlines(keepends=True)
    torn = ["the last line of metrics.jsonl is torn, as by a crash"] if text and not text.endswith("\n") else []
    parsed = [(number, _row(line)) for number, line in enumerate(lines[: len(lines) - len(torn)], 1) if line.strip()]
    broken = [number for number, row in parsed if row is None]
    steps = [row["step"] for _, row in parsed if row and _is_training(row)]
    problems = [f"metrics.jsonl: line {number} is no row of a step" for number in broken[:SHOWN]]
    problems += order_problems("metrics.jsonl", steps, 1)
    last = max(steps, default=0)
    return Part("metrics", f"{len(set(steps)):,} steps, the last {last:,}", problems, torn), last


def _row(line: str) -> dict | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and type(row.get("step")) is int and 0 < row["step"] < MOST else None


def _is_training(row: dict) -> bool:
    return any(not name.startswith(EVALUATED) for name in row.keys() - {"step", "time"})


def order_problems(name: str, steps: Sequence[int], every: int) -> list[str]:
    """Of steps that should be `every`, 2 · `every` and so on, each once."""
    counts = Counter(steps)
    twice = [step for step, count in counts.items() if count > 1]
    missing = sorted({*range(every, max(steps, default=0) + 1, every)} - counts.keys())
    problems = [f"{name}: {spelt(twice)} {_are(twice)} there more than once"] if twice else []
    problems += [f"{name}: {spelt(missing)} {_are(missing)} missing"] if missing else []
    backwards = next(((a, b) for a, b in itertools.pairwise(steps) if b < a), None)
    return problems + ([f"{name}: step {backwards[1]} comes after step {backwards[0]}"] if backwards else [])


def _are(steps: Sequence[int]) -> str:
    return "is" if len(steps) == 1 else "are"


def spelt(steps: Sequence[int]) -> str:
    shown = ", ".join(map(str, sorted(steps)[:SHOWN]))
    more = f" and {len(steps) - SHOWN:,} more" if len(steps) > SHOWN else ""
    return f"step{'s' if len(steps) > 1 else ''} {shown}{more}"


def rollouts(run: Run) -> Part:
    """Of the steps in metrics.jsonl, but for those that were dropped on purpose."""
    files, dropped, every = logged_steps(run.folder), first_kept(run.folder) - 1, logged_every(run)
    missing = [step for step in range(every, run.last + 1, every) if step not in files and step > dropped]
    beyond = [step for step in files if step > run.last]
    late = [step for step in (*missing, *beyond) if step >= run.last]  # a crash came between a step's files
    late = late if not run.ended else []
    lost, foreign = ([step for step in steps if step not in late] for steps in (missing, beyond))
    problems = [f"rollouts: {spelt(lost)} {_are(lost)} missing"] if lost else []
    problems += [f"rollouts: {spelt(foreign)} {_are(foreign)} not in metrics.jsonl"] if foreign else []
    problems += [f"{DROPPED} says that steps up to {dropped:,} were dropped"] if dropped > run.last else []
    notes = [f"rollouts and metrics.jsonl differ in {spelt(late)}: the run is not complete"] if late else []
    notes += [f"those of steps up to {dropped:,} were dropped: --logger.keep_rollouts"] if dropped else []
    return Part("rollouts", f"{len(files):,} steps", problems, notes)


def logged_every(run: Run) -> int:
    """Every so many steps were logged, whichever --logger.rollouts_every the run had at the time."""
    resumed = run.json.get("resumed")
    rows = resumed if isinstance(resumed, list) else []
    before = [replay.dig(row, "changed", "logger.rollouts_every", "was") for row in rows]
    return math.lcm(*(each for each in (run.ran.rollouts_every, *before) if type(each) is int and 0 < each < MOST))


# What the estimator gave


class Recomputed(NamedTuple):
    """states: step -> the state after it, packed."""

    part: Part
    states: dict[int, dict]


def advantages(run: Run) -> Recomputed:
    """Every advantage and every state again, from the rewards in the rollouts."""
    name, states, found, prompts = "advantages", {}, {}, _Prompts()
    ran = run.ran
    if is_import_path(ran.estimator):
        how = f"openrlhf-ebpo replay {ran.folder} --estimator {ran.estimator}"
        return Recomputed(
            Part(name, "not recomputed", notes=[f"the estimator is code of somebody's own; {how} runs it"]), {}
        )
    try:
        estimator = replay.wanted(ran, None, {})
        files = logged_steps(ran.folder)
        starts = replay.known_starts(ran, estimator, True, None)
        replay.check_steps(ran, estimator, list(files), starts, first_kept(ran.folder) - 1)
    except UsageError as error:
        return Recomputed(Part(name, "not recomputed", notes=[str(error)]), {})
    except ReportedError as error:
        return Recomputed(Part(name, "not recomputed", [str(error)]), {})
    steps = (prompts.seen(logged(step, read_columns(path), ran.size, str(path))) for step, path in files.items())
    try:
        for each in replayed(estimator, replay.counted(steps, len(files)), starts):
            found[each.logged.step] = Difference.of(each)
            states |= _packed(estimator, each)
        words = replay.verdict(ran, estimator, True, found)
    except ReportedError as error:
        return Recomputed(Part(name, f"{len(found):,} steps recomputed", [str(error)], prompts.notes()), states)
    return Recomputed(Part(name, words, notes=prompts.notes()), states)


def _packed(estimator, each: Replayed) -> dict[int, dict]:
    if not registry.computed_here(estimator.name):
        return {}
    return {each.logged.step: stored.pack(estimator, each.state)}


class _Prompts:
    """Which prompts came when. That one comes twice in a step may be the data: so it is a note."""

    def __init__(self):
        self.twice: list[int] = []
        self.again: list[int] = []
        self.before: tuple = ()

    def seen(self, step):
        names = [name for name in step.prompt_ids if name is not None]
        if len(set(names)) < len(names):
            self.twice.append(step.step)
        if names and step.prompt_ids == self.before:
            self.again.append(step.step)
        self.before = step.prompt_ids
        return step

    def notes(self) -> list[str]:
        notes = (
            [f"{spelt(self.twice)}: a prompt comes twice in the batch (is it twice in the data?)"] if self.twice else []
        )
        return notes + ([f"{spelt(self.again)}: the same prompts as in the step before"] if self.again else [])


def prior(run: Run, states: dict[int, dict]) -> Part:
    """prior.json of the run: the state after its last step."""
    path, last = run.folder / PRIOR, max(states, default=0)
    known = states.get(last) if last == run.last else None
    if not path.is_file():
        if not registry.computed_here(run.ran.estimator) or not run.last:
            return Part("prior", "none")
        how = "; --rebuild writes it" if known else ""
        return Part("prior", "lost", [f"{PRIOR} is missing{how}"])
    found = read_prior(path)
    if known is None:
        return Part("prior", "there; its step's state is not known", [] if found else [f"{PRIOR} cannot be read"])
    if found == known:
        return Part("prior", f"{PRIOR} is the state after step {last:,}")
    words = f"{PRIOR} is not the state after step {last:,}" if found else f"{PRIOR} cannot be read; --rebuild writes it"
    late = bool(found) and not run.ended
    return Part("prior", "another one", [] if late else [words], [f"{words}: the run is not complete"] if late else [])


def read_prior(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes()) or None
    except (OSError, ValueError, RecursionError):
        return None
