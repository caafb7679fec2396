"""Warm start, training with EBPO and with GRPO, evaluation: `python -m openrlhf_ebpo.quickstart [RUN_DIR] [--force]`.

RUN_DIR/
  data/ base/ warm_start/     tasks, random model, model after train_sft: what both arms begin with
  arms/NAME/                  one training: checkpoints/, model/, and the run directory run/
  logs/                       full output of each stage
  comparison.png              the runs side by side
  result.json                 written last: the quickstart is finished

Stages whose results exist are skipped, so a second call resumes where the first stopped.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.quickstart.compare import ARMS, ESTIMATORS, compare, table
from openrlhf_ebpo.quickstart.stages import Training, preparation, run_stages
from openrlhf_ebpo.run.run_log import move_aside

ABOUT = """Train a tiny model with EBPO and with GRPO through OpenRLHF, Ray, DeepSpeed and vLLM on any machine.

An interrupted run is resumed; of a finished one the table is printed.

  bash scripts/quickstart.sh                     train, evaluate and compare in runs/quickstart
  bash scripts/quickstart.sh OTHER_DIR --force   start over in another folder
  openrlhf-ebpo space --runs runs/quickstart     look at the two runs in a browser"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_dir",
        nargs="?",
        default="runs/quickstart",
        type=Path,
        metavar="RUN_DIR",
        help="folder of the quickstart (default: runs/quickstart)",
    )
    parser.add_argument("--force", action="store_true", help="move what is in RUN_DIR aside and start over")


def run(options: argparse.Namespace) -> None:
    directory = options.run_dir.absolute()
    check_directory(directory, options.force)
    result = directory / "result.json"
    try:
        if not result.exists():
            (directory / ARMS).mkdir(parents=True, exist_ok=True)
            run_stages(stages(directory))
    except KeyboardInterrupt:
        again = f"the same command resumes from here: bash scripts/quickstart.sh {options.run_dir}"
        raise KeyboardInterrupt(again) from None
    print(table(json.loads(result.read_text()), directory))


def check_directory(directory: Path, force: bool) -> None:
    """Stop where something else is, or move it aside.

    Raises:
        ReportedError: RUN_DIR holds something else.
    """
    if directory.exists() and not directory.is_dir():
        raise ReportedError(f"{directory} is a file; name a directory")
    if not directory.exists() or not any(directory.iterdir()) or ((directory / ARMS).is_dir() and not force):
        return
    if force:
        print(f"moved the old run to {move_aside(directory)}")
    else:
        raise ReportedError(
            f"{directory} holds something else than a quickstart; name another directory, or use --force"
        )


def stages(directory: Path) -> list:
    return [
        *preparation(directory),
        *(Training(directory, directory / ARMS / name, name).stage for name in ESTIMATORS),
        (
            "evaluation: held-out tasks, before and after",
            (directory / "result.json").exists,
            partial(compare, directory),
        ),
    ]


main = command("scripts/quickstart.sh", ABOUT, add_flags, run)

if __name__ == "__main__":
    main()
