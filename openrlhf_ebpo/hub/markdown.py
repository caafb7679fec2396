"""Markdown of cards. Only `Markdown` is taken for Markdown: whatever else a template is given is shown as code, so that
no text of a run is interpreted, and without secrets. A forgotten escape shows too much, and does nothing."""

from __future__ import annotations

import re
from pathlib import Path

from openrlhf_ebpo.redact import redacted_text, without_homes, without_own_homes

TEMPLATES = Path(__file__).with_name("templates")
PLAIN = re.compile(r"[\w ./:=,+()@%{}\[\]'\"#*~^$!?-]*")
NOT_PLAIN = re.compile(r"[^\w ]|_")
MAX_CODE_CHARS = 300


class Markdown(str):
    """Trusted Markdown: written by this module, or a constant of this package."""


def fill_template(template: str, **values) -> Markdown:
    """A card from one of hub/templates/. `Markdown` goes into it as it is, all else as `code`. No home
    folder stays, wherever it comes from.

    Raises:
        jinja2.UndefinedError: the template has a name that is not among the values.
    """
    # not ModelCard.from_template: its templates escape nothing, and leave a name that has no value out in silence
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        finalize=code,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return Markdown(without_own_homes(without_homes(environment.get_template(template).render(values))))


def code(value) -> Markdown:
    """Inline code that stays one table cell and one piece of code, whatever is in it; long text is cut; `Markdown` as
    it is."""
    if isinstance(value, Markdown):
        return value
    text = redacted_text(str(value))  # before it is cut, and its signs are written as numbers
    text = text if text.isprintable() else repr(text)[1:-1]
    text = text if len(text) <= MAX_CODE_CHARS else text[:MAX_CODE_CHARS] + "…"
    if PLAIN.fullmatch(text) and text == text.strip() and text:
        return Markdown(f"`{text}`")
    # every sign that Markdown or HTML could take for its own as a character reference, which neither does
    return Markdown(f"<code>{NOT_PLAIN.sub(lambda match: f'&#{ord(match[0])};', text)}</code>")


def fenced(language: str, text: str) -> Markdown:
    """A code block, whose fence is longer than anything like it inside; invisible signs are shown by their number."""
    text = redacted_text(text)
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    text = "".join(sign if sign.isprintable() or sign == "\n" else f"\\U{ord(sign):08x}" for sign in text)
    return Markdown(f"{fence}{language}\n{text.rstrip()}\n{fence}")
