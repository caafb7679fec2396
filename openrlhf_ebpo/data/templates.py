"""What the model is shown of a question: --template and --system of the commands that write prompts."""

from __future__ import annotations

from collections.abc import Mapping

from openrlhf_ebpo.errors import UsageError

QUESTION = "{question}"


def shown(own: str, question: str, template: str, system: str | None, named: Mapping[str, str]) -> str | list[dict]:
    """What the model is shown: text, or chat messages. (No str.format: mathematics is full of braces.)

    own: the prompt as its source has it. named: templates that have a name.
    """
    if template == "own":
        return own
    if template == "chat":
        messages = [{"role": "system", "content": system}] if system else []
        return [*messages, {"role": "user", "content": own}]
    return named.get(template, template).replace(QUESTION, question)


def check_template(template: str, system: str | None, named: Mapping[str, str]) -> None:
    """Check --template and --system, before anything is read.

    Raises:
        UsageError: an unknown template, or a system message that nothing would show.
    """
    names = ("own", *named, "chat")
    if template not in names and QUESTION not in template:
        raise UsageError(f"--template {template!r}: write {', '.join(names)}, or a text with {QUESTION} in it")
    if system is not None and template != "chat":
        raise UsageError(f"--system goes with --template chat, not with {template!r}")
