"""Which answers of one question are the same answer, for a vote."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .metrics import NO_ANSWER


def classes(
    answers: Sequence[str | None],
    correct: Sequence[bool],
    spelled: Callable[[str], str],
    same: Callable[[str, str], bool],
) -> list[int]:
    """Equivalence classes, numbered as they come; -1 for no answer.

    All right answers are one class, since they equal the gold. A wrong one joins the class of an answer that is spelled
    the same or, of the others, the first whose first answer it equals. So classes never overlap, even where `same` is
    not transitive (tolerances, what sympy cannot simplify).

    spelled: one spelling for what differs in typing only. same: whether two wrong answers are equal; first the one that
    came first.
    """
    by_text: dict[str, int] = {}
    firsts: list[tuple[str, int]] = []  # of the wrong classes
    found, count = [], 0
    for answer, right in zip(answers, correct, strict=True):
        if answer is None:
            found.append(NO_ANSWER)
            continue
        text = "right" if right else f"wrong {spelled(answer)}"
        if text not in by_text:
            known = None if right else next((name for first, name in firsts if same(first, answer)), None)
            by_text[text] = count if known is None else known
            if known is None:
                firsts += [] if right else [(answer, count)]
                count += 1
        found.append(by_text[text])
    return found
