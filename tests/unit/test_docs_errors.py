"""docs/errors.md quotes messages word for word (… stands for what varies)."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VARIES = "…"
SHELL_VALUE = re.compile(r"\$(?:\w+|\{[^}]*\}|\([^)]*\))")
QUOTED = re.findall(r"^\| `(.+?)` \|", (ROOT / "docs/errors.md").read_text(), re.MULTILINE)


def templates(source: str) -> Iterator[str]:
    """The texts of a Python file, with … for every value that is put into one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else VARIES for part in node.values)


TEXTS = [text for path in (ROOT / "openrlhf_ebpo").rglob("*.py") for text in templates(path.read_text())]
TEXTS += [SHELL_VALUE.sub(VARIES, path.read_text()) for path in (ROOT / "scripts").rglob("*.sh")]


def test_twenty_messages_are_explained():
    assert len(set(QUOTED)) == 20


@pytest.mark.parametrize("message", QUOTED)
def test_the_message_is_in_the_source(message):
    assert any(message.rstrip(VARIES).rstrip() in text for text in TEXTS)
