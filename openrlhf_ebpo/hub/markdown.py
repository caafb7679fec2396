"""Markdown of cards. Whatever a run brings along is shown as code, so that no text of it is interpreted, and without
secrets."""

from __future__ import annotations

import re
from collections.abc import Sequence

from openrlhf_ebpo.redact import redacted_text

PLAIN = re.compile(r"[\w ./:=,+()@%{}\[\]'\"#*~^$!?-]*")
LONGEST = 300  # characters


def code(value) -> str:
    """Inline code that stays one table cell and one piece of code, whatever is in it; long text is cut."""
    text = redacted_text(str(value))  # before it is cut, and its signs are written as numbers
    text = text if text.isprintable() else repr(text)[1:-1]
    text = text if len(text) <= LONGEST else text[:LONGEST] + "…"
    if PLAIN.fullmatch(text) and text == text.strip() and text:
        return f"`{text}`"
    return f"<code>{entities(text)}</code>"


def entities(text: str) -> str:
    """Every sign that Markdown or HTML could take for its own as a character reference, which neither does."""
    return re.sub(r"[^\w ]|_", lambda match: f"&#{ord(match[0])};", redacted_text(text))


def table(head: Sequence[str], rows: Sequence[Sequence], numbers: int = 0) -> str:
    """A Markdown table of finished cells; the last `numbers` columns are set to the right."""
    rule = ["---"] * (len(head) - numbers) + ["---:"] * numbers
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in [head, rule, *rows])


def fenced(language: str, text: str) -> str:
    """A code block, whose fence is longer than anything like it inside; invisible signs are shown by their number."""
    text = redacted_text(text)
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    text = "".join(sign if sign.isprintable() or sign == "\n" else f"\\U{ord(sign):08x}" for sign in text)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def join(parts: Sequence[str]) -> str:
    """Blocks with an empty line between them; empty ones are left out."""
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"
