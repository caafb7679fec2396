"""reasoning-gym's tasks as texts that files and other processes can hold, and its own scorers on them.

An entry is the JSON of {"name": kind of task, "settings": of its data set, "entry": what the data set gave}: all that
the data set's `score_answer` needs. Training has it in its label column, evaluation in the rules of a question.

This is a grader of pool.py too: the scorers are unbounded in time and memory, and some of them evaluate the answer as
Python. Import this module wherever you like, but score answers of a model in those processes.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import json
import math
import re
import sys
import typing
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, fields
from fractions import Fraction
from types import ModuleType

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.rewards.grading import SPECIAL, GoldError, extract_answer

MAX_TASKS = 1_000_000  # tasks of one kind: all of them are held in memory
ANSWER, ANSWER_END, THINK, THINK_END = "<answer>", "</answer>", "<think>", "</think>"
ANY = "(any answer that reasoning-gym's scorer accepts)"  # shown if many answers are right
EXAMPLES = ("example_answer", "example_correct_answer", "possible_answer")  # in the metadata, if many are right
TUPLE, PAIRS = "()", "{}"  # the only keys of what stands for a tuple, and for a dict whose keys are not all texts
# An answer of nothing but numbers and these: min(1, nan) is 1. In words, Nan may be a name.
NO_NUMBER = re.compile(r"(?:[\d\s()\[\],.;+*/eij-]*(?:nan|inf(?:inity)?))+[\d\s()\[\],.;+*/eij-]*", re.IGNORECASE)
MAX_NUMBER_CHARS = 1000  # of an answer that may be numbers alone
PROBABILITY_TOLERANCE = 1e-4  # coin_flip's own
NONSENSE = "Nobody knows."
SAME_NUMBER = 0.01  # two numbers that may be one, rounded


class EntryError(UsageError, ValueError):
    """Not an entry, or one whose data set cannot be made; the message is for the author of the data."""


def encode(name: str, settings: dict, entry: dict) -> str:
    """Return an entry's text. It keeps tuples: some scorers compare them.

    Raises:
        EntryError: it holds what JSON cannot, such as a set or a date.
    """
    try:
        return json.dumps({"name": name, "settings": _packed(settings), "entry": _packed(entry)})
    except TypeError as error:
        raise EntryError(f"an entry of {name} cannot be saved: {error}") from None


def decode(text) -> dict:
    """Return name, settings and entry of a text. Text without our marks, as other programs write it, is plain JSON.

    Raises:
        EntryError: the text is not an entry.
    """
    try:
        kept = json.loads(text, object_hook=_unpacked)
        if isinstance(kept["name"], str) and isinstance(kept["settings"], dict) and "question" in kept["entry"]:
            return kept
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    if isinstance(text, dict):
        raise EntryError("the label is a JSON object, and must be its text: json.dumps of it")
    raise EntryError(
        f"{text!r:.60} is not an entry of reasoning-gym, the JSON of "
        '{"name": "chain_sum", "settings": {…}, "entry": {"question": …, "answer": …, "metadata": {…}}}'
    )


def _packed(value):
    if isinstance(value, tuple):
        return {TUPLE: [_packed(item) for item in value]}
    if isinstance(value, list):
        return [_packed(item) for item in value]
    if not isinstance(value, dict):
        return value
    if all(isinstance(key, str) for key in value) and not value.keys() & {TUPLE, PAIRS}:
        return {key: _packed(item) for key, item in value.items()}
    return {PAIRS: [[_packed(key), _packed(item)] for key, item in value.items()]}


def _unpacked(value: dict):
    if value.keys() == {TUPLE}:
        return tuple(value[TUPLE])
    return dict(value[PAIRS]) if value.keys() == {PAIRS} else value


def oracle(entry: dict) -> str | None:
    """Return the data set's own answer, or an example of the right ones; None if it gives neither."""
    known = [entry.get("answer"), *(entry.get("metadata", {}).get(name) for name in EXAMPLES)]
    answer = next((answer for answer in known if answer is not None), None)
    return answer if answer is None or isinstance(answer, str) else json.dumps(answer)


def entry_of(label) -> dict | None:
    """Return the entry that `data gym` writes in place of an answer; None for any other label."""
    try:
        return decode(label)["entry"] if isinstance(label, str) and label.startswith("{") else None
    except EntryError:
        return None


def readable(label):
    """Return a label for people: the gold answer of an entry, any other label as it is."""
    entry = entry_of(label)
    return label if entry is None else gold(entry)


def gold(entry: dict) -> str:
    """Return the right answer as text, or ANY if there are several."""
    return ANY if entry.get("answer") is None else str(entry["answer"])


