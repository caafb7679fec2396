r"""Scoring as in the authors' released script; kept apart, since this grader is not recommended.

Source: github.com/Tonyzhou98/verl, recipe/ebpo/ebpo_eval.py. It looks at the last 300 characters alone and takes what
follows "Answer:", the second-to-last one where there are several. Answer and gold are spelled alike by the rules of
Minerva (Lewkowycz et al. 2022, appendix D.1) and compared as text: \frac{1}{2} is not 0.5. Of several gold
answers to a question, it knows the first.
"""

from __future__ import annotations

import re

from openrlhf_ebpo.rewards import dapo
from openrlhf_ebpo.rewards.grading import SPECIAL

TAIL = 300  # characters
ANSWER = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)


def extract(response: str) -> str | None:
    """Return the answer that the script reads; None where the end of the response has no "Answer:"."""
    found = ANSWER.findall(SPECIAL.sub("", response).strip()[-TAIL:])
    return found[max(len(found) - 2, 0)] if found else None


def is_equal(gold: str, answer: str) -> bool:
    """Compare as the script does. gold: Rules.source_gold or, where that is empty, the question's gold."""
    return spelled(answer) == spelled(gold)


def spelled(answer: str) -> str:
    """Return one spelling for answers that differ in typing, units and words."""
    return dapo.normalised(answer.rpartition("=")[2].removesuffix(".0"))
