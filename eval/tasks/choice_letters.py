r"""The letter that a response gives as the answer to a multiple-choice question.

The first rule that reads something decides:

| rule | what it reads | of several |
| --- | --- | --- |
| box | `\boxed{C}`, `\boxed{C) 42 km}` | the last box |
| said to be the answer | `Answer: C`, "the answer is C", "I choose C", "the correct option is C", "C is the answer" | the last |
| called right, or on a line | "C is correct"; the first or last line `C`, `C) 42 km`; a last line with "so it is (C)" at its end | must agree |

A letter is looked at with what follows it (`_read`): two letters are no answer, a list of the choices and a condition say nothing.
A sentence that denies or supposes (DENIED) says nothing. Where in doubt, there is no answer.

Responses are long, and hostile: quantifiers are bounded, and only LONGEST characters behind a place are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from openrlhf_ebpo.rewards.grading import SPECIAL, last_box

LONGEST = 300
SEVERAL = ""  # what is read where letters are named, but not one

# Spelling

WIDE = str.maketrans(
    {
        **dict(zip("：（）［］。，、；＝“”„«»‘’", ':()[].,,;="""""\'\'', strict=True)),
        **dict.fromkeys("✅✔✓☑🎉👍🎯\ufe0f"),
    }
    | {chr(0xFF21 + i): chr(0x41 + i) for i in range(26)}
)
TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
BOLD = re.compile(r"(?<![\w*])\*\*\(?([A-Z])[).:]{0,2}\*\*\)?(?![\w*])")
GAP = re.compile(r"\\(?:q?quad(?![a-z])|[;: ])")
MARKUP = re.compile(
    r"\\(?:text|math|operator)[a-z]{0,8}|\\(?:bf|rm|it|sf|tt|bm|boldsymbol|mbox|large|Large)(?![a-z])|\\[(),!\[\]]|[$*_`{}\\]"
)


def plain(text: str) -> str:
    """Without markup and a tokenizer's special tokens; full-width characters as ASCII, and a bold letter in brackets."""
    text = SPECIAL.sub("", text).translate(WIDE)
    text = TAG.sub(lambda tag: "\n" if tag[1] else "\nAnswer: ", text)
    return MARKUP.sub("", GAP.sub("  ", BOLD.sub(r"(\1)", text)))


# What stands around a letter

ADVERB = (
    r"(?:(?:therefore|thus|hence|clearly|indeed|simply|still|definitely|obviously|probably|most likely|actually),?\s)?"
)
NAMED = r"(?:the\s)?(?:(?:correct|right|best|final)\s)?(?:(?:option|choice|letter|answer):?\s?){0,2}"
HEAD = re.compile(rf"[\s:=]{{0,4}}{ADVERB}{NAMED}[(\[\"']{{0,2}}([A-Z])(?!\w)", re.IGNORECASE)
BEHIND = r"[)\]:]|\.(?!\d)|\s\(|\s{2}|\s?[–—-]\s|,?\s(?:because|since|as|which)\b"
BEFORE_TEXT = re.compile(rf"[)\].:,;!\"']{{0,4}}\s*\Z|{BEHIND}", re.IGNORECASE)
IN_SENTENCE = re.compile(
    rf"{BEHIND}|,(?!\d)|[;!\"]|'(?![a-z])|\s{{0,4}}(?:\n|\Z)|\s(?:with|for|not|rather than)\b", re.IGNORECASE
)
SMALL = re.compile(r"[).\]!\"']{0,3}\s{0,4}(?:\n|\Z)")
AND = r"(?:[,;/&+]|\b(?:and|or|nor|as well as|along with|together with|plus|und|oder|et|ou|y)\b|[和或与及])"
SECOND = re.compile(
    rf"[)\]\"'.]{{0,3}}\s{{0,2}}(?:{AND}\s{{0,2}}){{1,3}}(?:(?:also|maybe|perhaps|possibly|even|probably)\s)?{NAMED}[(\[\"']{{0,2}}"
    r"(?-i:([A-Z]|[IVX]{2,4})(?![\w'])(?!(?<=I)\s[a-z])|([a-z])\))"
    r"|[)\]]\s{0,2}[(\[]([A-Z])[)\]]"
    r"|[)\].:\s–—-]{1,5}[(\[]?(?-i:([A-Z]))[)\].:,]{0,4}\s{0,4}(?:\n|\Z)",
    re.IGNORECASE,
)
CONDITION = re.compile(
    r"[)\]\"']{0,2},?\s(?:(?:but\s)?only|if|unless|when|provided|(?:which\s)?(?:is|was|cannot)\s(?:be\s)?(?:not|wrong|incorrect|false))\b",
    re.IGNORECASE,
)