def answer_of(response: str) -> str:
    """Return the answer of a response, in training and in evaluation: the marked one, else all of it but what a model thinks
    aloud. Takes time linear in the length of the response."""
    marked = marked_answer(response)
    return spoken(response) if marked is None else marked.strip()


def marked_answer(response: str) -> str | None:
    """Return the content of the last <answer>…</answer>, of the last \\boxed{…} in that or in the response, or of its last
    "Answer:" line; None without any of these. The end of the tags may be missing, as a stop string takes it away."""
    text = spoken(response)
    head, closed, _ = text.rpartition(ANSWER_END)
    _, opened, tagged = (head if closed else text).rpartition(ANSWER)
    found = extract_answer(tagged if opened else text)
    return tagged if opened and found is None else found


def spoken(response: str) -> str:
    """Return a response without special tokens and all before </think>; nothing if thinking was cut off."""
    _, ended, rest = SPECIAL.sub("", response).rpartition(THINK_END)
    return "" if not ended and THINK in rest else rest.strip()


def score(text: str, answer: str) -> float:
    """Return reasoning-gym's score, 0 to 1, of an answer to an entry; 0 if its scorer fails on it, or gives full marks that are
    not deserved. Unbounded in time, as its scorers are.

    Raises:
        EntryError: the text is not an entry, or its data set cannot be made.
    """
    kept = decode(text)
    scorer = _scorer(kept["name"], json.dumps(_packed(kept["settings"])))
    try:
        marks = float(scorer(answer, kept["entry"]))
    except (MemoryError, RecursionError):  # pool.py knows them as the end of a process
        raise
    except Exception:  # many scorers read an answer without checking that it is one
        return 0.0
    return marks if marks < 1 or is_deserved(kept["name"], kept["entry"], answer) else 0.0


def is_deserved(name: str, entry: dict, answer: str) -> bool:
    """Check full marks: some scorers give them to one and the same answer to every task, and a policy would find it."""
    if reads_as_no_number(answer) and not reads_as_no_number(str(entry.get("answer"))):
        return False
    metadata = entry.get("metadata") or {}
    kinds_of_task = (name, metadata.get("source_dataset"))  # where a composite has it from
    if "coin_flip" in kinds_of_task:  # its scorer accepts any beginning of the number: "0" for 0.65625
        found, right = number(answer), number(str(entry.get("answer")))
        return None in (found, right) or abs(found - right) <= min(PROBABILITY_TOLERANCE, abs(right) / 2)
    if "puzzle24" in kinds_of_task:  # its scorer accepts any four numbers that make 24, such as 6 + 6 + 6 + 6
        given = metadata.get("numbers")
        return given is None or sorted(map(int, re.findall(r"\d+", answer))) == sorted(given)
    return True


def reads_as_no_number(answer: str) -> bool:
    return len(answer) <= MAX_NUMBER_CHARS and NO_NUMBER.fullmatch(answer.strip()) is not None


def number(text: str) -> float | None:
    text = text.strip().replace(",", "")
    try:
        return float(text if "e" in text.lower() else Fraction(text))  # Fraction("1e999999999") takes all memory
    except (ValueError, ZeroDivisionError, OverflowError):
        return None


def wrong_answers(right: str) -> list[str]:
    """List answers that no scorer may give full marks if `right` is right: empty ones, and those that fit every task."""
    tried = [NONSENSE, "", "nan", "inf", "0", "1", right[:1]]
    return [each for each in dict.fromkeys(tried) if not _may_be_same(each, right)]


def _may_be_same(one: str, other: str) -> bool:
    if one.casefold().strip() in (other.casefold().strip(), *other.casefold().split()[:1]):
        return True  # "7" for "7 days"
    numbers = number(one), number(other)
    return None not in numbers and math.isclose(*numbers, rel_tol=SAME_NUMBER, abs_tol=SAME_NUMBER)


@functools.lru_cache(maxsize=256)
def _scorer(name: str, settings: str):
    return create(name, json.loads(settings, object_hook=_unpacked)).score_answer


def parse_spec(spec: str) -> tuple[str, dict]:
    """Return name and settings of NAME or NAME:{"size": 100, "operators": ["+", "-"]}.

    Raises:
        EntryError: another form, an unknown name or setting, or a value that does not fit.
    """
    name, colon, text = spec.partition(":")
    config = config_of(name)
    try:
        settings = _read_settings(name, text) if colon else {}
        for key, least, most in (("size", 1, MAX_TASKS), ("seed", 0, 1 << 62)):
            given = settings.get(key, least)
            if type(given) is not int or not least <= given <= most:
                raise ValueError(f"{key} must be a whole number from {least} to {most:,}, not {json.dumps(given):.40}")
        fitting(config, settings)
    except ValueError as error:
        raise EntryError(f"{spec}: {error}") from None
    return name, settings


