"""HTML of this app, and escaping of model text: whatever is put into `html` and is not HTML goes through `harmless`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from markupsafe import Markup

MAX_TEXT_CHARS = 20_000  # of one text on a page; the Parquet file has all
# &<>"' end HTML text and attributes. The others start a template of gr.HTML (${…}, {{…}}, `…`, \…): as character
# references they stay text, whatever reads them first.
_REFERENCES = {ord(c): f"&#{ord(c)};" for c in "&<>\"'`${}\\"} | {0: "<wbr>"}
# Browsers take seconds to lay out one word of 20,000 letters: NUL, which `plain` leaves nowhere, marks where it may
# break.
_LONG = re.compile(r"\S{60}(?=\S)")
# NUL and other control characters, and invisible or direction-changing ones (zero-width, bidi, tags): shown as ⟨U+…⟩.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
# Combining marks: a few per letter are ordinary writing; dozens of them cover the lines above.
_STACKED = re.compile(
    "([\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]{4})[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+"
)


class HTML(Markup):
    """HTML that this app has written. Text that joins it (`html`, `join`, +) goes through `harmless`; a page shows
    only HTML as HTML. So a forgotten escape shows too much, and does nothing."""

    @classmethod
    def escape(cls, text) -> HTML:
        return cls(text) if hasattr(text, "__html__") else harmless(text)


def html(template: str, *values) -> HTML:
    """Fill the template, which is a literal, with values in its {}: HTML stays as it is, all else becomes text."""
    return HTML(template).format(*values)  # noqa: S704 (held against its callers)


def join(parts: Iterable) -> HTML:
    return HTML().join(parts)


def plain(text) -> str:
    """Text without control, invisible and direction-changing characters, each replaced by a visible ⟨U+…⟩."""
    text = _INVISIBLE.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", str(text).replace("\r\n", "\n"))
    return _STACKED.sub(r"\1", text)


def harmless(text, limit: int = MAX_TEXT_CHARS) -> HTML:
    """Text escaped for HTML, at most `limit` characters of it and a note of the rest."""
    text = "" if text is None else str(text)
    breakable = _LONG.sub(lambda match: match[0] + "\0", plain(text[:limit]))
    left = len(text) - limit
    rest = html('<span class="rest"> … {:,} more characters</span>', left) if left > 0 else HTML()
    return HTML(breakable.translate(_REFERENCES)) + rest  # noqa: S704


def attribute(text, limit: int | None = None) -> HTML:
    """Text between the quotes of an attribute: exactly as it is, for scripts and menus that read it back; with a limit
    cut and `plain`, for people."""
    text = str(text) if limit is None else plain(str(text)[:limit])
    return HTML(text.translate({**_REFERENCES, 0: "\ufffd"}))  # noqa: S704


def middle_cut(name, limit: int) -> str:
    """Cut the middle of a name: names of runs often begin alike, and differ in the last part."""
    name = str(name)
    return name if len(name) <= limit else f"{name[: limit // 3]}…{name[len(name) - (limit - limit // 3 - 1) :]}"


def distinct_names(names: Sequence[str], limit: int) -> list[str]:
    """Make names short enough for a legend: of long ones, what differs stays, with as much around it as there is room
    for."""
    if len(names) < 2 or max(map(len, names)) <= limit:
        return [middle_cut(name, limit) for name in names]
    start = len(common_start(names))
    end = len(common_start([name[start:][::-1] for name in names]))
    found = []
    for name in names:
        stop = len(name) - end
        room = max(limit - (stop - start) - 2, 0)
        before, after = name[max(start - room // 2, 0) : start], name[stop : stop + room - room // 2]
        short = f"{'…' if len(before) < start else ''}{before}{name[start:stop]}{after}"
        found.append(middle_cut(short + ("…" if stop + len(after) < len(name) else ""), limit))
    return found


def common_start(names: Sequence[str]) -> str:
    return os.path.commonprefix(list(names))  # noqa: RUF071 (by characters)


def run_name(name, limit: int = 40) -> HTML:
    """Write the name of a run, a task, a cluster on one line, harmless; complete in its title if it is cut."""
    short = harmless(middle_cut(name, limit), limit)
    return short if len(str(name)) <= limit else html('<span title="{}">{}</span>', attribute(name, 300), short)