def _read(text: str, ends: re.Pattern, small: bool) -> str | None:
    """The letter at the head of a text, SEVERAL, or None.

    ends: what may follow it. small: a small letter may be alone; before its choice's text, it needs a bracket.
    """
    head = HEAD.match(text)
    if not head:
        return None
    letter, rest = head[1], text[head.end() :]
    if _is_list(letter, rest) or CONDITION.match(rest):
        return None
    if (second := SECOND.match(rest)) and next(filter(None, second.groups())).upper() != letter.upper():
        return SEVERAL
    if letter.islower() and not (rest.startswith(")") or (small and SMALL.match(rest))):
        return None
    return letter.upper() if ends.match(rest) else None


def _is_list(letter: str, rest: str) -> bool:
    """Whether the next letter follows as this one does, on its line or the next: `A) 1 B) 2`."""
    if rest[:1] not in tuple(").:"):
        return False
    following = re.escape(chr(ord(letter) + 1)) + re.escape(rest[0])
    lines = [line for line in rest.splitlines() if line.strip()]
    return bool(re.search(rf"(?:\n\W{{0,4}}|[^\w(]){following}(?:\s|\Z)", "\n".join(lines[:2])))


# Sentences

DENIED = re.compile(
    r"n't\b|\b(?:not?|never|neither|nor|cannot|unless|if|whether|suppos\w{1,4}|assum\w{1,6}|wrong(?:ly)?|incorrect|false|eliminat\w{1,4}"
    r"|rul\w{1,3} out|exclud\w{1,4}|reject\w{0,4}|discard\w{0,4}|except|instead|rather than|might|may|could|thought|mistake\w{0,2}"
    r"|tempting|let(?!'s)|nicht|falsch|pas|incorrect[ao])\b|[不非错若]|如果|假设|[❌✗✘]",
    re.IGNORECASE,
)
CLAUSE = re.compile(r"[.,;!?\n]|\b(?:so|but|and|hence|thus|therefore)\b", re.IGNORECASE)
BE = r"(?:is|was|be|ist|lautet|est|es)"
START = r"(?:\A|[\n.,;:!?>—–-])\s{0,3}"
ANSWER = re.compile(
    r"(?:\b(?:answer|antwort|réponse|respuesta|risposta|resposta|ответ)|答案|正解|答え|回答)[\"']?"
    rf"(?:(?:\s\w{{1,20}}){{0,6}}?\s{BE}\b|(\s?[:=])|\s[–—-]\s|\s{{0,2}}\n|\s(?=[(\[][A-Z][)\]]\s{{0,2}}(?:[.\n]|\Z))|[是为為は])",
    re.IGNORECASE,
)
CHOSEN = re.compile(
    rf"(?:{START}|\b(?:I|we|I'd|I'll|we'll|would|will|must|should|let's|so|thus|hence|therefore)\s)"
    r"(?:choose|chose|pick|select|go with|opt for)(\s?:)?(?=\s)|(?:[故应應]|所以)[选選]择?()",
    re.IGNORECASE,
)
RIGHT = re.compile(
    rf"\b(?:correct|right|best|final|my)\s(?:option|choice|one|letter|pick)(?:(?:\s\w{{1,20}}){{0,4}}?\s{BE}\b)?(\s?:)?(?=\s)",
    re.IGNORECASE,
)
SUBJECT = (
    rf"(?:{START}|\b(?:so|but|thus|hence|therefore|only|conclude that|option|choice|answer|letter)\s){NAMED}[(\[\"']?(?-i:([A-Z]))[)\]\"'.]{{0,2}}"
    rf"\s{ADVERB}(?:is|was|must be|has to be|should be)\s{ADVERB}"
)
IS_ANSWER = re.compile(
    rf"{SUBJECT}the\s(?:final\s)?(?:(?:correct|right|best)\s(?:answer|option|choice|one|letter)|answer)\b",
    re.IGNORECASE,
)
IS_RIGHT = re.compile(
    rf"{SUBJECT}(?:the\s)?(?:correct|right|best)(?=[.;:!)\"]|\s{{0,4}}(?:\n|\Z)|,?\s(?:because|since|as it)\b|,(?!\s(?:but|and|so is|too)\b))",
    re.IGNORECASE,
)


def _denied(text: str, match: re.Match) -> bool:
    """Whether the clause that a match ends in denies it, or only supposes it."""
    sentence = text[max(0, match.start() - LONGEST) : match.end()].rstrip(" \n.!)")
    return bool(DENIED.search(CLAUSE.split(sentence)[-1]))


