"""Flags and exit statuses of every command, the same for `openrlhf-ebpo …` and `python -m …`."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import difflib
import math
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace

from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.redact import redacted_text

Main = Callable[..., None]  # main(argv=None)
INTERRUPTED, PIPE_CLOSED = 130, 141  # as a shell reports SIGINT and SIGPIPE
PR_SET_PDEATHSIG = 1
STACK = ("deepspeed", "openrlhf", "ray", "torch", "transformers", "vllm")  # no extra brings them
PAUSED = os.EX_TEMPFAIL  # saved and ended on request: the same command resumes it


class Parser(argparse.ArgumentParser):
    """Its help keeps the line breaks of the text; a mistake is one line, without the usage of all flags before it."""

    def __init__(self, prog: str, about: str | None):
        super().__init__(prog, description=about, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message: str):
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def command(
    prog: str,
    about: str | None,
    add_flags: Callable[[argparse.ArgumentParser], None],
    run: Callable[[argparse.Namespace], None],
    extra: str = "",
) -> Main:
    """Return the `main` of a command that has flags.

    Args:
        about: its help, before the flags.
        extra: of pyproject.toml, that brings the packages which `run` imports.
    """

    @error_exit(extra)
    def main(argv: Sequence[str] | None = None) -> None:
        parser = Parser(prog, about)
        add_flags(parser)
        run(parse(parser, argv))

    return main


def interrupt_once() -> None:
    """SIGTERM as Ctrl-C. After the first of either, neither disturbs the cleaning up. One that is ignored stays so."""

    def interrupt(*_):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)


@contextlib.contextmanager
def interrupted_once() -> Iterator[None]:
    """`interrupt_once` inside; before and after it as it was."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    interrupt_once()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_with_parent(number: int) -> None:
    """Have the kernel send signal `number` to this process when the thread that started it ends. Linux alone."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


@contextlib.contextmanager
def error_exit(extra: str = "") -> Iterator[None]:
    """The one place where errors end a command: around its `main`, as a decorator.

    Flags that cannot be read end with status 2 (argparse); an error that was foreseen, or one of the machine (a full
    disk, a missing file), with its message and status 1; Ctrl-C with 130; a closed pipe with 141. Every other exception
    is a mistake of ours and keeps its traceback.

    Args:
        extra: of pyproject.toml, that brings packages which may be missing.
    """
    try:
        yield
        print(end="", flush=True)
    except ReportedError as error:
        sys.exit(message(error))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in STACK:
            sys.exit(
                f"error: {package} is not installed; docs/gpus.md and docs/start.md have the two ways to "
                f"install the stack"
            )
        if not extra or package == "openrlhf_ebpo":
            raise
        sys.exit(f"error: {error.name} is not installed: pip install 'openrlhf_ebpo[{extra}]'")
    except BrokenPipeError as error:
        sys.exit(PIPE_CLOSED if is_reader_gone() else message(error))
    except OSError as error:
        sys.exit(message(error))
    except KeyboardInterrupt as error:
        line_end = "\n" if sys.stderr.isatty() else ""  # of the ^C, or of a progress bar
        print(f"{line_end}interrupted; {str(error) or 'repeat the command to resume'}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    finally:
        flush_or_discard()


def message(error: Exception) -> str:
    """The words of an error, without secrets. Of a UsageError every line is a problem; of others the first says it."""
    text = redacted_text(str(error) or type(error).__name__).rstrip("\n")
    lines = [printable(line) for line in text.split("\n")]
    return "\n".join(
        f"error: {line}" if not i or isinstance(error, UsageError) else line for i, line in enumerate(lines)
    )


def positive_number(variable: str, default: float) -> float:
    """Return the number in an environment variable.

    Raises:
        UsageError: it is not a number above 0.
    """
    text = os.environ.get(variable) or str(default)
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise UsageError(f"the environment variable {variable} is {text!r}; give a number above 0")
    return number


def printable(text: str) -> str:
    """Untrusted text on one line of a terminal: a blank for each control character."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def one_line(text: str, max_chars: int) -> str:
    """As `printable`, white space collapsed, and its middle left out if it is long."""
    text = " ".join(printable(text).split())
    return text if len(text) <= max_chars else f"{text[: max_chars // 2]} … {text[-(max_chars // 2) :]}"


def is_reader_gone() -> bool:
    """True if stdout is a pipe whose other end is closed, as by `| head`."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def flush_or_discard() -> None:
    """Flush stdout, or discard what it does not take: the interpreter's own last flush would print a traceback."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse, and answer a mistyped flag with the nearest ones."""
    if {"-h", "--help"}.intersection(sys.argv[1:] if argv is None else argv):
        return parser.parse_args(argv)
    required = [each for each in (*parser._actions, *parser._mutually_exclusive_groups) if each.required]
    for each in required:  # or a mistyped flag would be answered with the one that it was meant to be
        each.required = False
    _, unknown = parser.parse_known_args(argv)
    for each in required:
        each.required = True
    flags = [item.partition("=")[0] for item in unknown if item.startswith("-")]
    if not unknown:
        return parser.parse_args(argv)
    known, lines = list(parser._option_string_actions), []
    for flag in flags:
        leaf = flag.lstrip("-").replace("-", "_").rpartition(".")[2]
        near = difflib.get_close_matches(flag, known, n=3, cutoff=0.75)
        near += [k for k in known if k.rpartition(".")[2] == leaf and k not in near]
        remedy = f". Did you mean {' or '.join(near[:3])}?" if near else f" (see {parser.prog} --help)"
        lines.append(f"no such flag: {flag}{remedy}")
    lines = lines or [f"unexpected argument: {unknown[0]!r}"]
    parser.exit(2, "".join(f"{parser.prog}: error: {line}\n" for line in lines))


def nested(values: Mapping[str, object]) -> SimpleNamespace:
    """Return flags as OpenRLHF's validation nests them: `args.ckpt.path` for "ckpt.path"."""
    args = SimpleNamespace()
    for name, value in values.items():
        *sections, leaf = name.split(".")
        section = args
        for each in sections:
            section = vars(section).setdefault(each, SimpleNamespace())
        setattr(section, leaf, value)
    return args
