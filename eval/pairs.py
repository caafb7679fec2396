"""Rows with the columns `gold` and `response`: what is to be compared, by which rules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from openrlhf_ebpo.rewards.grading import GoldError

from .tasks import BENCHMARKS, MATH, REASONING_GYM, Rules
from .tasks.benchmarks import olympiad_rules
from .tasks.gold import gold_text, integer_text

RULES = {field.name: field for field in fields(Rules)}


@dataclass(frozen=True)
class Pair:
    gold: str
    rules: Rules
    response: str


def read_pair(row: Mapping, task: str | None) -> Pair:
    """task: the benchmark that the golds are from: integers only for AIME and AMC, OlympiadBench's columns for scoring.
    A row's own `rules` win over its task's.

    Raises:
        GoldError: there is no gold answer. ValueError: another mistake in the row; in words.
    """
    value = row.get("gold")
    try:
        gold = gold_text(value)
        if task and BENCHMARKS[task].integer:
            gold = integer_text(gold)
    except ValueError as error:
        raise GoldError(str(error)) from None
    return Pair(gold, _rules(row, value, gold, task), _text(row.get("response")))


def rules_text(rules: Rules) -> str:
    """The rules that say more than their defaults, as JSON."""
    return json.dumps({name: value for name, value in asdict(rules).items() if value != RULES[name].default})


def _rules(row: Mapping, value, gold: str, task: str | None) -> Rules:
    first = str(value[0] if isinstance(value, (list, tuple)) else value)
    source_gold = first if first != gold else ""
    if row.get("rules"):
        return _checked(row["rules"])
    if task == "olympiadbench":
        return olympiad_rules(dict(row), value, source_gold)
    return Rules(is_multiple_answer=isinstance(value, (list, tuple)) and len(value) > 1, source_gold=source_gold)


def _checked(value) -> Rules:
    """Raises:
    ValueError: no rules; says which field is wrong.
    """
    try:
        given = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise ValueError(f"its rules are no JSON object: {str(value)[:60]!r}")
    given = {name: each for name, each in given.items() if each is not None}
    for name, each in given.items():
        if name not in RULES:
            raise ValueError(f"its rules have {name!r}; there are {', '.join(RULES)}")
        wanted = (int, float) if name == "tolerance" else type(RULES[name].default)
        if not isinstance(each, wanted) or (isinstance(each, bool) and wanted is not bool):
            raise ValueError(f"its rule {name} cannot be {each!r:.60}")
    if given.get("kind", MATH) not in (MATH, REASONING_GYM):
        raise ValueError(f"its rule kind cannot be {given['kind']!r:.60}; there are {MATH} and {REASONING_GYM}")
    return Rules(**given)


def _text(response) -> str:
    if response is None:
        return ""
    if not isinstance(response, str):
        raise ValueError(f"its response is no text but {type(response).__name__}: {str(response)[:60]}")
    return response
