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
import random
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from tiny import policy, tables, tasks
from tiny.cells import CELLS, Cell
from tiny.warm_starts import warm_start
from tqdm import tqdm

from openrlhf_ebpo.command import error_exit
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch, Estimator
from openrlhf_ebpo.files import write_json

LR = tables.COMMON_LR
BETAS, MAX_NORM, CLIP, WARMUP = (0.9, 0.95), 1.0, 0.2, 0.03
EVALUATIONS = 15
PASS_AT = (1, 4, 16, 64)
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


# Training


def train(cell: Cell, job: Job, weights: torch.Tensor, seeds: list[int], shape: policy.Shape, bar: tqdm) -> dict:
    """What was measured after each of `rollouts` rollouts, one value a seed."""
    estimator, entropy = made(job.estimator, cell.group)
    states = [estimator.initial() for _ in seeds]
    weights = weights.clone().requires_grad_()
    adam = torch.optim.AdamW([weights], lr=job.lr, betas=BETAS, weight_decay=0.0)
    heldout = examples(cell.task, [tasks.words()[0]] * len(seeds))
    rows = [{"rollouts": 0, **success(shape, weights, heldout)}]
    since: list[dict] = []
    for step, (words, uniforms) in enumerate(draws(cell, seeds, job.replicate), 1):
        adam.param_groups[0]["lr"] = job.lr * min(1.0, step / max(1, round(WARMUP * cell.steps)))
        prompts, answers = examples(cell.task, words)
        rollouts = policy.generate(shape, weights, prompts, uniforms)
        rewards = ((rollouts.tokens == answers[:, :, None]).all(-1)).double()
        advantages, states = estimated(estimator, states, words, rollouts, rewards)
        since.append({"all_fail": (rewards == 0).all(-1).double().mean(-1)})
        for part in range(cell.mini_batches):
            chosen = slice(part * cell.prompts // cell.mini_batches, (part + 1) * cell.prompts // cell.mini_batches)
            mini_batch = policy.Rollouts(*(each[:, chosen] for each in rollouts))
            since[-1] |= update(shape, weights, adam, prompts[:, chosen], mini_batch, advantages[:, chosen], entropy)
        bar.update()
        if step % (cell.steps // EVALUATIONS) == 0:
            means = {name: torch.stack([each[name] for each in since]).mean(0) for name in since[0]}
            rows.append({"rollouts": step * cell.rollouts, **success(shape, weights, heldout), **means})
            since = []
    return {"evaluations": [{name: rounded(value) for name, value in row.items()} for row in rows]}


def made(spec: str, group: int) -> tuple[Estimator, float]:
    """The estimator, and the weight of the entropy in the loss, of NAME[.PRESET][+PART=CHOICE …][+entropy=WEIGHT].

    Raises:
        UsageError: there is no such estimator or part, or nothing but training itself computes it.
    """
    named, *parts = spec.split("+")
    name, _, preset = named.partition(".") if ":" not in named else (named, "", "")
    options = dict(part.partition("=")[::2] for part in parts)
    try:
        entropy = float(options.pop("entropy", 0))
        config = EstimatorConfig(n_samples_per_prompt=group, preset=preset or "paper", **options)
        estimator = registry.offline(registry.known(name), config)
    except (argparse.ArgumentTypeError, TypeError, ValueError) as error:
        raise UsageError(f"--estimators {spec}: {error}") from None
    if estimator is None:
        raise UsageError(f"--estimators {spec}: it cannot be computed from a batch's rewards")
    return estimator, entropy


def draws(cell: Cell, seeds: list[int], replicate: int) -> Iterator[tuple[list[list[str]], torch.Tensor]]:
    """Each step's words of each seed, (S, M), and the random numbers its responses are drawn with, (S, M, G, T)."""
    chosen = [random.Random(f"prompts {seed} {replicate}") for seed in seeds]
    generators = [torch.Generator().manual_seed(1000 * replicate + seed) for seed in seeds]
    for _ in range(cell.steps):
        words = [draw.sample(tasks.words()[1], cell.prompts) for draw in chosen]
        size = (cell.prompts, cell.group, tasks.RESPONSE)
        yield words, torch.stack([torch.rand(size, generator=each) for each in generators])


def examples(task: str, words: list[list[str]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts (S, M, P) and answers (S, M, T)."""
    spelled = [[tasks.ANSWERS[task](word) for word in each] for each in words]
    return torch.stack([*map(tasks.prompts, words)]), torch.stack([*map(tasks.answers, spelled)])


def estimated(estimator, states: list, words, rollouts: policy.Rollouts, rewards) -> tuple[torch.Tensor, list]:
    """Advantages (S, M, G), each seed's from its own state, and the states after them."""
    lengths = rollouts.mask.sum(-1).numpy()
    weights = ((1 - rollouts.log_probs.double().exp()) ** 2 * rollouts.mask).sum(-1).numpy()
    steps = [
        estimator.step(
            Batch.of(rewards[s], np.ones(rewards[s].shape, bool), words[s], (), lengths[s], weights[s]), state
        )
        for s, state in enumerate(states)
    ]
    return torch.tensor(np.stack([step.advantages for step in steps]), dtype=torch.float32), [s.state for s in steps]


def update(shape, weights, adam, prompts, rollouts: policy.Rollouts, advantages, entropy_weight: float) -> dict:
    """One optimizer step; the gradient norm and the entropy of each seed, (S,)."""
    log_probs, distributions = policy.log_probs(shape, weights, prompts, rollouts.tokens)
    count = rollouts.mask.sum((1, 2, 3))
    ratio = (log_probs - rollouts.log_probs).exp()
    advantages = advantages[..., None]
    surrogate = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    loss = -(surrogate * rollouts.mask).sum((1, 2, 3)) / count
    with torch.set_grad_enabled(entropy_weight > 0):
        entropy = (-(distributions.exp() * distributions).sum(-1) * rollouts.mask).sum((1, 2, 3)) / count
    adam.zero_grad()
    (loss - entropy_weight * entropy).sum().backward()
    norm = weights.grad.norm(dim=1, keepdim=True)
    weights.grad *= (MAX_NORM / (norm + 1e-6)).clamp(max=1.0)
    adam.step()
    return {"grad_norm": norm[:, 0], "entropy": entropy.detach()}


def success(shape: policy.Shape, weights, heldout: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
    """pass@k of each seed on the held-out words, (S,): the chance that one of k responses is right."""
    rates = policy.success(shape, weights, *heldout).double()
    return {f"pass@{k}": (1 - (1 - rates) ** k).mean(-1) for k in PASS_AT}


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
            made(job.estimator, CELLS[job.cell].group)  # bad names are told before hours of training
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
