r"""The letter that a response gives as the answer to a multiple-choice question.

The first of these rules that reads something decides:

| rule | reads | of several |
| --- | --- | --- |
| `boxed` | `\boxed{C}`, `\boxed{C) 42 km}` | the last box |
| `stated` | `Answer: C`, "the answer is C", "I choose C", "option C is correct", a text that ends in "so (C)." | the last |
| `on_a_line` | the first or last line `C`, `C) 42 km`, unless it is one of a list of the choices | must agree |

In doubt there is no answer: two letters (SECOND), a list of the choices, what is denied or supposed (DENIED), what does not end
behind the letter (ENDS). Responses are long, and hostile: quantifiers are bounded, and MAX_CHARACTERS are looked at.
"""

from __future__ import annotations

import re
from collections import Counter

from openrlhf_ebpo.rewards.grading import SPECIAL, last_box

MAX_CHARACTERS = 300
SEVERAL = ""  # what is read where letters are named, but not one


def _pattern(text: str) -> re.Pattern:
    return re.compile(text, re.IGNORECASE)


WIDE = str.maketrans("：（）．。，、；“”„’", ':().,,,;"""\'')
TAG = _pattern(r"<(/?)answer>")
MARKUP = re.compile(
    r"\\(?:text|math|operator)[a-z]{0,8}|\\(?:bf|rm|mbox|boldsymbol)(?![a-z])|\\[(),!\[\]]|[$*_`{}\\✅✔]"
)

# A letter, and what may stand before and behind it.
ADVERB = r"(?:(?:therefore|thus|hence|clearly|indeed|definitely|most likely),?\s)?"
NAMED = r"(?:the\s)?(?:(?:correct|right|best|final)\s)?(?:(?:option|choice|letter|answer):?\s?){0,2}"
HEAD = _pattern(rf"[\s:=]{{0,4}}{ADVERB}{NAMED}[(\[\"']{{0,2}}([A-Z])(?!\w)")
ALONE = r"[)\].,;!\"']{0,4}\s{0,4}(?:\n|\Z)"
ENDS = re.compile(rf"{ALONE}|[)\]:]|[.,](?!\d)|[;!\"]|\s\(|\s{{2}}|\s[–—-]\s|\s(?:because|since|with|for|not)\b")
ENDS_SMALL = re.compile(rf"\)|{ALONE}")
SECOND = _pattern(
    r"[)\]\"'.]{0,3}\s{0,2}(?:[,;/&+]|\b(?:and|or|nor|as well as|plus)\b)\s{0,2}(?:(?:also|maybe|perhaps|or|and)\s){0,2}"
    rf"{NAMED}[(\[\"']{{0,2}}(?-i:([A-Z]|[IVX]{{2,4}})(?![\w'])(?!(?<=I)\s[a-z])|([a-z])\))"
    r"|[)\].:\s–—-]{1,6}[(\[]?(?-i:([A-Z]))[)\].:,]{0,3}\s{0,4}(?:\n|\Z|(?<=\)))"
)
CONDITION = _pattern(r"[)\]\"']{0,2},?\s(?:but\s)?(?:only|if|unless|when|is|was|cannot)\b")

