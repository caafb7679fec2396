"""Recognise the same question and the same answer in two rows, and render the prompt of a question. Pure functions."""

from __future__ import annotations

import functools
import hashlib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from fractions import Fraction

from openrlhf_ebpo.errors import UsageError

QUESTION = "{question}"  # its place in a template
WHOLE_CHATS = ("own", "chat")  # templates that show all of a chat
# The instruction of DAPO-Math-17K, word for word as in the data set.
DAPO_TEMPLATE = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n{question}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)

# Its variants too: other white space or case, a boxed answer, simple-evals' ending; either half may be missing.
_BEFORE = re.compile(
    r"\s*Solve the following math problem step by step\.\s+The last line of your response should be of the form\b"
    r".{1,80}?\bwhere \$Answer is the answer to the problem\.\s*",
    re.IGNORECASE | re.DOTALL,
)
_AFTER = re.compile(
    r'\s*Remember to put your answer on its own line after "Answer:"(?:, and you do not need to use a \\boxed command)?'
    r"\.?\s*\Z",
    re.IGNORECASE,
)

_MAX_AFTER_CHARS = 200  # characters, to search the end only

_LAYOUT = re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\[!,;:]|(?<!\d)\s+|\s+(?!\d)")  # "1 1/2" is not 11/2
_WRAPPED = re.compile(r"\$(.*)\$|\\\((.*)\\\)|\\boxed\{(.*)\}|\\text\{([^{}]*)\}", re.DOTALL)
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
_FRACTION = re.compile(r"([+-]?)\\[dt]?frac(?:\{([+-]?\d+)\}\{(\d+)\}|(\d)(\d))")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:/\d+)?|\d*\.\d+|\d+\.)")
_MAX_NUMBER_CHARS = 100  # characters; longer ones are compared as text


def bare_question(prompt: str) -> str:
    """Return the prompt without DAPO's instruction, before or after the question; others as they are,
    without the white space around them."""
    before = _BEFORE.match(prompt)
    text = prompt[before.end() if before else 0 :].strip()
    after = _AFTER.search(text, max(0, len(text) - _MAX_AFTER_CHARS))
    return text[: after.start()].rstrip() if after else text


def question_id(question: str) -> str:
    """Return 16 hex digits of the SHA-256 of the question in Unicode's form NFC with every run of white space as one
    space. Two of 1.8 million different questions share an id with probability 1e-7."""
    normalised = " ".join(unicodedata.normalize("NFC", question).split())
    return hashlib.sha256(normalised.encode(errors="surrogatepass")).hexdigest()[:16]


@functools.lru_cache(1 << 16)
def answer_key(answer: str) -> str:
    r"""Return the key that answers are compared by: equal for 34, 34.0, $34$, \boxed{34} and 1,234 = 1234, 0.5 = 1/2 =
    \frac{1}{2}.

    A cheap comparison of spellings, no algebra: layout and wrapping are taken off, and numbers (integers, decimals,
    fractions) become reduced fractions. \sqrt{8} and 2\sqrt{2} stay two answers.
    """
    text = _LAYOUT.sub("", answer).rstrip(".") or answer.strip()
    while match := _WRAPPED.fullmatch(text):
        text = next(group for group in match.groups() if group is not None)
    if len(text) > _MAX_NUMBER_CHARS:
        return text
    number = text.replace(",", "") if _THOUSANDS.fullmatch(text) else text
    if match := _FRACTION.fullmatch(number):
        sign, top, bottom, top_digit, bottom_digit = match.groups()
        number = f"{sign}{top or top_digit}/{bottom or bottom_digit}"
    try:
        return str(Fraction(number)) if _NUMBER.fullmatch(number) else text
    except ZeroDivisionError:
        return text


def format_prompt(
    messages: Sequence[Mapping], question: str, template: str, system: str | None, named: Mapping[str, str]
) -> str | list[Mapping]:
    """Return the prompt: chat messages for the templates own and chat, text for others. (No str.format: mathematics is
    full of braces.)

    messages: the prompt as its source has it, the user's last. system: a message before them. named: templates that
    have a name.
    """
    if template not in WHOLE_CHATS:
        return named.get(template, template).replace(QUESTION, question)
    return [*([{"role": "system", "content": system}] if system else []), *messages]


def check_template(template: str, names: Sequence[str], system: str | None = None) -> None:
    """Check --template, of which some have names, and --system, before anything is read.

    Raises:
        UsageError: an unknown template, or a system message that nothing would show.
    """
    if template not in names and QUESTION not in template:
        raise UsageError(f"--template {template!r}: write {', '.join(names)}, or a text with {QUESTION} in it")
    if system is not None and template != "chat":
        raise UsageError(f"--system goes with --template chat, not with {template!r}")
