r"""The letter that a response gives as the answer to a multiple-choice question.

The first of these that reads something decides:

| rule | reads | of several |
| --- | --- | --- |
| `boxed` | `\boxed{C}`, `\boxed{C) 42 km}` | the last box |
| `said` | `Answer: C`, "the answer is C", "I choose C", "the correct option is C", "C is the answer" | the last |
| `on_a_line` | "option C is correct"; the first or last line `C`, `C) 42 km`; a last line that ends in "so (C)." | must agree |

In doubt there is no answer: two letters (SECOND), a list of the choices, what is denied or supposed (DENIED), what does not end
behind the letter (ENDS). Responses are long, and hostile: quantifiers are bounded, and LONGEST characters are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from openrlhf_ebpo.rewards.grading import SPECIAL, last_box

LONGEST = 300
SEVERAL = ""  # what is read where letters are named, but not one

WIDE = str.maketrans(
    dict(zip("：（）．。，、；＝“”„’", ':().,,,;="""\'', strict=True))
    | {chr(0xFF21 + i): chr(0x41 + i) for i in range(26)}
)
TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
BOLD = re.compile(r"(?<![\w*])\*\*\(?([A-Z])[).:]{0,2}\*\*\)?(?![\w*])")
MARKUP = re.compile(
    r"\\(?:text|math|operator)[a-z]{0,8}|\\(?:bf|rm|mbox|boldsymbol)(?![a-z])|\\[(),!\[\]]|[$*_`{}\\✅✔]"
)

NAMED = r"(?:the\s)?(?:(?:correct|right|best|final)\s)?(?:(?:option|choice|letter|answer):?\s?){0,2}"
ADVERB = r"(?:(?:therefore|thus|hence|clearly|indeed|definitely|most likely),?\s)?"
HEAD = re.compile(rf"[\s:=]{{0,4}}{ADVERB}{NAMED}[(\[\"']{{0,2}}([A-Z])(?!\w)", re.IGNORECASE)
ENDS = re.compile(
    r"[)\].,;!\"']{0,4}\s{0,4}(?:\n|\Z)|[)\]:]|[.,](?!\d)|[;!\"]|\s\(|\s{2}|\s[–—-]\s|\s(?:because|since|with|for|not)\b"
)
BEFORE_TEXT = re.compile(r"[)\].,\"']{0,3}\s{0,4}\Z|[)\]:]|\.(?!\d)|\s\(|\s{2}|\s[–—-]\s")  # its choice's text
SMALL = re.compile(r"[).\]\"']{0,3}\s{0,4}(?:\n|\Z)")
SECOND = re.compile(
    r"[)\]\"'.]{0,3}\s{0,2}(?:[,;/&+]|\b(?:and|or|nor|as well as|plus)\b|[和或与及])\s{0,2}(?:(?:also|maybe|perhaps|or|and)\s){0,2}"
    rf"{NAMED}[(\[\"']{{0,2}}(?-i:([A-Z]|[IVX]{{2,4}})(?![\w'])(?!(?<=I)\s[a-z])|([a-z])\))"
    r"|[)\].:\s–—-]{1,6}[(\[]?(?-i:([A-Z]))[)\].:,]{0,3}\s{0,4}(?:\n|\Z|(?<=\)))",
    re.IGNORECASE,
)

BE = r"(?:is|was|be|ist|lautet|est|es)"
START = r"(?:\A|[\n.,;:!?>—–-])\s{0,3}"
CUE = re.compile(  # group: small letters may follow
    r"(?:\b(?:answer|antwort|réponse|respuesta|risposta|resposta|ответ)|答案|正解|答え|回答)[\"']?"
    rf"(?:(?:\s\w{{1,20}}){{0,6}}?\s{BE}\b|(\s?[:=])|\s{{0,2}}\n|\s(?=[(\[][A-Z][)\]]\s{{0,2}}[.\n])|[是为為は])"
    rf"|(?:{START}|\b(?:I|we|I'll|would|will|must|should|so|therefore)\s)(?:choose|chose|pick|select|go with)(?=\s)|故[选選]"
    rf"|\b(?:correct|right|best|my)\s(?:option|choice|one|letter)(?:(?:\s\w{{1,20}}){{0,4}}?\s{BE}\b|\s?:)(?=\s)",
    re.IGNORECASE,
)
SUBJECT = rf"(?:{START}|\b(?:so|but|thus|hence|therefore|option|choice)\s){NAMED}[(\[\"']?(?-i:([A-Z]))[)\]\"'.]{{0,2}}\s{ADVERB}(?:is|must be)\s"
IS_ANSWER = re.compile(rf"{SUBJECT}the\s(?:correct\s|right\s)?(?:answer|right one)\b", re.IGNORECASE)
IS_RIGHT = re.compile(
    rf"{SUBJECT}(?:correct|right)(?=[.;:!)\"]|\s{{0,4}}(?:\n|\Z)|,?\s(?:because|since)\b)", re.IGNORECASE
)
CONCLUDED = re.compile(
    r"\b(?:(?:so|thus|hence|therefore|option|choice)\s(?=[(\[]?[A-Z])|(?:is|be|choice)\s(?=[(\[]))[(\[]?(?-i:([A-Z]))[)\].!]{0,3}\Z",
    re.IGNORECASE,
)
ITEM = re.compile(r"[\s(\[>#•-]{0,9}(?:(?:option|choice)\s)?(?:([A-Z])[).\]:]|([a-z])\))", re.IGNORECASE)
CAPITAL = re.compile(r"(?<![\w'])[A-J](?![\w'])(?!\s[a-z])")
ALONE = re.compile(r"[(\[\"']{0,2}[A-Z][)\].:,;!\"']{0,4}", re.IGNORECASE)
DENIED = re.compile(
    r"n't\b|\b(?:not?|never|neither|nor|cannot|unless|if|whether|suppos\w{1,4}|assum\w{1,6}|wrong|incorrect|false|eliminat\w{1,4}"
    r"|rul\w{1,3} out|exclud\w{1,4}|except|instead|rather than|might|may|could|thought|let(?!'s)|nicht|falsch|pas)\b|[不非错如❌✗]",
    re.IGNORECASE,
)
CONDITION = re.compile(r"[)\]\"']{0,2},?\s(?:but\s)?(?:only|if|unless|when|is|was|cannot)\b", re.IGNORECASE)
JUDGED = re.compile(
    r"[)\].:]?\s(?:is|was|does|can|has|cannot|fails)\b|.*\b(?:too \w+|wrong|incorrect|false|eliminated|ruled out)\W*\Z|.*[❌✗]\W*\Z",
    re.IGNORECASE | re.DOTALL,
)
CLAUSE = re.compile(r"[.,;!?\n]|\b(?:so|but|and|hence|thus|therefore)\b", re.IGNORECASE)


