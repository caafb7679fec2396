"""Advantage estimators compared by what a policy learns: many seeds of a small transformer in one process.

The quickstart's task (words to spell backward, exact match) and the real command's policy loss (PPO clip 0.2, mean over
tokens) and optimizer (Adam, betas 0.9 and 0.95, gradient norm at most 1, constant learning rate after a warm-up),
without Ray and vLLM. All seeds are one batch. A seed has its own warm start, prompts and random numbers; all estimators
of a seed begin with the same policy and see the same prompts. Success on held-out words, and with it pass@k, is exact:
the policy's probability of the one right answer.

    python research/learning.py --list                              cells and estimators
    python research/learning.py --cells g2-5 --output runs/bench    train what is not there yet
    python research/learning.py --table --output runs/bench         the tables, in Markdown, of existing results

An estimator is a name of the registry, or your class (MODULE:NAME). EBPO's presets and parts follow its name
(ebpo.corrected+weights=score); +entropy=0.01 adds an entropy bonus to the loss. `--replicate 1` trains with other
random numbers: two replicates of one estimator show what difference is noise.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from lab import learner, summaries
from lab.cells import CELLS, LR
from lab.jobs import Learning
from lab.measured import measure
from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator import registry

ESTIMATORS = ["group_norm", "ebpo", "score_weighted", "dr_grpo", "james_stein", "opo"]


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--list", action="store_true", help="print the cells and the registry's estimators")
    add("--table", action="store_true", help="print the tables of the results in --output")
    add("--export", type=Path, metavar="FILE", help="as --table, and write what the tables show to FILE")
    add("--cells", nargs="+", choices=[*CELLS], default=[name for name in CELLS if name != "tiny"], metavar="CELL")
    add("--estimators", nargs="+", default=ESTIMATORS, metavar="NAME")
    add("--lr", type=float, nargs="+", default=[LR], help=f"learning rates ({LR:g})")
    add("--seeds", type=int, default=20)
    add("--replicate", type=int, default=0)
    add("--width", type=int, default=32)
    add("--layers", type=int, default=1)
    add("--threads", type=int, default=2, help="of torch (2)")
    add(
        "--output",
        type=Path,
        default=Path("runs/learning"),
        help="where results are kept; for --table also an --export",
    )


def run(args: argparse.Namespace) -> None:
    if args.list:
        print("\n".join(f"{name:<24}{cell.title}" for name, cell in CELLS.items()))
        print("\n" + registry.describe_estimators().replace("; ", "\n"))
    elif args.table or args.export:
        summaries.show(args.output, args.cells, args.export)
    else:
        if args.seeds < 2:
            raise UsageError(f"--seeds is {args.seeds}; give 2 or more: an interval needs them")
        torch.set_num_threads(args.threads)
        measure(jobs_of(args), range(args.seeds), args.output)


def jobs_of(args: argparse.Namespace) -> list[Learning]:
    """
    Raises:
        UsageError: an estimator that is not known, before hours of training.
    """
    for name in args.estimators:
        for cell in args.cells:
            learner.build(name, CELLS[cell].group)
    settings = {"replicate": args.replicate, "width": args.width, "layers": args.layers}
    return [
        Learning(CELLS[cell], estimator, lr=lr, **settings)
        for cell in args.cells
        for lr in args.lr
        for estimator in args.estimators
    ]


main = command("python research/learning.py", __doc__, add_flags, run)

if __name__ == "__main__":
    main()
