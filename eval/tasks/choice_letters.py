r"""The letter that a response gives as the answer to a multiple-choice question.

The first of these that reads something decides:

| rule | reads | of several |
| --- | --- | --- |
| `boxed` | `\boxed{C}`, `\boxed{C) 42 km}` | the last box |
| `said` | `Answer: C`, "the answer is C", "I choose C", "the correct option is C", "C is the answer" | the last |
| `on_a_line` | "option C is correct"; the first or last line `C`, `C) 42 km`; a last line that ends in "so (C)." | must agree |

In doubt there is no answer: two letters (SECOND), a list of the choices, what is denied or supposed (DENIED), what does not end
behind the letter (ENDS). Responses are long, and hostile: quantifiers are bounded, and MAX_CHARACTERS are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from openrlhf_ebpo.rewards.grading import SPECIAL, last_box

MAX_CHARACTERS = 300
SEVERAL = ""  # what is read where letters are named, but not one


def _pattern(text: str) -> re.Pattern:
    return re.compile(text, re.IGNORECASE)


WIDE = str.maketrans("：（）．。，、；＝“”„’", ':().,,,;="""\'') | {0xFF21 + i: 0x41 + i for i in range(26)}
TAG = _pattern(r"<(/?)answer>")
BOLD = re.compile(r"(?<![\w*])\*\*\(?([A-Z])[).:]{0,2}\*\*\)?(?![\w*])")
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
    r"[)\]\"'.]{0,3}\s{0,2}(?:[,;/&+]|\b(?:and|or|nor|as well as|plus)\b|[和或与及])\s{0,2}(?:(?:also|maybe|perhaps|or|and)\s){0,2}"
    rf"{NAMED}[(\[\"']{{0,2}}(?-i:([A-Z]|[IVX]{{2,4}})(?![\w'])(?!(?<=I)\s[a-z])|([a-z])\))"
    r"|[)\].:\s–—-]{1,6}[(\[]?(?-i:([A-Z]))[)\].:,]{0,3}\s{0,4}(?:\n|\Z|(?<=\)))"
)
CONDITION = _pattern(r"[)\]\"']{0,2},?\s(?:but\s)?(?:only|if|unless|when|is|was|cannot)\b")

# What says that a letter is the answer: before it, or around it.
BE = r"(?:is|was|be|ist|lautet|est|es)"
START = r"(?:\A|[\n.,;:!?>—–-])\s{0,3}"
ANSWER = r"(?:\b(?:answer|antwort|réponse|respuesta|risposta|resposta|ответ)|答案|正解|答え|回答)[\"']?"
CUES = (
    rf"{ANSWER}(?:(?:\s\w{{1,20}}){{0,6}}?\s{BE}\b|\s?[:=]|\s{{0,2}}\n|[是为為は])",  # "Answer: C", "the answer to it is C"
    rf"{ANSWER}\s(?=[(\[][A-Z][)\]]\s{{0,2}}[.\n])",  # "this gives the answer (C)."
    rf"(?:{START}|\b(?:I|we|I'll|would|will|must|should|so|therefore)\s)(?:choose|chose|pick|select|go with)(?=\s)",
    rf"\b(?:correct|right|best|my)\s(?:option|choice|one|letter)(?:(?:\s\w{{1,20}}){{0,4}}?\s{BE}\b|\s?:)(?=\s)",
    r"故[选選]",
)
CUE = _pattern("|".join(CUES))
SUBJECT = rf"(?:{START}|\b(?:so|but|thus|hence|therefore|option|choice)\s){NAMED}[(\[\"']?(?-i:([A-Z]))[)\]\"'.]{{0,2}}\s{ADVERB}(?:is|must be)\s"
IS_ANSWER = _pattern(rf"{SUBJECT}the\s(?:correct\s|right\s)?(?:answer|right one)\b")
IS_RIGHT = _pattern(rf"{SUBJECT}(?:correct|right)(?=[.;:!)\"]|\s{{0,4}}(?:\n|\Z)|,?\s(?:because|since)\b)")
CONCLUDED = _pattern(
    r"\b(?:(?:so|thus|hence|therefore|option|choice)\s(?=[(\[]?[A-Z])|(?:is|be|choice)\s(?=[(\[]))[(\[]?(?-i:([A-Z]))[)\].!]{0,3}\Z"
)
DENIED = _pattern(
    r"n't\b|\b(?:not?|never|neither|nor|cannot|unless|if|whether|suppos\w{1,4}|assum\w{1,6}|wrong|incorrect|false|eliminat\w{1,4}"
    r"|rul\w{1,3} out|exclud\w{1,4}|except|instead|rather than|might|may|could|thought|let(?!'s)|nicht|falsch|pas)\b|[不非错如❌✗]"
)
CLAUSE = _pattern(r"[.,;!?\n]|\b(?:so|but|and|hence|thus|therefore)\b")

