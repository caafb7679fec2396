"""A text of a chat in its parts: the turns of its template, what is thought, what is said. Fixed marks in one walk; the
text between them is not read."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

MAX_PARTS = 80  # what follows them is one
MARKED = 2**20  # characters in which marks are looked for; what follows belongs to the last part
_MARKS = re.compile(
    r"(?P<start>\A\s*(?:<bos>|<s>)|<\|begin_of_text\|>|<｜begin▁of▁sentence｜>)"
    r"|<\|im_start\|>(?P<chatml>\w{1,20})\n?"
    r"|<\|start_header_id\|>(?P<llama>\w{1,20})<\|end_header_id\|>\n{0,2}"
    r"|<start_of_turn>(?P<gemma>\w{1,20})\n?"
    r"|<\|(?P<phi>system|user|assistant|tool)\|>\n?"
    r"|<｜(?P<deepseek>User|Assistant)｜>"
    r"|(?P<asked>\[INST\] ?)|(?P<answered> ?\[/INST\])"
    r"|(?P<end><\|im_end\|>|<\|eot_id\|>|<\|eom_id\|>|<end_of_turn>|<\|end\|>|<\|endoftext\|>|<\|end_of_text\|>"
    r"|<｜end▁of▁sentence｜>|(?:</s>|<eos>)(?=\s*\Z))\n?"
    r"|(?P<think><think>)|(?P<thought></think>)"
)
_ROLES = {"model": "assistant", "asked": "user", "answered": "assistant"}


@dataclass(frozen=True)
class Part:
    """text[start:stop]. role: whose turn begins here, "" where none does; thought: between <think> and </think>, of
    which the last may be missing (open); ended: the template's mark of a turn's end follows."""

    start: int
    stop: int
    role: str = ""
    thought: bool = False
    open: bool = False
    ended: bool = False


def parts(text: str) -> list[Part]:
    """Never empty, in order; marks stand between parts, and blanks alone are not a part."""
    found: list[Part] = []
    start, role, thinking = 0, "", False
    for mark in _MARKS.finditer(text, 0, MARKED):
        if len(found) >= MAX_PARTS:
            break
        kind = mark.lastgroup
        thought = thinking or kind == "thought"  # <think> may stand in the prompt already
        if role or not _blank(text, start, mark.start()):
            found.append(Part(start, mark.start(), role, thought, ended=kind == "end"))
            role = ""
        elif kind == "end" and found:
            found[-1] = replace(found[-1], ended=True)
        start, thinking = mark.end(), kind == "think"
        templates = ("chatml", "llama", "gemma", "phi", "deepseek")
        named = next((mark[name] for name in templates if mark[name]), "").lower()
        role = _ROLES.get(named or kind, named) or role
    if role or not found or not _blank(text, start, len(text)):
        found.append(Part(start, len(text), role, thinking, open=thinking and len(text) <= MARKED))
    return found


def _blank(text: str, start: int, stop: int) -> bool:
    return not text[start:stop].strip()


def last_user_turn(prompt: str) -> str:
    """Return the last turn of a user, or the last part that says something: what a list shows of a prompt."""
    found = [part for part in parts(prompt) if not _blank(prompt, part.start, part.stop)]
    if not found:
        return prompt
    users = [part for part in found if part.role == "user"]
    last = (users or found)[-1]
    return prompt[last.start : last.stop]
