"""DAPO's reward for mathematics: `--reward.remote_url dapo`, the label column holds the gold answer.

It is the definition of verl's `math_dapo`, with which EBPO's authors trained, written again. Of a response without its special
tokens the last 300 characters count, and of these what follows the last "Answer:" on its line, or on the next one that is not
empty. It is right where its text equals the gold's after Minerva's normalisation (arXiv 2206.14858, appendix D.1) of both; a box
alone does not count, and nothing is computed. A right response earns 1, any other −1. Logged with the reward: `dapo_no_answer`.

`scores`, by which --algo.dynamic_filtering_enable chooses, are 1 and 0, as in verl, where DAPO filters by accuracy.
"""

from __future__ import annotations

import re

from openrlhf_ebpo.rewards.golds import gold_text
from openrlhf_ebpo.rewards.grading import SPECIAL
from openrlhf_ebpo.rewards.math import response_of

REMEDY = "Leave rows with such prompts out, or write them in characters that the tokenizer has"
READ = 300  # characters at the end of a response
ANSWER = re.compile(r"Answer\s*:\s*([^\n]+)", re.IGNORECASE)

# Minerva's normalisation: replaced one after the other, then taken out.
REPLACED = (
    *(("an ", ""), ("a ", ""), (".$", "$"), (r"\$", ""), ("\\ ", ""), (" ", ""), ("mbox", "text")),
    *((r",\text{and}", ","), (r"\text{and}", ","), (r"\text{m}", r"\text{}")),
)
_UNITS = (
    r"square ways integers dollars mph inches hours km units \ldots sue points feet minutes digits cents "
    r"degrees cm gm pounds meters meals edges students childrentickets multiples"
)
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


def reward_func(queries, prompts, labels, **_kwargs):
    """Reward responses by OpenRLHF's interface: queries are prompt + response texts. Returns rewards (N,) of −1 and 1.

    Raises:
        RewardError: a prompt cannot be found in its query. GoldError: a label is not text.
    """
    import torch  # who only reads answers (answers.py) does without

    answers = [answer_of(response_of(query, prompt, REMEDY)) for query, prompt in zip(queries, prompts, strict=True)]
    right = torch.tensor(
        [is_right(gold_text(label), each) for label, each in zip(labels, answers, strict=True)]
    ).float()
    no_answer = torch.tensor([float(each is None) for each in answers])
    return {"rewards": 2 * right - 1, "scores": right, "extra_logs": {"dapo_no_answer": no_answer}}


def answer_of(response: str) -> str | None:
    """Return the answer at the end of a response, as it is written; None without an "Answer:"."""
    found = ANSWER.findall(SPECIAL.sub("", response)[-READ:])
    return found[-1] if found else None


def normalised(answer: str) -> str:
    """Normalise an answer as Minerva does: what follows the last "=", without units, spaces and much of LaTeX."""
    answer = answer.rpartition("=")[2]
    for old, new in (*REPLACED, *((word, "") for word in (*_UNITS.split(), *MARKS))):
        answer = answer.replace(old, new)
    for pattern, left in UNWRAPPED:
        answer = re.sub(pattern, left, answer)
    answer = answer.replace("$", "")
    without_commas = answer.replace(",", "")
    return (without_commas if without_commas.isdigit() else answer).strip()


def is_right(gold: str, answer: str | None) -> bool:
    return answer is not None and normalised(answer) == normalised(gold)