def _said(text: str) -> Iterator[tuple[int, str]]:
    """Where a letter, or SEVERAL, is said to be the answer."""
    for form in (ANSWER, CHOSEN, RIGHT):
        for match in form.finditer(text):
            found = _read(text[match.end() : match.end() + LONGEST], IN_SENTENCE, small=match[1] is not None)
            if found is not None and not _denied(text, match):
                yield match.end(), found
    yield from _called(IS_ANSWER, text)


def _called(form: re.Pattern, text: str) -> Iterator[tuple[int, str]]:
    """Where a letter is called the answer, or right, behind it."""
    for match in form.finditer(text):
        if not _denied(text, match) and not CONDITION.match(text, match.end()):
            yield match.end(), match[1]


# Lines

ITEM = re.compile(rf"[\s(\[>#•-]{{0,9}}{NAMED}(?-i:([A-Z])[).\]:]|([a-z])\))", re.IGNORECASE)
ALONE = re.compile(rf"{NAMED}[(\[\"']{{0,2}}[A-Z][)\].:,;!\"']{{0,4}}", re.IGNORECASE)
JUDGED = re.compile(
    r"[)\].:]?\s(?:(?:is|was|does|can|has|would)(?:\snot|n't|\swrong|\sincorrect|\sfalse)|cannot|fails)\b"
    r"|.*(?:\bis too\b|(?:\b(?:wrong|incorrect|false|eliminated|ruled out|excluded)|[❌✗✘])\W*\Z)",
    re.IGNORECASE | re.DOTALL,
)
CONCLUDED = re.compile(
    rf"\b(?:so|thus|hence|therefore),?\s{NAMED}[(\[\"']?(?-i:([A-Z]))[)\].!\"']{{0,4}}\s{{0,4}}\Z"
    r"|(?:\b(?:so|thus|hence|therefore|is|be|are|choose|pick|select|get|gives?|leaves?|match(?:es)?|corresponds to|go with),?"
    rf"|\b(?:conclusion|result|solution|choice):)\s{NAMED}"
    r"(?-i:[(\[\"]([A-Z])[)\]\"]|(?<=option\s|choice\s|letter\s)([A-Z]))[).!\"']{0,3}\s{0,4}\Z",
    re.IGNORECASE,
)
LETTERS_OF_LINE = re.compile(r"(?<![\w'])([A-J])(?![\w'])(?!\s[a-z])")


def _lines(text: str) -> Iterator[str]:
    """What the first and the last line give."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    items = [_item(line) for line in lines]
    if lines:
        yield from _line(lines[0], items[1:2], items[1:])
        yield from _line(lines[-1], items[-2:-1], items[:-1])
        yield from _concluded(lines[-1][-LONGEST:])


def _item(line: str) -> str | None:
    match = ITEM.match(line)
    return (match[1] or match[2].upper()) if match else None


def _line(line: str, beside: list, others: list) -> Iterator[str]:
    """The letter that a line is, or that its choice's text follows. "A:" may be short for "Answer:".

    beside, others: the letters that the next line and all others begin with. Those make it one of a list of the choices (a letter
    alone: only its neighbour), unless its own is there once more.
    """
    if line.startswith("A:") or not (found := _read(line[:LONGEST], BEFORE_TEXT, small=True)):
        return
    near = [item for item in beside if item and abs(ord(item) - ord(found)) == 1]
    listed = near if ALONE.fullmatch(line[:LONGEST]) else set(others) - {None}
    if (not listed or found in others) and not JUDGED.match(line[HEAD.match(line).end() :][:LONGEST]):
        yield found


def _concluded(line: str) -> Iterator[str]:
    """The letter at the end of a line that comes to it, and names no other."""
    match = CONCLUDED.search(line)
    if match and not _denied(line, match):
        found = next(filter(None, match.groups()))
        if set(LETTERS_OF_LINE.findall(line)) <= {found}:
            yield found


# The rules, in their order


def boxed(response: str) -> str | None:
    box = last_box(response) if "box" in response else None
    return _read(plain(box[:LONGEST]).strip(), BEFORE_TEXT, small=True) if box else None


def said(text: str) -> str | None:
    """SEVERAL too where, behind what is said last, another choice is called right."""
    place, found = max(_said(text), default=(0, None))
    right = {letter for at, letter in _called(IS_RIGHT, text) if at > place}
    return SEVERAL if found and right - {found} else found


def right_or_on_a_line(text: str) -> str | None:
    found = {letter for _, letter in _called(IS_RIGHT, text)} | set(_lines(text))
    return found.pop() if len(found) == 1 else None


def letter(response: str, letters: str) -> str | None:
    """The letter that the first rule reads; None where there is none, or it is not one of these."""
    text = plain(response)
    readings = (rule(given) for rule, given in ((boxed, response), (said, text), (right_or_on_a_line, text)))
    found = next((reading for reading in readings if reading is not None), None)
    return found if found and found in letters else None
