"""A benchmark: where its rows are, which columns hold what, how a question is asked and its answers compared.

A file of this folder, or a module outside the package, defines one as TASK, with everything that is
special about it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from openrlhf_ebpo.data.questions import answer_key
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.rewards.math.golds import gold_text
from openrlhf_ebpo.run.results import LIMITED

from .task_rows import HubSet
from .types import Rules, is_several

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
DEGREES = re.compile(r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|°)$")


def label_text(value) -> str:
    """Return the label that a reward file gets for a value of the answer column: a text as it is, others as JSON.

    Raises:
        ValueError: the row has none.
    """
    if value is None:
        raise ValueError("it has no label")
    return value if isinstance(value, str) else json.dumps(value)


def integer_text(text: str) -> str:
    """Return a gold answer that has to be an integer, without leading zeros, decimals, separators and degrees.

    Raises:
        ValueError: it is not an integer.
    """
    number = answer_key(DEGREES.sub("", text))
    if not re.fullmatch(r"-?\d+", number):
        raise ValueError(f"its gold answer {text[:60]!r} is not an integer")
    return number


@dataclass(frozen=True)
class Benchmark:
    """
    name: its name in --tasks, folders and reports. about: what --help says of it.
    copies: where its rows are, the default first: data sets on the Hub, or a .jsonl or .parquet file (a Path); none:
        --tasks has to name a file, NAME=FILE.
    question, answer: names that these columns have in the copies; of each copy, the first that exists counts.
    columns: the others that `prompt` and `rules` read; a note names those that a copy lacks.
    prompt: (question, row) -> the question as it is asked; the template of the model's training goes around it.
    gold: value of the answer column -> the gold answer as text; by default in one spelling, with a reward as it is, or
        as JSON. integer: it has to be an integer.
    rules: (row, value of the answer column) -> how the reward `math` compares answers with the gold.
    reward: a .py file with the `reward_func` that grades responses (reward_file.py), with the gold as label, as in
        training; it may be the file that holds the benchmark. None: the reward `math`.
    data: rows, each a dict, that are in the file itself, in place of `copies`.
    rows: how many the copies of it have; a different number adds a note.

    `prompt`, `gold` and `rules` raise ValueError for a row that cannot be used; it is named and left out.

    Raises:
        ValueError: the name fits no folder, or a copy or column is of another type.
    """

    name: str
    copies: tuple[HubSet | Path, ...] = ()
    about: str = ""
    question: tuple[str, ...] = ("problem", "question", "prompt")
    answer: tuple[str, ...] = ("answer", "final_answer", "solution")
    columns: tuple[str, ...] = ()
    prompt: Callable[[str, Mapping], str] = lambda question, row: question
    gold: Callable[[object], str] = gold_text
    integer: bool = False
    rules: Callable[[Mapping, object], Rules] = lambda row, answer: Rules(is_multiple_answer=is_several(answer))
    reward: Path | None = None
    data: tuple[Mapping, ...] = ()
    rows: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name) or LIMITED.search(self.name):
            raise ValueError(
                "a benchmark's name has up to 80 letters, digits, dots, dashes and underscores, and no -firstN at its "
                f"end: {self.name!r:.60}"
            )
        kinds = {"copies": (HubSet, Path), "question": str, "answer": str, "columns": str, "rows": int, "data": dict}
        for which, kind in kinds.items():
            values = getattr(self, which)
            if not isinstance(values, tuple) or not all(isinstance(each, kind) for each in values):
                named = "HubSet or Path" if which == "copies" else kind.__name__
                raise ValueError(f"{self.name}: {which} must be a tuple of {named}, not {values!r:.60}")
        for which in ("prompt", "gold", "rules"):
            if not callable(function := getattr(self, which)):
                raise ValueError(f"{self.name}: {which} must be a function, not {function!r:.60}")
        if not isinstance(self.reward, (Path, type(None))):
            raise ValueError(f"{self.name}: reward must be the Path of a .py file, not {self.reward!r:.60}")
        if self.data and self.copies:
            raise ValueError(f"{self.name}: data takes the place of copies; leave one of them out")

    def gold_of(self, answer) -> str:
        if self.reward and self.gold is gold_text:
            return label_text(answer)
        text = self.call("gold", str, answer)
        return integer_text(text) if self.integer else text

    def rules_of(self, row: Mapping, answer, gold: str) -> Rules:
        """Return the rules, with the answer as the data set spells it; all spellings of an integer are the same."""
        rules = self.call("rules", Rules, row, answer)
        first = str(answer[0] if isinstance(answer, (list, tuple)) and answer else answer)
        return rules if self.integer or rules.source_gold or first == gold else replace(rules, source_gold=first)

    def call(self, which: str, kind: type, *arguments):
        """Call one of its functions, and check the type of its result.

        Raises:
            ValueError: the row cannot be used. UsageError: the function is wrong.
        """
        try:
            found = getattr(self, which)(*arguments)
        except (ValueError, UsageError):
            raise
        except (Exception, SystemExit) as error:  # user code: any exception
            raise UsageError(f"{self._call_text(which, arguments)} raised {type(error).__name__}: {error}") from error
        if not isinstance(found, kind):
            raise UsageError(f"{self._call_text(which, arguments)} is {found!r:.60}; it has to be a {kind.__name__}")
        if found == "":
            raise ValueError(f"its {which} is empty")
        return found

    def _call_text(self, which: str, arguments: Sequence) -> str:
        return f"benchmark {self.name}: {which}({', '.join(f'{each!r:.60}' for each in arguments)})"
