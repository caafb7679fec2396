"""Launch scripts of OpenRLHF up to 0.10.1 run unchanged: their flat flags become the dotted ones of 0.11.2. So do the two dotted
flags that 0.11.2 has no more.

old_flags.txt says what became of each flag of 0.9.3 and 0.10.1, and of those that only releases back to 0.5.9 had.
`python -m openrlhf_ebpo.cli.old_flags` prints it as Markdown.

Defaults. A script relied on those of its release.
- 0.10.1: every default that it shares with 0.11.2 is the same there (held by a test): nothing is added.
- --prompt_max_len or --generate_max_len show a release up to 0.9.7. What changed since is set explicitly: the other of
  the two (1024), --rollout.micro_batch_size 8 and --train.micro_batch_size 4. A checkpoint limit of 1e8 GB was none.
- 0.9.8 to 0.9.10 had the micro batches of 0.9 and the flags of 0.10: nothing tells them from 0.10.1, whose defaults
  are taken. Micro batches change speed and memory; since 0.11.2's loss is a mean over the whole step, not the result.
- An old script that gives no length at all may be of either: a notice says that 0.11.2's default applies.
- Defaults older than 0.9.3 (--vllm_gpu_memory_utilization 0.9, --value_clip 0.2 and an importance-sampling threshold
  of 2 among them) are not restored: nothing in a command tells these releases apart.

Spelling. As in the old parser a flag may be shortened to an unambiguous beginning, values may follow `=`, and the last
of a repeated flag wins. Dotted flags and those of this project pass untouched beside old ones, but not two spellings
of one setting: that is an error, since a reader could not tell which one counts.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Literal, NamedTuple

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.seams.check import installed_release
from openrlhf_ebpo.seams.releases import RECOMMENDED


class Row(NamedTuple):
    """One old flag, as old_flags.txt has it.

    Attributes:
        new: the flags of 0.11.2 that it sets.
        kind: "to": `new` take its values as they are; "set": it stood alone and meant `value`; "combined": several old
            flags decide together (code below); "dropped": leaving it out changes nothing; "gone": what it did no longer
            exists, the command is refused.
        value: of "set"; of "combined" and "dropped", the number of values that it takes.
        note: what a reader must know: why it is dropped or gone, how it is combined.
    """

    new: tuple[str, ...]
    kind: Literal["to", "set", "combined", "dropped", "gone"]
    value: str
    note: str

    @property
    def takes(self) -> int:
        """Values, of a flag that is not passed on as it is."""
        return int(self.value) if self.kind in ("combined", "dropped") else 0


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
FLAG = re.compile(r"--?[A-Za-z][\w.\-]*")
DOTTED = {new for row in TABLE.values() for new in row.new}
# What a shortened flag can mean: beside these, the few flags that are gone would only make others ambiguous.
BEGINNINGS = {flag for flag, row in TABLE.items() if row.kind != "gone"} | DOTTED | {"--force", "--dry_run", "--help"}
SCHEMES = {"tis": ("token", "clip"), "icepop": ("token", "mask"), "seq-mask-tis": ("seq", "mask")}
SCHEMES["mis"] = SCHEMES["seq-mask-tis"]  # 0.9.3's name of it
OF_A_DRY_RUN = ("--dry_run", "--assume_cuda", "--sample")
ENABLE = ("--enable_vllm_is_correction", "--vllm_enable_is_correction", "--algo.advantage.is_correction_enable")
SCHEME = ("--vllm_is_correction_type", "--algo.advantage.is_correction_type")
LENGTH = 1024  # default of --prompt_max_len and of --generate_max_len
DEFAULTS_TO_0_9 = {"--rollout.micro_batch_size": "8", "--train.micro_batch_size": "4"}


class Given(NamedTuple):
    """A flag of a command line: its full name (None before the first flag), its values, and the words typed."""

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
    _refuse_gone(old)
    _refuse_two_spellings(command)
    renamed = [word for given in command for word in (_rename(given) if is_old(given.flag) else given.words)]
    last = {given.flag: given for given in command}
    flat = any("." not in given.flag for given in old)  # else the script knew today's lengths and defaults
    lengths, length_notices = _lengths(last) if flat else ([], [])
    correction, correction_notices = _is_correction(last)
    names = dict.fromkeys(given.flag for given in old)
    notices = [
        f"note: {len(names)} flags of an older OpenRLHF were translated to those of {RECOMMENDED}; "
        "--dry_run prints the new command",
        *(f"note: {name} is dropped: {TABLE[name].note}" for name in names if TABLE[name].kind == "dropped"),
        *length_notices,
        *correction_notices,
    ]
    return renamed + lengths + correction, notices


def is_old(flag: str | None) -> bool:
    """Whether the flag means something else, or nothing, in 0.11.2. What has a dot is of 0.10.2 to 0.11.1: where such a
    release is installed, it reads the flag itself."""
    if flag not in TABLE or TABLE[flag].new == (flag,):
        return False
    return "." not in flag or installed_release() == RECOMMENDED


def suggestions() -> dict[str, str]:
    """Old flag -> how an answer to a mistyped flag names it."""
    return {flag: f"{flag} (now {' '.join(row.new)})" for flag, row in TABLE.items() if is_old(flag) and row.new}


def shell_command(argv: list[str], program: str) -> str:
    """The command for a shell, a flag per line, without what is of a dry run alone."""
    lines = [shlex.join(given.words) for given in _split(argv) if given.words and given.flag not in OF_A_DRY_RUN]
    return " \\\n  ".join([program, *lines])


def markdown() -> str:
    """The table for the documentation."""
    rows = [f"| `{flag}` | {_successor(row)} | {row.note} |" for flag, row in TABLE.items()]
    return "\n".join([f"| old flag | flag of {RECOMMENDED} | note |", "|---|---|---|", *rows])


def _successor(row: Row) -> str:
    if not row.new:
        return {"dropped": "none, left out", "gone": "none, refused"}[row.kind]
    value = f" {row.value}" if row.kind == "set" else ""
    return ", ".join(f"`{new}{value}`" for new in row.new)


def _split(argv: list[str]) -> list[Given]:
    """Cut where argparse would: a negative number or a text with a blank is a value, not a flag."""
    command = [Given(None, [], [])]
    for word in argv:
        name, equals, value = word.partition("=")
        if FLAG.fullmatch(name):
            command.append(Given(_full_name(name), [value] if equals else [], [word]))
        else:
            command[-1].values.append(word)
            command[-1].words.append(word)
    return command


def _full_name(name: str) -> str:
    candidates = [flag for flag in BEGINNINGS if flag.startswith(name)]
    return name if name in TABLE or name in candidates or len(candidates) != 1 else candidates[0]


def _refuse_gone(old: list[Given]) -> None:
    gone = dict.fromkeys(given.flag for given in old if TABLE[given.flag].kind == "gone")
    if gone:
        raise UsageError("\n".join(f"{flag} of an older OpenRLHF is gone: {TABLE[flag].note}" for flag in gone))


def _refuse_two_spellings(command: list[Given]) -> None:
    typed: dict[str, str] = {}
    for given in command:
        for setting in _settings(given.flag):
            first = typed.setdefault(setting, given.flag)
            if first != given.flag and {first, given.flag} != {"--prompt_max_len", "--max_len"}:
                raise UsageError(f"{first} and {given.flag} both set {setting}: give only one of them")


def _settings(flag: str | None) -> tuple[str, ...]:
    """The flags of 0.11.2 that a flag of any release sets."""
    return TABLE[flag].new if flag in TABLE else (flag,) if flag in DOTTED else ()


def _rename(given: Given) -> list[str]:
    """What stands in the place of an old flag; nothing where it is dropped or combined with others at the end."""
    row = TABLE[given.flag]
    if row.kind == "to":
        return [word for new in row.new for word in _as(new, given)]
    _values(given)
    return [*row.new, row.value] if row.kind == "set" else []


def _as(new: str, given: Given) -> list[str]:
    """The words of a flag under its new name; --flag=value stays one word, its value may begin with a dash."""
    _, equals, value = given.words[0].partition("=")
    return [f"{new}{equals}{value}", *given.words[1:]]


def _values(given: Given) -> list[str]:
    takes = TABLE[given.flag].takes
    if len(given.values) != takes:
        raise UsageError(f"{given.flag} takes {takes or 'no'} value{'s' * (takes != 1)}, {len(given.values)} given")
    return given.values


def _lengths(last: dict[str | None, Given]) -> tuple[list[str], list[str]]:
    """Up to 0.9.7 prompt and response had a limit each; since then both share --data.max_len."""
    if "--prompt_max_len" not in last and "--generate_max_len" not in last:
        return _one_length(last)
    words = []
    response = _length(last, "--generate_max_len", "--max_new_tokens", "--rollout.max_new_tokens")
    total = _length(last, "--prompt_max_len") + response
    if "--data.max_len" not in last:
        words += ["--data.max_len", str(total)]
    if "--max_new_tokens" not in last and "--rollout.max_new_tokens" not in last:
        words += ["--rollout.max_new_tokens", str(response)]
    given = {setting for flag in last for setting in _settings(flag)}
    words += [word for flag, value in DEFAULTS_TO_0_9.items() if flag not in given for word in (flag, value)]
    notices = [f"note: lengths and defaults of OpenRLHF up to 0.9.7 are set explicitly: {' '.join(words)}"]
    if "--max_len" in last:
        notices.append("note: --max_len is dropped: --prompt_max_len and --generate_max_len decide, as they did")
    return words, notices


def _one_length(last: dict[str | None, Given]) -> tuple[list[str], list[str]]:
    if "--max_len" in last:
        return _as("--data.max_len", last["--max_len"]), []
    if not {"--data.max_len", "--max_new_tokens", "--rollout.max_new_tokens"} & set(last):
        return [], [
            "note: no length is given: prompt and response share --data.max_len's default, 2048 "
            "(OpenRLHF up to 0.9.7: 1024 each)"
        ]
    return [], []


def _length(last: dict[str | None, Given], *flags: str) -> int:
    for flag in flags:
        if flag in last:
            values = last[flag].values
            if len(values) != 1 or not values[0].strip().isdecimal():
                raise UsageError(f"{flag} is {' '.join(values)!r}; give one whole number of tokens")
            return int(values[0])
    return LENGTH


def _is_correction(last: dict[str | None, Given]) -> tuple[list[str], list[str]]:
    """The named schemes became a level and a mode."""
    typed = next((last[flag] for flag in SCHEME if flag in last and is_old(flag)), None)
    scheme = _values(typed)[0] if typed else "tis"
    if scheme not in SCHEMES:
        raise UsageError(f"{typed.flag} is {scheme!r}; OpenRLHF had {', '.join(SCHEMES)}")
    if not any(flag in last and is_old(flag) for flag in ENABLE):
        return [], [f"note: {typed.flag} is dropped: without {_enabling(typed.flag)} it does nothing"] if typed else []
    level, mode = SCHEMES[scheme]
    return ["--algo.advantage.is_correction_level", level, "--algo.advantage.is_correction_mode", mode], []


def _enabling(scheme: str) -> str:
    """The flag of the same release that puts a scheme to work."""
    return ENABLE[-1] if "." in scheme else ENABLE[0]


if __name__ == "__main__":
    print(markdown())
