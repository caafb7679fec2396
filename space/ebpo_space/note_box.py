"""HTML of notes and tags: the box of one group, and the filter by tag. What stands in them is from others: text, never HTML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import unquote

from .groups import Groups
from .notes import ANY, FILE, LONGEST, Note, note_at, tags_in, tags_of, text_of
from .parameters import text
from .runs import Run
from .tables import choice
from .text import HTML, attribute, harmless, html, joined


def _linked_tags(value) -> list[str]:
    """A list, or its tags between commas as `links.address` writes them."""
    return tags_of(list(map(unquote, value.split(","))) if isinstance(value, str) else value)


PARAMETERS = {  # of a view: the tag to find; the note and the tags of the group that is shown, and which that is
    "tag": ("", text),
    "note": ("", text_of),
    "tags": ([], _linked_tags),
    "noted": ("", lambda value: str(value)[:400]),
}


def tag_choices(view: dict, notes: Mapping[tuple[int, int], Note]) -> HTML:
    """Find the groups that have a note, or a tag; nothing where none has."""
    if not notes and not view["tag"]:
        return HTML()
    named = {ANY: ("noted", len(notes)), **{tag: (tag, count) for tag, count in tags_in(notes)}}
    named = {**named, **({view["tag"]: (view["tag"], 0)} if view["tag"] and view["tag"] not in named else {})}
    buttons = joined(_tag(view, tag, said, count) for tag, (said, count) in named.items())
    return html('<div class="choices tags" role="group" aria-label="Notes and tags">{}</div>', buttons)


def _tag(view: dict, tag: str, said: str, count: int) -> HTML:
    """Pressed once more it finds all groups again."""
    pressed = tag == view["tag"]
    steps = "all" if view["steps"] == "latest" and not pressed else view["steps"]
    change = {"tag": "" if pressed else tag, "steps": steps, "at": "", "answer": 0, "shown": 1}
    return choice(change, html("{} <small>{}</small>", harmless(said, 40), count), pressed)


def box(
    view: dict, run: Run, kept: bool, notes: Mapping[tuple[int, int], Note], groups: Groups, position: int
) -> tuple[HTML, dict]:
    """The note of a group to read and to write, and what of the view goes with it: a link carries the note that it shows.

    Args:
        kept: whether notes are kept beside this run.
        notes: those that are.
    """
    stored = note_at(notes, groups, position)
    step, group = int(groups.step[position]), int(groups.group[position])
    here = f"{step}.{group}@{run.key}"[:400]
    linked = Note(view["note"], tuple(view["tags"])) if view["noted"] == here else Note(stored.text, stored.tags)
    written = stored or linked
    about = {"run": run.key, "step": step, "group": group, "noted": here, "time": stored.time, "kept": kept}
    other = linked if linked and (linked.text, linked.tags) != (written.text, written.tags) else Note()
    changes = {"note": linked.text, "tags": list(linked.tags), "noted": here if linked else ""}
    return _box(about, written, other, kept), changes


def _box(about: dict, note: Note, other: Note, kept: bool) -> HTML:
    where = html("kept beside the run, in <code>{}</code>", FILE) if kept else "goes into the link, and nowhere else"
    if kept and note and not about["time"]:
        where = html("from the link; <b>Save</b> keeps it beside the run")
    # HTML drops a line break at the beginning of a <textarea>
    fields = html(
        '<label><span>Note</span><textarea rows="2" maxlength="{}" spellcheck="false">\n{}</textarea></label>'
        '<label><span>Tags, separated by commas</span><input type="text" value="{}" maxlength="400" spellcheck="false"></label>',
        *(LONGEST, attribute(note.text), attribute(", ".join(note.tags))),
    )
    return html(
        '<section class="note" aria-label="Note" data-note="{}"><header><h3>Note</h3><small>{}</small></header>{}{}<p class="tools">'
        '<button type="button" data-note-save>{}</button><span role="status"></span></p></section>',
        *(attribute(json.dumps(about)), where, _other(other), fields, "Save" if kept else "Put into the link"),
    )


def _other(note: Note) -> HTML:
    """What the link says, where the file says something else."""
    if not note:
        return HTML()
    tags = joined(html(" <em>{}</em>", harmless(tag)) for tag in note.tags)
    return html("<blockquote><small>In this link</small><p>{}{}</p></blockquote>", harmless(note.text), tags)
