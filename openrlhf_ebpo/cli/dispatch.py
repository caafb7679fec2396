"""Find and run the module behind a word of the command line, at each level of `openrlhf-ebpo`."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from openrlhf_ebpo import __version__
from openrlhf_ebpo.command import error_exit


class Command(NamedTuple):
    """module: where its `main(argv)` is; imported when the command is run. summary: a line of the help one level
    above."""

    module: str
    summary: str


def dispatcher(
    prog: str,
    about: str,
    commands: Mapping[str, Command],
    extra: str = "",
    default: str | None = None,
) -> Callable[[Sequence[str] | None], None]:
    """The `main` of a level of commands.

    Args:
        about: the level's help, before the list of its commands.
        extra: of pyproject.toml, that brings the packages which the commands import.
        default: the command that is meant where a flag comes first, or nothing.
    """

    @error_exit(extra)
    def main(argv: Sequence[str] | None = None) -> None:
        given = list(sys.argv[1:] if argv is None else argv)
        if default and (not given or given[0].startswith("-")):
            given.insert(0, default)
        if given[:1] in (["-h"], ["--help"], ["help"]):
            print(listing(prog, about, commands))
        elif given[:1] == ["--version"]:
            print(f"openrlhf_ebpo {__version__}")
        elif given and given[0] in commands:
            importlib.import_module(commands[given[0]].module).main(given[1:])
        else:
            refuse(prog, about, commands, *given[:1])

    return main


def listing(prog: str, about: str, commands: Mapping[str, Command]) -> str:
    width = max(map(len, commands))
    lines = [f"  {prog} {name:<{width}}  {command.summary}" for name, command in commands.items()]
    return "\n".join(
        [f"usage: {prog} COMMAND [flags]", "", about.strip(), "", *lines, "", "COMMAND --help explains it."]
    )


def refuse(prog: str, about: str, commands: Mapping[str, Command], given: str | None = None) -> None:
    """A mistyped command is a line, as a mistyped flag is; without any, the help teaches. Both end with status 2."""
    near = difflib.get_close_matches(given or "", commands, n=1)
    known = f"Did you mean {near[0]}?" if near else f"There are {', '.join(commands)} (see {prog} --help)"
    line = f"no such command: {given}. {known}"
    print(f"{prog}: error: {line}" if given else listing(prog, about, commands), file=sys.stderr)
    sys.exit(2)
