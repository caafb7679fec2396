"""`openrlhf-ebpo explain` finds what a user pastes. Every message that it knows is in the source, word for word (… stands for
what varies), and it knows all with which a training ends."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from openrlhf_ebpo import cli
from openrlhf_ebpo.cli import explain

ROOT = Path(__file__).parents[2]
VARIES = "…"
SHELL_VALUE = re.compile(r"\$(?:\w+|\{[^}]*\}|\([^)]*\))")
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


def is_said(message: str, said: list[str]) -> bool:
    """A … at its end may also stand for nothing, or for constant words."""
    return any(message.rstrip(VARIES).rstrip() in text for text in said)


SAID = [
    text
    for place in ("openrlhf_ebpo", "eval", "space", "scripts")
    for path in sorted((ROOT / place).rglob("*.py"))
    for text in templates(path.read_text())
] + [SHELL_VALUE.sub(VARIES, path.read_text()) for path in sorted((ROOT / "scripts").rglob("*.sh"))]
ROWS = explain.all_rows()
MESSAGES = [name for row in explain.messages() for name in row.names]


def test_every_message_has_its_meaning_and_a_remedy_and_none_stands_twice():
    assert len(MESSAGES) > 200 and len(set(MESSAGES)) == len(MESSAGES)
    assert [row.names for row in explain.messages() if [label for label, _ in row.facts] != ["means", "do"]] == []


def test_a_pasted_message_is_found_by_its_own_row():
    """Whatever stands for … and around it."""
    for row in explain.messages():
        for name in row.names:
            pasted = f"12:03:10 error: {name.replace(VARIES, 'x y/z')} and more"
            assert row in explain.found(pasted, ROWS), name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("No Token for the hub", "hf auth login"),
        ("no checkpoint in out/ckpt can be resumed from", "no checkpoint in … can be resumed from:"),
        ("folder, no config.json", "often it is a DeepSpeed checkpoint"),
        ("ebpo/shrinkage", "near 1: groups hardly differ"),
        ("eval_my_set_pass1", "Held-out success"),
        ("--n_samples_per_prompt", "--rollout.n_samples_per_prompt"),
        ("--pretrain_data", "refused"),
        ("RemoteExperienceMaker", "EBPOExperienceMaker"),
        ("space", "This app does not offer that."),
    ],
)
def test_words_lead_to_their_row(words, said, capsys):
    cli.main(["explain", *words.split()])
    assert said in capsys.readouterr().out


def test_without_words_the_topics_are_listed_and_unknown_words_are_an_error(capsys):
    cli.main(["explain"])
    assert {row.topic for row in ROWS} <= set(capsys.readouterr().out.split())
    with pytest.raises(SystemExit, match="no row has all of these words"):
        cli.main(["explain", "xyzzy"])


def test_the_page_of_errors_quotes_messages_that_are_explained():
    quoted = re.findall(r"^\| `(.+?)` \|", (ROOT / "docs/errors.md").read_text(), re.MULTILINE)
    assert len(quoted) == 10 and set(quoted) <= set(MESSAGES)


@pytest.mark.parametrize("message", MESSAGES)
def test_the_message_is_in_the_source(message):
    assert max(map(len, message.split(VARIES))) >= 10, "too short to be found by"
    assert is_said(message, SAID), "no text in the source reads like this: correct messages.txt"


def test_every_end_of_a_training_has_its_line():
    ends = {text for path in (ROOT / "openrlhf_ebpo").rglob("*.py") for text in said_at_ends(path.read_text())}
    assert len(ends) > 12
    assert [text for text in sorted(ends) if not any(is_said(message, [text]) for message in MESSAGES)] == []


def test_a_message_that_nobody_says_is_found():
    said = [*templates("raise ValueError(f'{path}: no such file {name!r} ' 'here; give one')")]
    assert is_said("no such file … here", said) and is_said("no such file …", said)
    assert not is_said("no such file here", said) and not is_said("no such folder", said)
