"""Rows with the columns `gold` and `response`: what is compared, and by which rules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from string import ascii_uppercase

from openrlhf_ebpo.rewards.grading import GoldError

from .tasks import CHOICE, OWN, Benchmark, Rules, own

RULES = tuple(field.name for field in fields(Rules))
PLAIN = Benchmark("rows")  # of no benchmark: golds as they are, a list is several answers


@dataclass(frozen=True)
class Pair:
    gold: str
    rules: Rules
    response: str


def read_pair(row: Mapping, benchmark: Benchmark = PLAIN, named: str = "") -> Pair:
    """Return what a row asks to compare. benchmark: which the golds are from, and whose rules hold. A row's own `rules` win
    over them, but for who scores: that is `named`, what --task calls the benchmark.

    Raises:
        GoldError: there is no gold answer. ValueError: another mistake in the row; in words.
    """
    value = row.get("gold")
    try:
        gold = benchmark.gold_of(value) if benchmark.answer else ""
    except ValueError as error:
        raise GoldError(str(error)) from None
    given = _checked(row["rules"]) if row.get("rules") else None
    if benchmark.score:
        rules = own.scored_rules(benchmark, named, row)
        rules = replace(rules, entry=given.entry) if given and given.kind == OWN else rules
    elif benchmark.choices:  # how many there are, only the rules say
        rules = given or Rules(CHOICE, entry=ascii_uppercase)
    else:
        rules = given or benchmark.rules_of(row, value, gold)
    if rules.kind == OWN and not benchmark.score:  # what a file names is not imported
        raise ValueError(f"it is scored by {rules.scorer.partition('@')[0] or 'a scorer'!r:.80}: name that with --task")
    return Pair(gold, rules, _text(row.get("response")))


def rules_text(rules: Rules) -> str:
    """Return the rules that say more than their defaults, as JSON."""
    return json.dumps({name: value for name, value in asdict(rules).items() if value != getattr(Rules, name)})


def _checked(value) -> Rules:
    """Parse a row's own `rules`, an object or its JSON text.

    Raises:
        ValueError: these are no rules; says which field is wrong.
    """
    try:
        given = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise ValueError(f"its rules are not a JSON object: {str(value)[:60]!r}")
    given = {name: each for name, each in given.items() if each is not None}
    for name in given:
        if name not in RULES:
            raise ValueError(f"its rules have {name!r}; there are {', '.join(RULES)}")
    return Rules(**given)


def _text(response) -> str:
    if response is None:
        return ""
    if not isinstance(response, str):
        raise ValueError(f"its response is not text but {type(response).__name__}: {str(response)[:60]}")
    return response
