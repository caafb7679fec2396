"""Advantage estimators compared by what a policy learns: many seeds of a small transformer in one process.

The quickstart's task (words to spell backward, exact match) and the real command's policy loss (PPO clip 0.2, mean over
tokens) and optimizer (Adam, betas 0.9 and 0.95, gradient norm at most 1, constant learning rate after a warm-up), without
Ray and vLLM. All seeds are one batch. A seed has its own warm start, prompts and random numbers; all estimators of a
seed begin with the same policy and see the same prompts. Success on held-out words, and with it pass@k, is exact:
the policy's probability of the one right answer.

    python benchmarks/learning.py --list                              cells and estimators
    python benchmarks/learning.py --cells g2-5 --output runs/bench    train what is not there yet, a JSON file a run
    python benchmarks/learning.py --table --output runs/bench         the tables, in Markdown, of what is there

An estimator is a name of the registry, or a class of one's own (MODULE:NAME). EBPO's presets and parts follow its name
(ebpo.corrected+weights=score); +entropy=0.01 adds an entropy bonus to the loss. `--replicate 1` trains with other random
numbers: two replicates of one estimator show what difference is noise.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tiny import tables
from tqdm import tqdm

from openrlhf_ebpo.command import error_exit
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.figures.lab import learner, policy, tasks
from openrlhf_ebpo.figures.lab.cells import CELLS, LR, Cell
from openrlhf_ebpo.figures.lab.warm_starts import warm_start
from openrlhf_ebpo.files import write_json

ESTIMATORS = ["group_norm", "ebpo", "score_weighted", "dr_grpo", "james_stein", "opo"]
DIGITS = 5


@dataclass(frozen=True)
class Job:
    """One estimator in one cell at one learning rate; replicates differ in their random numbers only."""

    cell: str
    estimator: str
    lr: float = LR
    replicate: int = 0

    def file(self, output: Path) -> Path:
        estimator = re.sub("[^a-zA-Z0-9_.=-]", "-", self.estimator)
        return output / self.cell / f"{estimator}-lr{self.lr:g}-r{self.replicate}.json"


def run(jobs: list[Job], seeds: list[int], shape: policy.Shape, output: Path) -> None:
    """Train what is not there yet.

    Raises:
        UsageError: a result is there, of another setting.
    """
    missing = [job for job in jobs if not done(job, seeds, shape, output)]
    steps = sum(CELLS[job.cell].steps for job in missing)
    with tqdm(total=steps, unit="step", mininterval=1 if sys.stderr.isatty() else 30) as bar:
        for job in missing:
            bar.set_description(f"{job.cell} {job.estimator} lr {job.lr:g}")
            cell, started = CELLS[job.cell], time.time()
            weights = warm_start(output / "warm_starts", shape, cell.task, cell.examples, cell.start, seeds)
            measured = train(cell, job, weights, seeds, shape, bar)
            seconds = round(time.time() - started)
            write_json(job.file(output), {**settings(job, seeds, shape), "seconds": seconds, **measured})


def settings(job: Job, seeds: list[int], shape: policy.Shape) -> dict:
    return {"job": asdict(job), "cell": asdict(CELLS[job.cell]), "seeds": seeds, "shape": asdict(shape)}


def done(job: Job, seeds: list[int], shape: policy.Shape, output: Path) -> bool:
    """Whether the result is there, of these seeds at least."""
    if not job.file(output).exists():
        return False
    found, wanted = json.loads(job.file(output).read_text()), settings(job, seeds, shape)
    for name in wanted:
        if (found[name][: len(seeds)] if name == "seeds" else found[name]) != wanted[name]:
            raise UsageError(
                f"{job.file(output)} has other {name} ({found[name]}, now {wanted[name]}): move it away, or name another "
                "--output"
            )
    return True


def train(cell: Cell, job: Job, weights: torch.Tensor, seeds: list[int], shape: policy.Shape, bar: tqdm) -> dict:
    """What was measured after each of `rollouts` rollouts, one value a seed."""
    batches = learner.draws(cell, seeds, job.replicate)
    rows = learner.train(cell, job.estimator, weights, batches, shape, job.lr, bar.update)
    return {"evaluations": [{name: rounded(value) for name, value in row.items()} for row in rows]}


def rounded(value):
    return [round(each, DIGITS) for each in value.tolist()] if isinstance(value, torch.Tensor) else value


# The command


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    if args.list:
        print("\n".join(f"{name:<14}{cell.title}" for name, cell in CELLS.items()))
        print("\n" + registry.described().replace("; ", "\n"))
    elif args.table or args.export:
        tables.show(args.output, args.cells, args.export)
    else:
        torch.set_num_threads(args.threads)
        jobs = [Job(c, e, lr, args.replicate) for c in args.cells for lr in args.lr for e in args.estimators]
        for job in jobs:
            learner.made(job.estimator, CELLS[job.cell].group)  # bad names are told before hours of training
        run(jobs, list(range(args.seeds)), tasks.shape(args.width, args.layers), args.output)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the cells and the registry's estimators")
    parser.add_argument("--table", action="store_true", help="print the tables of the results in --output")
    parser.add_argument(
        "--export", type=Path, metavar="FILE", help="as --table, and write what the tables show to FILE"
    )
    parser.add_argument("--cells", nargs="+", choices=[*CELLS], default=[*CELLS], metavar="CELL")
    parser.add_argument("--estimators", nargs="+", default=ESTIMATORS, metavar="NAME")
    parser.add_argument("--lr", type=float, nargs="+", default=[LR], help=f"learning rates ({LR:g})")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--replicate", type=int, default=0)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="of torch (2)")
    parser.add_argument(
        "--output", type=Path, default=Path("runs/learning"), help="results, a file a run; for --table also an --export"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    with error_exit():
        main()
