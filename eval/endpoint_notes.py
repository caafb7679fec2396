"""What is out of the ordinary in a server's responses: counted with every question's record, so that it outlives the command,
and said in words when all are there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from .protocols import Protocol

FACTS = "facts"  # of a record: numbers of responses, by the names below
FILTER = "content_filter"
ONE_BY_ONE, UNCOUNTED, WITHHELD, CUT_EARLY, STOPPED = "one_by_one", "uncounted", "withheld", "cut_early", "stopped"
UNSAID = {name: f"no_{name}" for name in ("seed", "temperature", "top_p")}


def of(records: Iterable[Mapping]) -> Counter[str]:
    """The facts of all records; a record without any has no field for them."""
    total: Counter[str] = Counter()
    for record in records:
        total.update(record.get(FACTS, {}))
    return total


def notes(facts: Mapping[str, int], protocol: Protocol) -> list[tuple[str, str]]:
    """(note or warning, its words)."""
    count = Counter(facts)
    said = {
        ONE_BY_ONE: (
            "note",
            f"the server does not give n responses to one request: {count[ONE_BY_ONE]} were asked for one by one",
        ),
        UNSAID["seed"]: ("note", "the server takes no seed"),
        **{name: ("note", _unsaid(each, count[name])) for each, name in UNSAID.items() if each != "seed"},
        UNCOUNTED: (
            "note",
            f"the server did not count the tokens of {count[UNCOUNTED]} responses; their lengths are estimated from their "
            "characters",
        ),
        STOPPED: (
            "note",
            f"the server did not end {count[STOPPED]} responses at --stop; they are cut there, and their lengths are those of "
            "all that it wrote",
        ),
        WITHHELD: ("warning", f"the server withheld {count[WITHHELD]} responses ({FILTER}); they count as they came"),
        CUT_EARLY: (
            "warning",
            f"the server cut {count[CUT_EARLY]} responses before --max_new_tokens {protocol.max_new_tokens}: it has a limit "
            "of its own",
        ),
    }
    return [each for name, each in said.items() if count[name]]


def _unsaid(name: str, count: int) -> str:
    return f"the server takes no {name}: {count} responses were asked for without, which in the API means 1, as the protocol has it"
