"""Places for texts that models wrote. Here they are cut and escaped; the visitor's browser sets their Markdown and
formulas (static/reader.js), within limits of time, and asks for what is left out. Without scripts they are read as
they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlencode

from .text import HTML, attribute, harmless, html, joined
from .turns import Part, parts

WHOLE = 16_000  # characters of a part that is not cut; of one that is, its two ends have three eighths each
ROUTE = "./space/text"
_FORMULA = re.compile(r"\$[^$]{1,400}\$|\\\(.{1,400}?\\\)|\\\[.{1,400}?\\\]")
LOOKED_AT = 20_000  # characters of each end of a text, for repetition
# sequences of words; share of them that marks an answer (ordinary reasoning stays below 0.3)
FEWEST, REPETITIVE = 40, 0.5


def answer(
    text,
    *,
    source: Mapping | None = None,
    raw: bool = False,
    room: int = WHOLE,
    truncated: bool = False,
    find: str = "",
    given: bool = True,
    extracted=None,
    gold=None,
    name: str = "Answer",
) -> HTML:
    """Lay out a text, head and tail of each part first.

    Args:
        source: what the route `ROUTE` is asked with for the rest; without it the rest is not to be had.
        raw: as it was written, with all marks of its template.
        room: characters of a part that are there at first.
        truncated: the generation ended at its limit.
        find: what is searched for.
        given: whether it gives an answer, which is marked: `extracted`, what the grader took, where that is known.
        gold: the expected answer, marked too.
    """
    text = "" if text is None else str(text)
    shown = [Part(0, len(text))] if raw else _non_empty_parts(text)
    said = joined(_part(text, part, room, alone=all(each.thought for each in shown)) for part in shown)
    end = HTML('<span class="role end">end of turn</span>') if given and shown[-1].ended else HTML()
    cut = HTML('<p class="ending">Cut off at the length limit.</p>') if truncated else ""
    return html(
        '<div class="reading" tabindex="0" role="group" aria-label="{}" {}><div class="marks"></div>{}{}</div>',
        *(
            attribute(name, 80),
            _attributes(text, source, raw, find) + _answers(given, extracted, gold),
            said,
            end + cut,
        ),
    )


def _non_empty_parts(text: str) -> list[Part]:
    """Without turns that are empty: a prompt ends where the next one begins."""
    found = parts(text)
    return [part for part in found if text[part.start : part.stop].strip()] or found[:1]


def line(text, limit: int = 140) -> HTML:
    """The first words on one line."""
    words = " ".join(str(text)[: 4 * limit].split())
    end = _outside_formulas(words, limit)
    return html('<span class="reading line">{}</span>', harmless(words[:end] + ("…" if len(words) > end else "")))


def _outside_formulas(words: str, limit: int) -> int:
    """Return where to cut: at the limit, or before a formula that reaches over it."""
    across = (match for match in _FORMULA.finditer(words) if match.start() < limit < match.end())
    found = next(across, None)
    if found is None:
        return limit
    return found.start() if found.start() > limit // 2 else found.end()


def _attributes(text: str, source: Mapping | None, raw: bool, find: str) -> HTML:
    found = {
        "from": f"{ROUTE}?{urlencode(source)}" if source else "",
        "raw": "yes" if raw else "",
        "find": find,
        "hits": str(hits(text, find)) if find else "",
    }
    return _data(found)


def _answers(given: bool, extracted, gold) -> HTML:
    return _data({"given": "yes" if given else "", "extracted": _marked(extracted), "gold": _marked(gold)})


def _data(found: Mapping[str, str]) -> HTML:
    return joined(html('data-{}="{}" ', key, attribute(value)) for key, value in found.items() if value)


def _marked(value) -> str:
    """Return an answer that can be found in a text, which an entry of a task or a list of tests cannot."""
    return "" if value is None or len(str(value)) > 100 else str(value)


def hits(text, find: str) -> int:
    """Count how often a text holds what is searched for, whatever its case."""
    text, find = (str(each or "").replace("İ", "\0").lower() for each in (text, find))  # small, it has two characters
    return text.count(find) if find else 0


def repeated(text) -> float:
    """Share of a text's sequences of four words that occurred before, of 0 to 1; of a long text its two ends are
    looked at."""
    text = str(text or "")
    words = (text if len(text) <= 2 * LOOKED_AT else f"{text[:LOOKED_AT]} {text[-LOOKED_AT:]}").split()
    sequences = list(zip(*(words[i:] for i in range(4)), strict=False))
    return 1 - len(set(sequences)) / len(sequences) if len(sequences) >= FEWEST else 0.0


def _part(text: str, part: Part, room: int, alone: bool) -> HTML:
    """alone: there are only thoughts, so they are not folded."""
    role = html('<span class="role">{}</span>', part.role) if part.role else ""
    body = _body(text[part.start : part.stop], part.start, room)
    if part.thought:
        said = f"{part.stop - part.start:,} characters{', never closed' if part.open else ''}"
        return html(
            '{}<details class="part thought" {}><summary>Thinking <small>{}</small></summary>{}</details>',
            *(role, "open" if alone else "", said, body),
        )
    return html('<section class="part">{}{}</section>', role, body)


def _body(text: str, start: int, room: int) -> HTML:
    """start: where the part begins in the text."""
    if len(text) <= room:
        return _text(text)
    edge = max(3 * room // 8, 1)
    left = len(text) - 2 * edge
    gap = html(
        '<p class="gap" data-next="{}" data-stop="{}">… {:,} more characters …</p>',
        *(start + edge, start + edge + left, left),
    )
    return joined([_text(text[:edge]), gap, _text(text[-edge:])])


def _text(text: str) -> HTML:
    return html("<pre>{}</pre>", harmless(text, WHOLE))
