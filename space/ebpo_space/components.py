"""HTML of what the pages share: buttons, notices, tables."""

from __future__ import annotations

import json
from collections.abc import Sequence

from openrlhf_ebpo.redact import without_homes

from .figures import colour
from .text import HTML, attribute, harmless, html, join


def state(kind: str) -> str:
    """Write the kind of a run's condition."""
    return {"silent": "no sign of life", "unknown": "state unknown"}.get(kind, kind)


def setting(**values) -> HTML:
    """Write the attribute that makes a button change the view."""
    return html('data-set="{}"', attribute(json.dumps(values)))


def choice(values: dict, name: str, chosen: bool) -> HTML:
    """Write a button of a row of choices."""
    pressed = "true" if chosen else "false"
    return html('<button type="button" {} aria-pressed="{}">{}</button>', setting(**values), pressed, name)


def every_seed(view: dict) -> HTML:
    """Write the button that shows each seed of a configuration, or their mean."""
    each = view["seeds"] == "each"
    return html('<div class="choices">{}</div>', choice({"seeds": "mean" if each else "each"}, "every seed", each))


def notices(problems: Sequence[str]) -> HTML:
    """List problems once, where the visitor sees them."""
    distinct = list(dict.fromkeys(problems))
    items = join(html("<li>{}</li>", harmless(problem, 400)) for problem in distinct[:8])
    more = html("<li>and {} more</li>", len(distinct) - 8) if len(distinct) > 8 else ""
    return html('<div class="notice" role="status"><ul>{}{}</ul></div>', items, more) if distinct else HTML()


def empty(title: str, *lines: str, kind: str = "") -> HTML:
    """Write the empty state: what is missing and what to do."""
    paragraphs = join(html("<p>{}</p>", line) for line in lines)
    return html('<div class="empty {}"><h2>{}</h2>{}</div>', kind, title, paragraphs)


def no_runs(awaited: Sequence[str]) -> HTML:
    """Describe the next step without a run. awaited: folders that the app was started with."""
    if awaited:
        places = join(html("<code>{}</code> ", harmless(without_homes(each), 200)) for each in awaited[:8])
        return empty("Waiting for a run", places, "A run appears here as soon as training writes it.", kind="nothing")
    return empty(
        "No runs yet",
        HTML("Start with run directories: <code>openrlhf-ebpo space --runs runs/quickstart</code>"),
        HTML(
            "A training run writes one, <code>bash scripts/quickstart.sh</code> makes the smallest. A data set repo of "
            "the Hub works too: <code>--runs owner/name</code>."
        ),
        "The page Understand needs none.",
        kind="nothing",
    )


def page_of(items: Sequence, page: int, size: int) -> tuple[Sequence, int, int]:
    """Return the items of page `page`, from 1 and at most the last one; its number; and the number of pages."""
    pages = max(-(-len(items) // size), 1)
    page = min(page, pages)
    return items[(page - 1) * size : page * size], page, pages


def dot(number: int, kind: str = "dot") -> HTML:
    """Write a run's colour."""
    return html('<i class="{}" style="background:var(--{})"></i>', kind, colour(number))


def table(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str, kind: str = "") -> HTML:
    """Write a table. The first column is a row header."""
    heads = join(html('<th scope="col">{}</th>', cell) for cell in head)
    body = join(
        html('<tr><th scope="row">{}</th>{}</tr>', row[0], join(html("<td>{}</td>", cell) for cell in row[1:]))
        for row in rows
    )
    return html(
        '<div class="scroll" tabindex="0" role="region" aria-label="{}"><table class="{}"><caption>{}</caption>'
        "<thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>",
        *(attribute(caption, 200), kind, harmless(caption, 200), heads, body),
    )


def sort_head(column: str, name: str, reverse: bool, parameter: str = "sort") -> HTML:
    """Write the head of a column: a click sorts by it, the next one the other way round. name: of the column that
    decides now."""
    chosen = column == name
    turned = f"-{column}" if chosen and not reverse else column
    order = ("descending" if reverse else "ascending") if chosen else "none"
    mark = (" ▾" if reverse else " ▴") if chosen else ""
    return html(
        '<th scope="col" aria-sort="{}"><button type="button" {}>{}{}</button></th>',
        *(order, setting(**{parameter: turned}), column, mark),
    )
