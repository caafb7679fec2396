"""RunSettings: where a training is recorded and saves, and which run it continues. With their flags."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from openrlhf_ebpo.errors import raise_problems


@dataclass(frozen=True)
class RunSettings:
    """Settings of a run.

    run_dir: the run directory. ckpt_path: the folder of checkpoints. estimator: `gae` also saves a critic.
    name: of the run.
    resume: whether the command may continue an existing run. load_step: resume from the checkpoint of this step;
        None: the newest. force: move an existing run aside.
    rollouts_every: the responses of every so many steps are kept.
    """

    run_dir: Path
    ckpt_path: Path
    estimator: str = "ebpo"
    name: str = ""
    resume: bool = False
    load_step: int | None = None
    force: bool = False
    rollouts_every: int = 1

    @classmethod
    def from_args(cls, args, force: bool = False) -> RunSettings:
        """Read upstream's nested arguments. force: a flag of the first start alone, not of a restart."""
        logger, ckpt = args.logger, args.ckpt
        return cls(
            run_dir=Path(logger.run_dir or Path(ckpt.output_dir) / "run"),
            ckpt_path=Path(ckpt.path),
            estimator=args.algo.advantage.estimator,
            name=logger.wandb.run_name,
            resume=ckpt.load_enable or ckpt.load_step is not None,
            load_step=ckpt.load_step,
            force=force,
            rollouts_every=logger.rollouts_every,
        )

    def check(self) -> None:
        """Raises UsageError if a number is out of range."""
        problems = []
        if self.load_step is not None and self.load_step < 1:
            problems.append(f"--ckpt.load_step is {self.load_step}; give a step from 1 on, or start over with --force")
        if self.rollouts_every < 1:
            problems.append(f"--logger.rollouts_every is {self.rollouts_every}; give 1 or more")
        raise_problems(problems)


def add_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--ckpt.load_step",
        type=int,
        metavar="N",
        help="resume from the checkpoint of step N, and not from the newest. What comes after it, checkpoints too, is "
        "set aside (docs/runs.md). For one time: take it out of the command before you repeat it",
    )
    group.add_argument(
        "--logger.run_dir",
        metavar="DIR",
        help="directory in which the run is recorded (default: <ckpt.output_dir>/run)",
    )
    group.add_argument(
        "--logger.rollouts_every", type=int, default=1, metavar="N", help="keep the responses of every N-th step"
    )
    group.add_argument(
        "--force",
        action="store_true",
        help="move an existing run directory aside and, without --ckpt.load_enable, the checkpoints in --ckpt.path too",
    )