# What says that a letter is the answer, before it or behind it.
BE = r"(?:is|was|be|ist|lautet|est)"
START = r"(?:\A|[\n.,;:!?>—–-])\s{0,3}"
ANSWER = r"(?:\b(?:answer|antwort|réponse|respuesta)|答案)[\"']?"
CUE = _pattern(
    rf"{ANSWER}(?:(?:\s\w{{1,20}}){{0,6}}?\s{BE}\b|\s?[:=]|\s{{0,2}}\n|[是为])"  # "Answer: C", "the answer to it is C"
    rf"|{ANSWER}\s(?=[(\[][A-Z][)\]]\s{{0,2}}[.\n])"  # "this gives the answer (C)."
    rf"|(?:{START}|\b(?:I|we|I'll|would|will|must|should|so|therefore)\s)(?:choose|chose|pick|select|go with)(?=\s)"
    rf"|\b(?:correct|right|best|my)\s(?:option|choice|one|letter)(?:(?:\s\w{{1,20}}){{0,4}}?\s{BE}\b|\s?:)(?=\s)"
    r"|故选"
    r"|\b(?:so|thus|hence|therefore|option|choice|is|be)\s(?=[(\[]?[A-Z][)\].!]{0,3}\s*\Z)"  # the end: "so (C)."
)
VERDICT = _pattern(
    rf"(?:{START}|\b(?:so|but|thus|hence|therefore|option|choice)\s){NAMED}[(\[\"']?(?-i:([A-Z]))[)\]\"'.]{{0,2}}\s{ADVERB}"
    r"(?:is|must be)\s(?:the\s(?:(?:correct|right)\s)?(?:answer|one)\b|(?:correct|right)(?=[.;:!)\"]|\s{0,4}(?:\n|\Z)|,?\s(?:because|since)\b))"
)
DENIED = _pattern(
    r"n't\b|\b(?:not?|never|neither|nor|cannot|unless|if|whether|suppos\w{1,4}|assum\w{1,6}|wrong|incorrect|false|eliminat\w{1,4}"
    r"|rul\w{1,3} out|exclud\w{1,4}|except|instead|rather than|might|may|could|thought|let(?!'s))\b|[不非错]"
)
CLAUSE = _pattern(r"[.,;!?\n]|\b(?:so|but|and|hence|thus|therefore)\b")
ITEM = _pattern(r"[\s(\[>#•-]{0,9}(?:(?:option|choice)\s)?(?:([A-Z])(?:[).\]:]|\Z)|([a-z])\))")  # one of the choices
WRONG = _pattern(r".*(?:\b(?:wrong|incorrect|false|eliminated|ruled out)\W*|[❌✗]\W*)\Z")


def letter(response: str, letters: str) -> str | None:
    """Return the letter that the first rule reads; None if there is none, or it is not one of these."""
    text = plain(response)
    readings = (rule(given) for rule, given in ((boxed, response), (stated, text), (on_a_line, text)))
    found = next((reading for reading in readings if reading is not None), None)
    return found if found and found in letters else None


def plain(text: str) -> str:
    """Return the text without markup and a tokenizer's special tokens, with full-width signs as ASCII."""
    text = TAG.sub(lambda tag: "\n" if tag[1] else "\nAnswer: ", SPECIAL.sub("", text).translate(WIDE))
    return MARKUP.sub("", text.replace(r"\quad", "  "))


def boxed(response: str) -> str | None:
    box = last_box(response) if "box" in response else None
    return _read(plain(box[:MAX_CHARACTERS]).strip()) if box else None


def stated(text: str) -> str | None:
    found = {}
    for form in (CUE, VERDICT):
        for match in form.finditer(text):
            rest = text[match.end() : match.end() + MAX_CHARACTERS]
            clause = CLAUSE.split(text[max(0, match.start() - MAX_CHARACTERS) : match.end()].rstrip(" \n.!)"))[-1]
            named = _read(rest) if form is CUE else None if CONDITION.match(rest) else match[1]
            if named is not None and not DENIED.search(clause):
                found[match.end()] = named
    return found[max(found)] if found else None


def on_a_line(text: str) -> str | None:
    lines = [line[:MAX_CHARACTERS] for line in map(str.strip, text.splitlines()) if line]
    items = Counter((item[1] or item[2]).upper() for item in map(ITEM.match, lines) if item)
    listed = {each for each, count in items.items() if count == 1 < len(items)}
    ends = (line for line in (*lines[:1], *lines[-1:]) if not line.startswith("A:") and not WRONG.match(line))
    found = set(map(_read, ends)) - {None} - listed
    return found.pop() if len(found) == 1 else None


def _read(text: str) -> str | None:
    """Return the letter at the head of a text, SEVERAL, or None."""
    head = HEAD.match(text)
    if not head:
        return None
    found, rest = head[1], text[head.end() :]
    following = re.escape(chr(ord(found) + 1))
    is_list = re.match(rf"([).:])(?:.*[^\w(\n]|.*\n\W{{0,4}}){following}\1(?:\s|\Z)", rest)  # A) 1 B) 2
    if is_list or CONDITION.match(rest):
        return None
    if (second := SECOND.match(rest)) and next(filter(None, second.groups())).upper() != found.upper():
        return SEVERAL
    return found.upper() if (ENDS_SMALL if found.islower() else ENDS).match(rest) else None
