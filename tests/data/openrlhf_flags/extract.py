"""Write the flags of train_ppo_ray from a published wheel of OpenRLHF: the lists that old_flags.py is tested against.

pip download --no-deps openrlhf==0.9.3 && python tests/data/openrlhf_flags/extract.py openrlhf-0.9.3-*.whl

writes 0.9.3.json next to this file: one object a flag. Only the `__main__` block up to parse_args is run, cut out
of the wheel by its syntax tree; nothing of the wheel is installed or imported.
"""

import argparse
import ast
import json
import math
import re
import sys
import zipfile
from datetime import datetime
from pathlib import Path

from openrlhf_ebpo.train.upstream_main import _find, _main_block

HERE = Path(__file__).parent
SOURCE = "openrlhf/cli/train_ppo_ray.py"
A_TIME = re.compile(r"\d{4}T\d\d:\d\d")


def main(wheel: str) -> None:
    release = Path(wheel).name.split("-")[1]
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(SOURCE))
        flags = flags_of(parser_of(archive.read(name).decode()))
    lines = ",\n".join(json.dumps(flag) for flag in flags)
    (HERE / f"{release}.json").write_text(f"[\n{lines}\n]\n")
    print(f"{release}: {len(flags)} flags")


def parser_of(source: str) -> argparse.ArgumentParser:
    body = _main_block(ast.parse(source), SOURCE)
    names = {"argparse": argparse, "datetime": datetime}
    exec(compile(ast.Module(body[: _find(body, "args = parser.parse_args()", SOURCE)], []), SOURCE, "exec"), names)
    return names["parser"]


def flags_of(parser: argparse.ArgumentParser) -> list[dict]:
    return [
        {
            "flag": action.option_strings[0],
            "action": type(action).__name__.strip("_").removesuffix("Action"),
            "type": action.type.__name__ if action.type else None,
            "nargs": action.nargs if action.nargs != 0 else None,
            "choices": action.choices,
            "default": plain(action.default),
        }
        for action in parser._actions
        if action.dest != "help"
    ]


def plain(default):
    """A default as JSON has it: run_name's holds the time of day."""
    if isinstance(default, float) and not math.isfinite(default):
        return str(default)
    return A_TIME.sub("<time>", default) if isinstance(default, str) else default


if __name__ == "__main__":
    for wheel in sys.argv[1:]:
        main(wheel)
