"""Launch scripts of OpenRLHF up to 0.10.1 run unchanged: their flat flags become the dotted ones of 0.11.2, and so do
two dotted flags that 0.11.2 no longer has. old_flags.txt has a line for each flag of 0.9.3 and 0.10.1, and for those
that only releases back to 0.5.9 had.

Defaults. A script relied on those of its release.
- 0.10.1: every default that it shares with 0.11.2 is the same there (held by a test): nothing is added.
- --prompt_max_len or --generate_max_len show a release up to 0.9.7. What changed since is set explicitly: the other of
  the two (1024), --rollout.micro_batch_size 8 and --train.micro_batch_size 4. A checkpoint limit of 1e8 GB was none.
- 0.9.8 to 0.9.10 had the micro batches of 0.9 and the flags of 0.10: nothing tells them from 0.10.1, whose defaults
  are taken. Micro batches change speed and memory; since 0.11.2's loss is a mean over the step, not the result.
- An old script that gives no length at all may be of either: a notice says that 0.11.2's default applies.
- Defaults older than 0.9.3 are not restored: nothing in a command tells these releases apart.

As in the old parser, values may follow `=`, and the last of a repeated flag wins. Dotted flags and those of this
project pass unchanged; two spellings of one setting are an error, since a reader could not tell which one counts.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from openrlhf_ebpo.errors import UsageError, raise_problems
from openrlhf_ebpo.upstream.releases import RECOMMENDED


class Row(NamedTuple):
    """One old flag.

    Attributes:
        new: the flags of 0.11.2 that it sets.
        kind: "to": `new` take its values as they are; "set": it stood alone and meant `value`; "combined": several old
            flags decide together (code below); "dropped": leaving it out changes nothing; "gone": the command is
            refused.
        value: of "set"; of "combined" and "dropped", the number of values that it takes.
        note: why it is dropped or gone, how it is combined.
    """

    new: tuple[str, ...]
    kind: str
    value: str
    note: str


def load_table() -> dict[str, Row]:
    """The rows of old_flags.txt by flag."""
    table = {}
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            flag, new, kind, note = (line.split("\t") + [""] * 3)[:4]
            kind, _, value = kind.partition(" ")
            table[flag] = Row(tuple(new.split()), kind or "to", value, note)
    return table


TABLE = load_table()
FLAG_PATTERN = re.compile(r"--?[A-Za-z][\w.\-]*")
SCHEMES = {"tis": ("token", "clip"), "icepop": ("token", "mask"), "seq-mask-tis": ("seq", "mask")}
SCHEMES["mis"] = SCHEMES["seq-mask-tis"]  # 0.9.3's name of it
DRY_RUN_FLAGS = ("--dry_run", "--assume_cuda", "--sample")
ENABLE = ("--enable_vllm_is_correction", "--vllm_enable_is_correction", "--algo.advantage.is_correction_enable")
SCHEME = ("--vllm_is_correction_type", "--algo.advantage.is_correction_type")
LENGTHS = ("--prompt_max_len", "--generate_max_len", "--max_len")  # they decide together
DEFAULT_LENGTH = "1024"  # of --prompt_max_len and of --generate_max_len
DEFAULTS_TO_0_9 = {"--rollout.micro_batch_size": "8", "--train.micro_batch_size": "4"}


class Given(NamedTuple):
    """A flag of a command line (None before the first), its values, and the words typed."""

    flag: str | None
    values: list[str]
    words: list[str]


def translate(argv: list[str]) -> tuple[list[str], list[str]]:
    """Old flags into those of 0.11.2; a command without old flags is returned as it is.

    Returns:
        The new arguments, and notices for the user; values are passed on unread, save lengths and the name of the
        importance-sampling scheme, so no notice holds a secret.

    Raises:
        UsageError: a flag whose purpose is gone, two spellings of one setting, a length that is not a number.
    """
    command = _split(argv)
    old = [given for given in command if is_old(given.flag)]
    if not old:
        return list(argv), []
    names = dict.fromkeys(given.flag for given in old)
    gone = [name for name in names if TABLE[name].kind == "gone"]
    raise_problems([f"{name} of an older OpenRLHF is gone: {TABLE[name].note}" for name in gone])
    typed: dict[str | None, str | None] = {}
    for flag, setting in [(given.flag, setting) for given in command for setting in _settings(given.flag)]:
        first = typed.setdefault(setting, flag)
        if first != flag and {first, flag} != {"--prompt_max_len", "--max_len"}:
            raise UsageError(f"{first} and {flag} both set {setting}: give only one of them")
    renamed = [word for given in command for word in (_rename(given) if is_old(given.flag) else given.words)]
    last = {given.flag: given for given in command}
    flat = any("." not in name for name in names)  # else the script knew today's lengths and defaults
    lengths, length_notices = _lengths(last) if flat else ([], [])
    correction, correction_notices = _is_correction(last)
    notices = [
        f"note: {len(names)} flags of an older OpenRLHF were translated to those of {RECOMMENDED}; "
        "--dry_run prints the new command",
        *(f"note: {name} is dropped: {TABLE[name].note}" for name in names if TABLE[name].kind == "dropped"),
        *length_notices,
        *correction_notices,
    ]
    return renamed + lengths + correction, notices


def is_old(flag: str | None) -> bool:
    """True for a flag that means something else, or nothing, in 0.11.2."""
    return flag in TABLE and TABLE[flag].new != (flag,)


def shell_command(argv: list[str], program: str) -> str:
    """The command for a shell, a flag per line, without the flags of a dry run."""
    lines = [shlex.join(given.words) for given in _split(argv) if given.words and given.flag not in DRY_RUN_FLAGS]
    return " \\\n  ".join([program, *lines])


def _split(argv: list[str]) -> list[Given]:
    """Cut where argparse would: a negative number or a text with a blank is a value, not a flag."""
    command = [Given(None, [], [])]
    for word in argv:
        name, equals, value = word.partition("=")
        if FLAG_PATTERN.fullmatch(name):
            command.append(Given(name, [value] if equals else [], [word]))
        else:
            command[-1].values.append(word)
            command[-1].words.append(word)
    return command


def _settings(flag: str | None) -> tuple[str | None, ...]:
    """The flags of 0.11.2 that a flag of any release sets."""
    return TABLE[flag].new if flag in TABLE else (flag,)


def _rename(given: Given) -> list[str]:
    """The words in place of an old flag; none if it is dropped, or combined with others at the end."""
    row = TABLE[given.flag]
    if row.kind == "to":
        return [word for new in row.new for word in _as(new, given)]
    takes = 0 if row.kind == "set" else int(row.value)
    if len(given.values) != takes:
        raise UsageError(f"{given.flag} takes {takes or 'no'} value{'s' * (takes != 1)}, {len(given.values)} given")
    return [*row.new, row.value] if row.kind == "set" else []


def _as(new: str, given: Given) -> list[str]:
    """The words of a flag under its new name; --flag=value stays one word, its value may begin with a dash."""
    _, equals, value = given.words[0].partition("=")
    return [f"{new}{equals}{value}", *given.words[1:]]


def _lengths(last: dict[str | None, Given]) -> tuple[list[str], list[str]]:
    """Translate the length flags: up to 0.9.7 prompt and response had a limit each; since then both share
    --data.max_len."""
    response_flags = ("--max_new_tokens", "--rollout.max_new_tokens")
    if "--prompt_max_len" in last or "--generate_max_len" in last:
        response = _length(last, "--generate_max_len", *response_flags)
        defaults = {
            "--data.max_len": str(_length(last, "--prompt_max_len") + response),
            "--rollout.max_new_tokens": str(response),
            **DEFAULTS_TO_0_9,
        }
        given = {setting for flag in last if flag not in LENGTHS for setting in _settings(flag)}
        words = [word for flag, value in defaults.items() if flag not in given for word in (flag, value)]
        notices = [f"note: lengths and defaults of OpenRLHF up to 0.9.7 are set explicitly: {' '.join(words)}"]
        if "--max_len" in last:
            notices.append("note: --max_len is dropped: --prompt_max_len and --generate_max_len decide, as they did")
        return words, notices
    if "--max_len" in last:
        return _as("--data.max_len", last["--max_len"]), []
    if last.keys() & {"--data.max_len", *response_flags}:
        return [], []
    return [], [
        "note: no length is given: prompt and response share --data.max_len's default, 2048 "
        "(OpenRLHF up to 0.9.7: 1024 each)"
    ]


def _length(last: dict[str | None, Given], *flags: str) -> int:
    flag = next((flag for flag in flags if flag in last), None)
    values = last[flag].values if flag else [DEFAULT_LENGTH]
    if len(values) != 1 or not values[0].strip().isdecimal():
        raise UsageError(f"{flag} is {' '.join(values)!r}; give one whole number of tokens")
    return int(values[0])


def _is_correction(last: dict[str | None, Given]) -> tuple[list[str], list[str]]:
    """The named schemes became a level and a mode."""
    typed = next((last[flag] for flag in SCHEME if flag in last and is_old(flag)), None)
    scheme = typed.values[0] if typed else "tis"
    if scheme not in SCHEMES:
        raise UsageError(f"{typed.flag} is {scheme!r}; OpenRLHF had {', '.join(SCHEMES)}")
    if any(flag in last and is_old(flag) for flag in ENABLE):
        level, mode = SCHEMES[scheme]
        return ["--algo.advantage.is_correction_level", level, "--algo.advantage.is_correction_mode", mode], []
    if typed is None:
        return [], []
    enabling = ENABLE[-1] if "." in typed.flag else ENABLE[0]  # of the same release
    return [], [f"note: {typed.flag} is dropped: without {enabling} it does nothing"]
