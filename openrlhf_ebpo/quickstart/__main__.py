"""Warm start, training with each estimator, evaluation: `python -m openrlhf_ebpo.quickstart [RUN_DIR] [--estimators NAME ...] [--force]`.

RUN_DIR/
  data/ base/ warm_start/     tasks, random model, model after train_sft: what all arms begin with
  arms/estimators.json        what is compared
  arms/NAME/                  one training: checkpoints/, model/, and the run directory run/
  logs/                       full output of each stage
  comparison.png              the runs side by side
  result.json                 written last: the quickstart is finished

Every stage whose result is there is passed over, so a second call resumes where the first stopped.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.quickstart.compare import arm_of, compare, table
from openrlhf_ebpo.quickstart.launch import StageFailed
from openrlhf_ebpo.quickstart.stages import Training, preparation, run_stages
from openrlhf_ebpo.run.run_log import move_aside

ESTIMATORS = ("ebpo", "group_norm")

ABOUT = """Train a tiny model with EBPO and with GRPO through OpenRLHF, Ray, DeepSpeed and vLLM, on any machine, and compare.

On a finished run: print its table. On an interrupted one: resume."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", nargs="?", default="runs/quickstart", type=Path, metavar="RUN_DIR")
    parser.add_argument(
        "--estimators",
        nargs="+",
        type=registry.known,
        metavar="NAME",
        help="one training each, all else the same (default: ebpo group_norm). One that RUN_DIR lacks is added to what is "
        f"there. {registry.described()}",
    )
    parser.add_argument("--force", action="store_true", help="move what is in RUN_DIR aside and start over")


def run(options: argparse.Namespace) -> None:
    if "gae" in (options.estimators or ()):
        raise UsageError("--estimators gae learns with a critic, and the quickstart trains none")
    directory = options.run_dir.absolute()
    check_directory(directory, options.force)
    estimators = planned(directory, options.estimators or ())
    try:
        if not finished(directory, estimators):
            write_json(plan_of(directory), estimators)
            run_stages(stages(directory, estimators))
    except KeyboardInterrupt:
        again = f"the same command resumes from here: bash scripts/quickstart.sh {options.run_dir}"
        raise KeyboardInterrupt(again) from None
    print(table(json.loads((directory / "result.json").read_text()), directory))


def check_directory(directory: Path, force: bool) -> None:
    """Stop where something else is, or move it aside.

    Raises:
        StageFailed: RUN_DIR holds something else.
    """
    if directory.exists() and not directory.is_dir():
        raise StageFailed(f"{directory} is a file; name a directory")
    if not directory.exists() or not any(directory.iterdir()) or (plan_of(directory).exists() and not force):
        return
    if force:
        print(f"moved the old run to {move_aside(directory)}")
    else:
        raise StageFailed(f"{directory} holds something else than a quickstart; name another directory, or use --force")


def plan_of(directory: Path) -> Path:
    return directory / "arms" / "estimators.json"


def planned(directory: Path, wanted: Sequence[str]) -> list[str]:
    """List what is compared: the estimators that were wanted when it began, and those that are wanted now."""
    begun = json.loads(plan_of(directory).read_text()) if plan_of(directory).exists() else []
    return list(dict.fromkeys([*begun, *(wanted or (begun or ESTIMATORS))]))


def finished(directory: Path, estimators: Sequence[str]) -> bool:
    result = directory / "result.json"
    return result.exists() and list(json.loads(result.read_text())["arms"]) == list(estimators)


def stages(directory: Path, estimators: Sequence[str]) -> list:
    done = partial(finished, directory, estimators)
    return [
        *preparation(directory),
        *(Training(directory, arm_of(directory, name), name).stage for name in estimators),
        ("evaluation: held-out tasks, before and after", done, partial(compare, directory, estimators)),
    ]


main = command("scripts/quickstart.sh", ABOUT, add_flags, run)

if __name__ == "__main__":
    main()