def _read_settings(name: str, text: str) -> dict:
    problem = f"""settings are a JSON object, as in '{name}:{{"size": 100, "seed": 1}}', not {text:.80}"""
    try:
        settings = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{problem} ({error})") from None
    if not isinstance(settings, dict):
        raise ValueError(problem)
    return settings


def _refuse_constant(constant: str):
    raise ValueError(f"{constant} is not a number of JSON")


def fitting(config: type, settings: dict) -> dict:
    """Convert settings from JSON to the types of the configuration: enumerations, dates, tuples.

    Raises:
        ValueError: no such setting, or a value that does not fit its field.
    """
    known, types = {each.name: each for each in fields(config)}, typing.get_type_hints(config)
    for name in settings.keys() - known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise ValueError(f"there is no setting {name}. {hint}{_settings_of(config)}")
    return {name: _fitted(value, known[name], types[name]) for name, value in settings.items()}


def _fitted(value, field: Field, kind: type):
    """Convert one value. Any is accepted if not even the default is of the declared type: that is reasoning-gym's mistake."""
    from pydantic import TypeAdapter, ValidationError

    reader, usual = TypeAdapter(kind), as_json(default(field))
    if value == usual and type(value) is type(usual):
        return default(field)
    try:
        return reader.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        try:
            reader.validate_json(json.dumps(usual), strict=True)
        except ValidationError:
            return value
        why = error.errors()[0]["msg"]
        raise ValueError(f"the setting {field.name}, {json.dumps(value):.80}: {why}") from None


def default(field: Field):
    """Return a field's default, as the configuration has it."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def as_json(value):
    """Convert a setting, or a dict of them, to JSON's types."""
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value)


def kinds() -> dict[str, type]:
    """Return the class of settings of each kind of task, by name.

    Raises:
        EntryError: reasoning-gym is not installed.
    """
    provide_pycosat()
    try:
        import pydantic  # noqa: F401
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise EntryError("needs `pip install reasoning-gym pydantic`") from None
    return {name: settings for name, (_, settings) in DATASETS.items()}


def config_of(name: str) -> type:
    """Return the class of a kind's settings.

    Raises:
        EntryError: reasoning-gym is not installed, or has no such data set.
    """
    try:
        known = kinds()
    except EntryError as error:
        raise EntryError(f"{name} {error}") from None
    if not name.strip():
        raise EntryError(f"{name!r} names no kind of tasks; write NAME, such as chain_sum, or NAME:{{settings}}")
    if name not in known:
        near = difflib.get_close_matches(name.strip().lower().replace("-", "_"), known, 1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise EntryError(f"{name}: no such data set. {hint}There are {', '.join(sorted(known))}")
    return known[name]


def create(name: str, settings: dict):
    """Make the data set with these settings of its configuration, given in JSON's types.

    Raises:
        EntryError: reasoning-gym is not installed, or has no such data set or setting.
    """
    config = config_of(name)
    import reasoning_gym

    try:
        return reasoning_gym.create_dataset(name, **fitting(config, settings))
    except (TypeError, ValueError, AssertionError) as error:
        known = "" if "Its settings are" in str(error) else f". {_settings_of(config)}"
        raise EntryError(f"{name}: {error}{known}") from error


def _settings_of(config: type) -> str:
    return f"Its settings are {', '.join(config.__dataclass_fields__)}"


def provide_pycosat() -> None:
    """Stand in for pycosat, before reasoning_gym is imported: that imports it for one kind of task (zebra puzzles) and uses one
    function of it. It comes as source only; python-sat, which has wheels, solves the same."""
    if "pycosat" in sys.modules or importlib.util.find_spec("pycosat"):
        return
    module = ModuleType("pycosat")
    module.itersolve = itersolve
    sys.modules["pycosat"] = module


def itersolve(clauses: Iterable[Iterable[int]]) -> Iterator[list[int]]:
    """Yield all solutions of a formula in conjunctive normal form; a solution has every variable, negative where false.

    clauses: DIMACS literals, 1 to n, -1 to -n.
    """
    from pysat.solvers import Solver

    with Solver(name="minisat22", bootstrap_with=[list(clause) for clause in clauses]) as solver:
        yield from solver.enum_models()


def warm_up() -> None:
    provide_pycosat()
    import reasoning_gym  # noqa: F401


def parse_gold(text: str) -> None:
    """Check that a scorer can be made of the entry.

    Raises:
        GoldError: it cannot.
    """
    try:
        kept = decode(text)
        _scorer(kept["name"], json.dumps(_packed(kept["settings"])))
    except EntryError as error:
        raise GoldError(str(error)) from None


grade = score
