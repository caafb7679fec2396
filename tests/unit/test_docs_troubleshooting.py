"""Every message that docs/troubleshooting.md quotes is in the source, word for word; … stands for what varies. And it quotes
all with which a training ends."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VARIES = "…"
SHELL_VALUE = re.compile(r"\$(?:\w+|\{[^}]*\}|\([^)]*\))")
ROW = re.compile(r"^\| (`.*?`) \| ", re.MULTILINE)
SPAN = re.compile(r"(`+) ?(.+?) ?\1(?!`)")
ENDS = {"CheckpointError", "ClusterError", "EngineError", "HealthError", "RewardSourceError", "say", "stop_driver"}


def templates(source: str) -> Iterator[str]:
    """The texts of a Python file, with … for every value that is put into one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else VARIES for part in node.values)


def said_at_ends(source: str) -> Iterator[str]:
    """What is given to the errors that end a training, and to the supervisor's voice; not what others have put together."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in ENDS:
            texts = [next(templates(ast.unparse(each)), "") for each in node.args if is_text(each)]
            yield from (text for text in texts if len(text.replace(VARIES, " ").split()) > 3)


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def quoted(page: str) -> list[str]:
    return [span[1] for row in ROW.findall(page) for span in SPAN.findall(row)]


def is_said(message: str, said: list[str]) -> bool:
    """A … at its end may also stand for nothing, or for constant words."""
    return any(message.rstrip(VARIES).rstrip() in text for text in said)


SAID = [
    text
    for place in ("openrlhf_ebpo", "eval", "space", "scripts")
    for path in sorted((ROOT / place).rglob("*.py"))
    for text in templates(path.read_text())
] + [SHELL_VALUE.sub(VARIES, path.read_text()) for path in sorted((ROOT / "scripts").rglob("*.sh"))]
MESSAGES = quoted((ROOT / "docs/troubleshooting.md").read_text())


def test_the_page_has_messages_and_none_twice():
    assert len(MESSAGES) > 60
    assert len(set(MESSAGES)) == len(MESSAGES)


@pytest.mark.parametrize("message", MESSAGES)
def test_the_message_is_in_the_source(message):
    assert max(map(len, message.split(VARIES))) >= 10, "too short to be found by"
    assert is_said(message, SAID), "no text in the source reads like this: correct the page"


def test_every_end_of_a_training_has_its_line():
    ends = {text for path in (ROOT / "openrlhf_ebpo").rglob("*.py") for text in said_at_ends(path.read_text())}
    assert len(ends) > 12
    assert [text for text in sorted(ends) if not any(is_said(message, [text]) for message in MESSAGES)] == []


def test_a_message_that_nobody_says_is_found():
    said = [*templates("raise ValueError(f'{path}: no such file {name!r} ' 'here; give one')")]
    assert is_said("no such file … here", said) and is_said("no such file …", said)
    assert not is_said("no such file here", said) and not is_said("no such folder", said)
    assert quoted("| message | means |\n| --- | --- |\n| `one …` <br> `` two `x` `` | `no` | `no` |\n") == [
        "one …",
        "two `x`",
    ]
