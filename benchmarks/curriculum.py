"""What --data.order is worth: rollouts until a small policy reaches a given held-out success, by the order of its prompts.

The policy, the task and the optimizer are learning.py's. Each seed trains on a pool of words of its own, which it sees
several times. Orders: shuffle; easy_to_hard, one pass over the run, sorted by the policy's own success at the start;
adaptive, as --data.order adaptive draws (openrlhf_ebpo/training/curriculum.py). In some cells no answer to some of the
prompts is ever right, as with wrong labels or tasks far out of reach. All orders of a seed start with the same policy.

    python benchmarks/curriculum.py --output runs/curriculum            train what is not there yet, and print the table
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from openrlhf_ebpo.estimator.contract import Batch
from openrlhf_ebpo.figures.lab import learner, policy, tasks
from openrlhf_ebpo.figures.lab.cells import LR, Cell
from openrlhf_ebpo.figures.lab.warm_starts import warm_start
from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.training import curriculum

POOL, EVERY = 600, 5  # prompts of a seed; steps between evaluations
ORDERS = ("shuffle", "easy_to_hard", "adaptive")


@dataclass(frozen=True)
class Regime:
    """hopeless: share of the pool that never passes. target: the held-out success that rollouts are counted to."""

    cell: Cell
    target: float
    hopeless: float = 0.0


REGIMES = {
    "mixed": Regime(Cell(0.4, examples="mixed"), 0.7),
    "even": Regime(Cell(0.3), 0.6),
    "hopeless-70": Regime(Cell(0.3), 0.5, hopeless=0.7),
    "hopeless-70-sparse": Regime(Cell(0.05, group=2), 0.1, hopeless=0.7),
}


class Pool:
    """The prompts of one seed, and how they are ordered."""

    def __init__(self, seed: int, regime: Regime, order: str):
        draw = random.Random(f"pool {seed}")
        self.words = draw.sample(tasks.words()[1], POOL)
        self.hopeless = np.array([draw.random() < regime.hopeless for _ in range(POOL)])
        self.rng = np.random.default_rng((7, seed))
        self.state = curriculum.start(np.zeros(POOL, int))
        self.batches = getattr(self, order)(regime.cell)
        self.easy = np.arange(POOL)  # places, the easiest first

    def shuffle(self, cell: Cell) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        waiting: list[int] = []
        while True:
            while len(waiting) < cell.prompts:
                waiting += self.rng.permutation(POOL).tolist()
            yield np.array(waiting[: cell.prompts]), np.ones(cell.prompts)
            waiting = waiting[cell.prompts :]

    def easy_to_hard(self, cell: Cell) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        places = np.arange(cell.steps * cell.prompts) * POOL // (cell.steps * cell.prompts)
        for chosen in places.reshape(cell.steps, -1):
            yield self.easy[chosen], np.ones(cell.prompts)

    def adaptive(self, cell: Cell) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        while True:
            indices, inclusion = curriculum.draw(self.state, cell.prompts, self.rng)
            yield indices, curriculum.importance(inclusion, cell.prompts, POOL)

    def observe(self, indices: np.ndarray, rewards: np.ndarray) -> None:
        if len(set(indices.tolist())) == len(indices):  # easy_to_hard repeats a prompt in a batch
            self.state = curriculum.update(self.state, indices, rewards.sum(1), np.full(len(indices), rewards.shape[1]))


def train(regime: Regime, order: str, estimator_name: str, seeds: list[int], warm_starts: Path) -> dict:
    """Held-out success after every EVERY steps, (evaluations, S), and the share of groups whose rewards differ, (S,)."""
    cell, shape = regime.cell, tasks.shape(32, 1)
    weights = warm_start(warm_starts, shape, cell.task, cell.examples, cell.start, seeds).clone().requires_grad_()
    adam = torch.optim.AdamW([weights], lr=LR, betas=learner.BETAS, weight_decay=0.0)
    estimator, _ = learner.made(estimator_name, cell.group)
    states = [estimator.initial() for _ in seeds]
    heldout = learner.examples(cell.task, [tasks.words()[0]] * len(seeds))
    pools = [Pool(seed, regime, order) for seed in seeds]
    at_start = policy.success(shape, weights.detach(), *learner.examples(cell.task, [pool.words for pool in pools]))
    for pool, success in zip(pools, at_start.double().numpy(), strict=True):
        pool.easy = np.argsort(-success * ~pool.hopeless, kind="stable")
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    curve, varied = [learner.success(shape, weights, heldout)["pass@1"].tolist()], []
    for step in range(1, cell.steps + 1):
        adam.param_groups[0]["lr"] = LR * min(1.0, step / max(1, round(learner.WARMUP * cell.steps)))
        drawn = [next(pool.batches) for pool in pools]
        words = [[pool.words[i] for i in indices] for pool, (indices, _) in zip(pools, drawn, strict=True)]
        prompts, answers = learner.examples(cell.task, words)
        size = (cell.prompts, cell.group, tasks.RESPONSE)
        rollouts = policy.generate(
            shape, weights, prompts, torch.stack([torch.rand(size, generator=g) for g in generators])
        )
        solvable = np.stack([~pool.hopeless[indices] for pool, (indices, _) in zip(pools, drawn, strict=True)])
        rewards = ((rollouts.tokens == answers[:, :, None]).all(-1)).double().numpy() * solvable[:, :, None]
        advantages = []
        for s, (pool, (indices, importance)) in enumerate(zip(pools, drawn, strict=True)):
            batch = Batch.of(rewards[s], np.ones(rewards[s].shape, bool), words[s], importance=importance[:, None])
            found = estimator.step(batch, states[s])
            states[s] = found.state
            advantages.append(found.advantages)
            pool.observe(indices, rewards[s])
        learner.update(shape, weights, adam, prompts, rollouts, torch.tensor(np.stack(advantages)).float(), 0.0)
        varied.append(np.ptp(rewards, axis=2).mean(1))
        if step % EVERY == 0:
            curve.append(learner.success(shape, weights, heldout)["pass@1"].tolist())
    return {"success": curve, "varied": np.mean(varied, 0).tolist()}


def rollouts_to(curve: np.ndarray, regime: Regime) -> np.ndarray:
    """Of each seed (S,), by linear interpolation between evaluations; what was trained in all where it never came so
    far."""
    per_evaluation = EVERY * regime.cell.rollouts
    found = np.full(curve.shape[1], (len(curve) - 1.0) * per_evaluation)
    for seed, success in enumerate(curve.T):
        above = np.flatnonzero(success >= regime.target)
        if len(above) and above[0]:
            i = above[0]
            found[seed] = (i - (success[i] - regime.target) / (success[i] - success[i - 1])) * per_evaluation
    return found


def row(name: str, regime: Regime, order: str, found: dict, shuffled: dict) -> str:
    curve, base = np.array(found["success"]), np.array(shuffled["success"])
    needed, needed_shuffled = rollouts_to(curve, regime), rollouts_to(base, regime)
    reached = int((curve.max(0) >= regime.target).sum())
    end = interval(curve[-1] - base[-1]) if order != "shuffle" else ""
    ratio = interval(needed / needed_shuffled, signed=False) if order != "shuffle" else "1"
    return (
        f"| {name} | {order} | {np.mean(found['varied']):.2f} | {needed.mean():,.0f} ({reached} of {len(needed)}) | {ratio} "
        f"| {curve[-1].mean():.3f} | {end} |"
    )


def interval(values: np.ndarray, signed: bool = True) -> str:
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return f"{values.mean():{'+' if signed else ''}.3f} ± {half:.3f}"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--regimes", nargs="+", choices=[*REGIMES], default=[*REGIMES], metavar="NAME")
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=ORDERS)
    parser.add_argument("--estimator", default="group_norm")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("runs/curriculum"))
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    print(
        "| regime | order | groups that vary | rollouts to the target | of shuffle's | success at the end | to shuffle |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in args.regimes:
        results = {}
        for order in args.orders:
            results[order] = trained(name, order, args)
            print(row(name, REGIMES[name], order, results[order], results.get("shuffle", results[order])), flush=True)


def trained(name: str, order: str, args: argparse.Namespace) -> dict:
    """From its file, where it was trained before with these settings."""
    file = args.output / f"{name}-{order}-{args.estimator}.json"
    settings = {"regime": asdict(REGIMES[name]), "seeds": args.seeds, "pool": POOL, "passes": curriculum.PASSES}
    found = json.loads(file.read_text()) if file.exists() else {}
    if found.get("settings") != settings:
        measured = train(REGIMES[name], order, args.estimator, [*range(args.seeds)], args.output / "warm_starts")
        found = {"settings": settings, **measured}
        write_json(file, found)
    return found


if __name__ == "__main__":
    main()
