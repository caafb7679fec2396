"""The answer of a response and whether it is right, as verl's `math_dapo` defines both: for the reward `dapo` (dapo.py)."""

from __future__ import annotations

import re

from openrlhf_ebpo.rewards.grading import SPECIAL

READ = 300  # characters at the end of a response
ANSWER = re.compile(r"Answer\s*:\s*([^\n]+)", re.IGNORECASE)

# Minerva's normalisation: replaced one after the other, then taken out.
REPLACED = (
    *(("an ", ""), ("a ", ""), (".$", "$"), (r"\$", ""), ("\\ ", ""), (" ", ""), ("mbox", "text")),
    *((r",\text{and}", ","), (r"\text{and}", ","), (r"\text{m}", r"\text{}")),
)
UNITS = [
    "square",
    "ways",
    "integers",
    "dollars",
    "mph",
    "inches",
    "hours",
    "km",
    "units",
    "\\ldots",
    "sue",
    "points",
    "feet",
    "minutes",
    "digits",
    "cents",
    "degrees",
    "cm",
    "gm",
    "pounds",
    "meters",
    "meals",
    "edges",
    "students",
    "childrentickets",
    "multiples",
]
MARKS = (
    *(r"\text{s}", r"\text{.}", "\\text{\ns}", r"\text{}^2", r"\text{}^3", "\\text{\n}", r"\text{}", r"\mathrm{th}"),
    *(r"^\circ", r"^{\circ}", r"\;", r",\!", "{,}", '"', r"\dots"),
)
UNWRAPPED = (  # pattern, what is left of it
    (r".*?\$(.*?)\$.*", r"$\1$"),
    *((rf"\\{command}\{{(.*?)\}}", r"\1") for command in ("text", "textbf", "overline")),
    (r"\\boxed\{(.*)\}", r"\1"),
    (r"frac([^{])(.)", r"frac{\1}{\2}"),  # \frac12 is \frac{1}{2}
    (r"sqrt([^{])", r"sqrt{\1}"),
)


def answer_of(response: str) -> str | None:
    """What the end of a response gives as its answer, as it is written; None where it has no "Answer:"."""
    found = ANSWER.findall(SPECIAL.sub("", response)[-READ:])
    return found[-1] if found else None


def normalised(answer: str) -> str:
    """Minerva's normalisation: what follows the last "=", without units, spaces and much of LaTeX."""
    answer = answer.rpartition("=")[2]
    for old, new in (*REPLACED, *((word, "") for word in (*UNITS, *MARKS))):
        answer = answer.replace(old, new)
    for pattern, left in UNWRAPPED:
        answer = re.sub(pattern, left, answer)
    answer = answer.replace("$", "")
    without_commas = answer.replace(",", "")
    return (without_commas if without_commas.isdigit() else answer).strip()


def is_right(gold: str, answer: str | None) -> bool:
    return answer is not None and normalised(answer) == normalised(gold)