def letter(response: str, letters: str) -> str | None:
    """Return the letter that the first rule reads; None if there is none, or it is not one of these."""
    text = plain(response)
    readings = (rule(given) for rule, given in ((boxed, response), (said, text), (on_a_line, text)))
    found = next((reading for reading in readings if reading is not None), None)
    return found if found and found in letters else None


def boxed(response: str) -> str | None:
    box = last_box(response) if "box" in response else None
    return _read(plain(box[:LONGEST]).strip(), BEFORE_TEXT, small=True) if box else None


def said(text: str) -> str | None:
    """Return SEVERAL too where another choice is called right behind what is said last."""
    found = [
        (match.end(), read)
        for match in CUE.finditer(text)
        if (read := _read(text[match.end() : match.end() + LONGEST], ENDS, match[1] is not None)) is not None
        and not _is_denied(text, match)
    ]
    place, last = max([*found, *_called(IS_ANSWER, text)], default=(0, None))
    right = {named for at, named in _called(IS_RIGHT, text) if at > place}
    return SEVERAL if last and right - {last} else last


def on_a_line(text: str) -> str | None:
    found = {named for _, named in _called(IS_RIGHT, text)} | set(_lines(text))
    return found.pop() if len(found) == 1 else None


def plain(text: str) -> str:
    """Return the text without markup and a tokenizer's special tokens; full-width characters as ASCII, and a bold letter
    in brackets."""
    text = SPECIAL.sub("", text).translate(WIDE)
    text = TAG.sub(lambda tag: "\n" if tag[1] else "\nAnswer: ", text)
    return MARKUP.sub("", BOLD.sub(r"(\1)", text).replace(r"\quad", "  "))


def _read(text: str, ends: re.Pattern, small: bool) -> str | None:
    """Return the letter at the head of a text, SEVERAL, or None. small: a small letter needs no bracket behind it."""
    head = HEAD.match(text)
    if not head:
        return None
    found, rest = head[1], text[head.end() :]
    if _is_list(found, rest) or CONDITION.match(rest):
        return None
    if (second := SECOND.match(rest)) and next(filter(None, second.groups())).upper() != found.upper():
        return SEVERAL
    if found.islower() and not (rest.startswith(")") or (small and SMALL.match(rest))):
        return None
    return found.upper() if ends.match(rest) else None


def _is_list(found: str, rest: str) -> bool:
    """Return whether the next letter follows as this one does, on its line or the next: `A) 1 B) 2`."""
    following = re.escape(chr(ord(found) + 1)) + re.escape(rest[:1])
    lines = [line for line in rest.splitlines() if line.strip()][:2]
    return rest[:1] in (")", ".", ":") and bool(
        re.search(rf"(?:^|[^\w(]|\n\W{{0,4}}){following}(?:\s|\Z)", "\n".join(lines))
    )


def _is_denied(text: str, match: re.Match) -> bool:
    """Return whether the clause that a match ends in denies it, or only supposes it."""
    sentence = text[max(0, match.start() - LONGEST) : match.end()].rstrip(" \n.!)")
    return bool(DENIED.search(CLAUSE.split(sentence)[-1]))


def _called(form: re.Pattern, text: str) -> Iterator[tuple[int, str]]:
    for match in form.finditer(text):
        if not _is_denied(text, match) and not CONDITION.match(text, match.end()):
            yield match.end(), match[1]


def _lines(text: str) -> Iterator[str]:
    """Yield what the first and the last line give."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    items = [(match[1] or match[2]).upper() if (match := ITEM.match(line)) else "" for line in lines]
    if lines:
        yield from _line(lines[0], items[1:2], items[1:])
        yield from _line(lines[-1], items[-2:-1], items[:-1])
        end = lines[-1][-LONGEST:]
        if (match := CONCLUDED.search(end)) and not _is_denied(end, match) and len(CAPITAL.findall(end)) == 1:
            yield match[1]


def _line(line: str, neighbours: list[str], others: list[str]) -> Iterator[str]:
    """Yield the letter that a line is, or that its choice's text follows; not one of a list of the choices, unless its own
    letter is there once more. "A:" may be short for "Answer:"."""
    if line.startswith("A:") or not (found := _read(line[:LONGEST], BEFORE_TEXT, small=True)):
        return
    listed = [item for item in neighbours if item and abs(ord(item) - ord(found)) == 1]
    if not ALONE.fullmatch(line[:LONGEST]):
        listed = [item for item in others if item]
    if (not listed or found in others) and not JUDGED.match(line[HEAD.match(line).end() :][:LONGEST]):
        yield found
