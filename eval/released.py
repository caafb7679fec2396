r"""Scoring as in the authors' released script; kept apart, since this grader is not recommended.

Source: github.com/Tonyzhou98/verl, recipe/ebpo/ebpo_eval.py. It looks at the last 300 characters alone and takes what
follows "Answer:", the second-to-last one where there are several. Answer and gold are spelled alike by the rules of
Minerva (Lewkowycz et al. 2022, appendix D.1) and compared as text: \frac{1}{2} is not 0.5. Of several gold
answers to a question, it knows the first.
"""

from __future__ import annotations

import re

from openrlhf_ebpo.rewards.grading import SPECIAL

TAIL = 300  # characters
ANSWER = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)

REPLACED = {
    **{"an ": "", "a ": "", ".$": "$", r"\$": "", r"\ ": "", " ": ""},
    **{"mbox": "text", r",\text{and}": ",", r"\text{and}": ",", r"\text{m}": r"\text{}"},
}
REMOVED = (
    *("square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", r"\ldots", "sue", "points"),
    *("feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students"),
    *("childrentickets", "multiples", r"\text{s}", r"\text{.}", "\\text{\ns}", r"\text{}^2", r"\text{}^3"),
    *("\\text{\n}", r"\text{}", r"\mathrm{th}", r"^\circ", r"^{\circ}", r"\;", r",\!", "{,}", '"', r"\dots"),
)
UNWRAPPED = (
    (r".*?\$(.*?)\$.*", r"$\1$"),  # of text with a formula, the formula
    *((rf"\\{command}\{{(.*?)\}}", r"\1") for command in ("text", "textbf", "overline")),
    (r"\\boxed\{(.*)\}", r"\1"),
    (r"frac([^{])(.)", r"frac{\1}{\2}"),
    (r"sqrt([^{])", r"sqrt{\1}"),
)


def extract(response: str) -> str | None:
    """Return the answer that the script reads; None where the end of the response has no "Answer:"."""
    found = ANSWER.findall(SPECIAL.sub("", response).strip()[-TAIL:])
    return found[max(len(found) - 2, 0)] if found else None


def is_equal(gold: str, answer: str) -> bool:
    """Compare as the script does. gold: Rules.source_gold or, where that is empty, the question's gold."""
    return spelled(answer) == spelled(gold)


def spelled(answer: str) -> str:
    """Return one spelling for answers that differ in typing, units and words."""
    text = answer.rpartition("=")[2].removesuffix(".0")
    for old, new in REPLACED.items():
        text = text.replace(old, new)
    for word in REMOVED:
        text = text.replace(word, "")
    for pattern, new in UNWRAPPED:
        text = re.sub(pattern, new, text)
    text = text.replace("$", "")
    digits = text.replace(",", "")
    return (digits if digits.isdigit() else text).strip()
