"""Places for texts that models wrote. Here they are cut and escaped; the visitor's browser sets their Markdown and
formulas (static/reader.js), within limits of time, and asks for what is left out. Without scripts they are read as
they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from .text import HTML, attribute, harmless, html, join
from .turns import Part, parts

WHOLE = 16_000  # characters of a part that is not cut; of one that is, its two ends have three eighths each
ROUTE = "./space/text"
_FORMULA = re.compile(r"\$[^$]{1,400}\$|\\\(.{1,400}?\\\)|\\\[.{1,400}?\\\]")
EDGE = 20_000  # characters of each end of a long text that are searched for repetition
# sequences of words; share of them that marks an answer (ordinary reasoning stays below 0.3)
FEWEST, REPETITIVE = 40, 0.5


@dataclass(frozen=True)
class Options:
    """Settings of a text's layout.

    Attributes:
        source: what the route `ROUTE` is asked with for what is left out; None: it cannot be asked for.
        raw: as it was written, with all marks of its template.
        room: characters of a part that are shown at first.
        truncated: the generation ended at its limit.
        find: what is searched for.
        is_answer: the answer that it gives is marked: `extracted`, what the grader took, where that is known.
        gold: the expected answer, marked too.
        name: for screen readers.
    """

    source: Mapping | None = None
    raw: bool = False
    room: int = WHOLE
    truncated: bool = False
    find: str = ""
    is_answer: bool = True
    extracted: object = None
    gold: object = None
    name: str = "Answer"


def answer(text, options: Options = Options()) -> HTML:
    """Lay out a text, head and tail of each part first."""
    text = "" if text is None else str(text)
    found = [Part(0, len(text))] if options.raw else parts(text)
    # without turns that are empty: a prompt ends where the next one begins
    found = [part for part in found if text[part.start : part.stop].strip()] or found[:1]
    alone = all(part.thought for part in found)
    data = {
        "from": f"{ROUTE}?{urlencode(options.source)}" if options.source else "",
        "raw": "yes" if options.raw else "",
        "find": options.find,
        "hits": str(hits(text, options.find)) if options.find else "",
        "given": "yes" if options.is_answer else "",
        "extracted": _findable(options.extracted),
        "gold": _findable(options.gold),
    }
    ended = options.is_answer and found[-1].ended
    return html(
        '<div class="reading" tabindex="0" role="group" aria-label="{}" {}><div class="marks"></div>{}{}{}</div>',
        attribute(options.name, 80),
        join(html('data-{}="{}" ', key, attribute(value)) for key, value in data.items() if value),
        join(_part(text, part, options.room, alone) for part in found),
        HTML('<span class="role end">end of turn</span>') if ended else "",
        HTML('<p class="ending">Cut off at the length limit.</p>') if options.truncated else "",
    )


def line(text, limit: int = 140) -> HTML:
    """Lay out the start of a text on one line, cut at the limit or, if a formula reaches over it, before or after
    that."""
    start = " ".join(str(text)[: 4 * limit].split())
    across = next((found for found in _FORMULA.finditer(start) if found.start() < limit < found.end()), None)
    end = limit if across is None else across.start() if across.start() > limit // 2 else across.end()
    return html('<span class="reading line">{}</span>', harmless(start[:end] + ("…" if len(start) > end else "")))


def _findable(value) -> str:
    """Return an answer that can be found in a text, which an entry of a task or a list of tests cannot."""
    return "" if value is None or len(str(value)) > 100 else str(value)


def hits(text, find: str) -> int:
    """Count how often a text holds what is searched for, whatever its case."""
    text, find = (str(each or "").replace("İ", "\0").lower() for each in (text, find))  # small, it has two characters
    return text.count(find) if find else 0


def repetition(text) -> float:
    """Share of a text's sequences of four words that occurred before, of 0 to 1; of a long text its two ends are
    looked at."""
    text = str(text or "")
    tokens = (text if len(text) <= 2 * EDGE else f"{text[:EDGE]} {text[-EDGE:]}").split()
    sequences = list(zip(*(tokens[i:] for i in range(4)), strict=False))
    return 1 - len(set(sequences)) / len(sequences) if len(sequences) >= FEWEST else 0.0


def _part(text: str, part: Part, room: int, alone: bool) -> HTML:
    """alone: there are only thoughts, so they are not folded."""
    role = html('<span class="role">{}</span>', part.role) if part.role else ""
    text = text[part.start : part.stop]
    if len(text) <= room:
        body = html("<pre>{}</pre>", harmless(text, WHOLE))
    else:
        edge = max(3 * room // 8, 1)
        left, gap = len(text) - 2 * edge, part.start + edge
        body = html(
            '<pre>{}</pre><p class="gap" data-next="{}" data-stop="{}">… {:,} more characters …</p><pre>{}</pre>',
            *(harmless(text[:edge], WHOLE), gap, gap + left, left, harmless(text[-edge:], WHOLE)),
        )
    if part.thought:
        size = f"{len(text):,} characters{', never closed' if part.open else ''}"
        return html(
            '{}<details class="part thought" {}><summary>Thinking <small>{}</small></summary>{}</details>',
            *(role, "open" if alone else "", size, body),
        )
    return html('<section class="part">{}{}</section>', role, body)