# A line that begins with a letter: one of the choices, unless it says whether that choice is right.
ITEM = _pattern(r"[\s(\[>#•-]{0,9}(?:(?:option|choice)\s)?(?:([A-Z])[).\]:]|([a-z])\))")
JUDGED = _pattern(
    r"[)\].:]?\s(?:is|was|does|can|has|cannot|fails)\b|.*(?:\btoo \w+|wrong|incorrect|false|eliminated|ruled out|❌|✗)\W*\Z"
)


def letter(response: str, letters: str) -> str | None:
    """Return the letter that the first rule reads; None if there is none, or it is not one of these."""
    text = plain(response)
    readings = (rule(given) for rule, given in ((boxed, response), (said, text), (on_a_line, text)))
    found = next((reading for reading in readings if reading is not None), None)
    return found if found and found in letters else None


def plain(text: str) -> str:
    """Return the text without markup and a tokenizer's special tokens; full-width characters as ASCII, and a bold letter
    in brackets."""
    text = TAG.sub(lambda tag: "\n" if tag[1] else "\nAnswer: ", SPECIAL.sub("", text).translate(WIDE))
    return MARKUP.sub("", BOLD.sub(r"(\1)", text).replace(r"\quad", "  "))


def boxed(response: str) -> str | None:
    box = last_box(response) if "box" in response else None
    return _read(plain(box[:MAX_CHARACTERS]).strip()) if box else None


def said(text: str) -> str | None:
    """Return SEVERAL too where another choice is called right behind what is said last."""
    place, last = max([*_named(CUE, text), *_named(IS_ANSWER, text)], default=(0, None))
    return SEVERAL if last and any(at > place and other != last for at, other in _named(IS_RIGHT, text)) else last


def on_a_line(text: str) -> str | None:
    lines = [line[:MAX_CHARACTERS] for line in map(str.strip, text.splitlines()) if line]
    found = {named for _, named in _named(IS_RIGHT, text)}
    found |= {named for _, named in _named(CONCLUDED, text.rstrip()[-MAX_CHARACTERS:])}
    items = [_item(line) for line in lines]
    if lines:
        found |= {_line(lines[0], items[1:], []), _line(lines[-1], items[:-1], items[-2:-1])} - {None}
    return found.pop() if len(found) == 1 else None


def _read(text: str) -> str | None:
    """Return the letter at the head of a text, SEVERAL, or None."""
    head = HEAD.match(text)
    if not head:
        return None
    found, rest = head[1], text[head.end() :]
    if _is_list(found, rest) or CONDITION.match(rest):
        return None
    if (second := SECOND.match(rest)) and next(filter(None, second.groups())).upper() != found.upper():
        return SEVERAL
    return found.upper() if (ENDS_SMALL if found.islower() else ENDS).match(rest) else None


def _is_list(found: str, rest: str) -> bool:
    """Return whether the next letter follows as this one does, on its line or at the start of the next: `A) 1 B) 2`."""
    following = re.escape(chr(ord(found) + 1))
    return re.match(rf"([).:])(?:.*[^\w(\n]|.*\n\W{{0,4}}){following}\1(?:\s|\Z)", rest) is not None


def _named(form: re.Pattern, text: str) -> Iterator[tuple[int, str]]:
    """Yield where a form ends that is neither denied nor supposed, and the letter in it or, without one, behind it."""
    for match in form.finditer(text):
        rest = text[match.end() : match.end() + MAX_CHARACTERS]
        clause = CLAUSE.split(text[max(0, match.start() - MAX_CHARACTERS) : match.end()].rstrip(" \n.!)"))[-1]
        named = (None if CONDITION.match(rest) else match[1]) if form.groups else _read(rest)
        if named is not None and not DENIED.search(clause):
            yield match.end(), named


def _item(line: str) -> str | None:
    """Return the letter of a line of the list of choices."""
    item = ITEM.match(line)
    return (item[1] or item[2]).upper() if item and not JUDGED.match(line, item.end() - 1) else None


def _line(line: str, others: list[str | None], before: list[str | None]) -> str | None:
    """Return the letter that a line is, or that its choice's text follows; not one of a list of the choices, unless its own
    letter is there once more. others: the items of the other lines; before: of the one before. "A:" may be short for
    "Answer:"."""
    head = HEAD.match(line)
    if not head or line.startswith("A:") or not (found := _read(line)) or JUDGED.match(line, head.end()):
        return None
    is_item = any(others) if re.search(r"\w.*\w", line) else before == [chr(ord(found) - 1)]
    return None if is_item and found not in others else found
