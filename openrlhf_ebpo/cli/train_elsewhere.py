"""`train --dry_run --assume_cuda`: a command checked on a machine without a GPU, as the machine that it is meant for would."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from openrlhf_ebpo.engines.cluster import gpus_needed
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.seams.stack import is_cpu_stack

NOT_TOLD = 0  # gigabytes


def add_flag(group) -> None:
    group.add_argument(
        "--assume_cuda",
        type=int,
        nargs="?",
        const=NOT_TOLD,
        metavar="GB",
        help="with --dry_run: check the command for a machine with GPUs, each of GB memory, on one without (a login node): what "
        "this machine could not run is let pass, and nothing is changed for it",
    )


def check_flag(flat: argparse.Namespace) -> None:
    """Raises UsageError where --assume_cuda stands without --dry_run, beside --sample, or with less than nothing."""
    if flat.assume_cuda is None:
        return
    if not flat.dry_run:
        raise UsageError(
            "--assume_cuda goes with --dry_run: add it, or leave --assume_cuda out to train on this machine"
        )
    if flat.sample is not None:
        raise UsageError(
            "--assume_cuda checks for another machine, and --sample starts an engine on this one: give one"
        )
    if flat.assume_cuda < 0:
        raise UsageError(
            f"--assume_cuda is {flat.assume_cuda}; give the memory of one GPU in GB, such as 80, or no number"
        )


def notices(args, gigabytes: int | None) -> Iterator[str]:
    """For whom the command was checked. args: upstream's, nested; gigabytes: of one GPU, None without the flag."""
    if gigabytes is None:
        return
    yield f"checked as for a machine with GPUs: {gpus_needed(args)}" + (f", of {gigabytes} GB" if gigabytes else "")
    if is_cpu_stack():
        yield (
            "not checked for it: its libraries and drivers (openrlhf-ebpo doctor, there). Let pass: what a machine without "
            "CUDA, such as this one, could not run"
        )
