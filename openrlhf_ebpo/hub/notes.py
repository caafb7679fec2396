"""Keep the notes that people write into a card by hand, between two lines, when the next push brings a new card.

They are untrusted text and never read as a template, as metadata or as the end of the notes; secrets, the
home folder of whoever pushes and signs that reverse text are left out. Their author could write all of README.md as well.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable

from openrlhf_ebpo.hub.markdown import Markdown
from openrlhf_ebpo.hub.public import public_data
from openrlhf_ebpo.hub.upload import head_of, read_file

BEGIN = "<!-- notes: what you write between this line and the next such line stays at the next push -->"
END = "<!-- end of notes -->"
CARD = "README.md"
MAX_CHARS = 200_000  # of the notes
UNSEEN = re.compile("[^\\S\n\t ]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def with_slot(render: Callable[[Markdown], str]) -> str:
    """A card in which the two lines stand once, where `render` has put what it was given: text of a run that looks like
    them is broken."""
    slot = f"notes-{uuid.uuid4().hex}"
    card = render(Markdown(slot))
    for line in (BEGIN, END):
        card = card.replace(line, line.replace("<!--", "<! --"))
    return card.replace(slot, f"{BEGIN}\n{END}")


def notes_of(card: str) -> str | None:
    """The text between the lines, "" without the lines; None if only one of the lines is there."""
    begins, ends = card.find(BEGIN), card.rfind(END)
    if begins < 0 and ends < 0:
        return ""
    if not 0 <= begins < ends:
        return None
    text = public_data(UNSEEN.sub(" ", card[begins + len(BEGIN) : ends]))
    return text[:MAX_CHARS].lstrip("\n").rstrip()


def with_notes(card: str, notes: str) -> str:
    """A card of ours with the notes in their place; one without the lines is left alone."""
    begins = card.find(BEGIN)
    if begins < 0 or not notes:
        return card
    place = begins + len(BEGIN)
    return f"{card[:place]}\n{notes}\n{card[place:].lstrip()}"


def keeping_notes(api, repo: str, card: bytes, report: Callable[[str], None], repo_type: str = "model") -> bytes:
    """Put the notes of the card on the Hub into `card`.

    Raises:
        HubError: the Hub cannot be asked.
    """
    commit, listed = head_of(api, repo, repo_type)
    old = read_file(api, repo, repo_type, commit, CARD).decode(errors="replace") if CARD in listed else ""
    notes = notes_of(old)
    if notes is None:
        report(
            f"hub: of the two lines around the notes in {CARD} of {repo} one is missing: nothing of the old card is kept (the "
            "repo's history has it)"
        )
    return with_notes(card.decode(), notes or "").encode()
