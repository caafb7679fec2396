"""EBPO and GRPO on a simulated policy: where shrinkage helps, and where it does not. A quarter of a minute on one core.

A softmax bandit: 512 prompts, 64 answers each, one of them right, and a table of logits in place of a network, so
prompts share nothing. A step draws 64 prompts and 4 responses for each, rewards 1 or 0, and makes one optimizer step
on the policy gradient, by the advantages that the package computes. The first logits are normal
with standard deviation `--spread`, plus one of `--starts` for the right answer: with a greater spread, prompts differ
more in how hard they are. It prints the mean success rate at the end, over all prompts, with its standard error over
seeds; "start" and "groups that all fail" are those of the first logits.

**Do not take these numbers for a network's.** EBPO's large gain here is an artefact of Adam on a table: Adam divides each
logit's gradient by its size, so that it acts like a sign, and answers that are hardly ever drawn drift up by EBPO's
push against what fails. `--optimizer sgd` shows both without it, each at the learning rate that is best for it. learning.py
trains networks.
"""

from __future__ import annotations

import argparse

import torch

from lab.bandit import OPTIMIZERS, Bandit, first_logits, success_rates, train
from lab.tables import head, line
from openrlhf_ebpo.estimator import registry

ESTIMATORS = ("group_norm", "ebpo")
RATES = {
    "adam": [0.05],
    "sgd": [10.0, 30.0, 100.0, 300.0, 1000.0],
}  # SGD's steps are as long as the advantages are large


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    print(head(["start", "groups that all fail", *map(registry.title, ESTIMATORS)]))
    for start in args.starts:
        bandit = Bandit(
            start, args.optimizer, args.spread, args.group, args.steps, args.prompts, args.batch, args.answers
        )
        success = success_rates(first_logits(bandit, seed=0))
        all_fail = ((1 - success) ** args.group).mean()
        ends = [ended(estimator, bandit, args.lr, args.seeds) for estimator in ESTIMATORS]
        shown = [f"{rates.mean():.3f} ± {rates.std() / len(rates) ** 0.5:.3f}" for rates in ends]
        print(line([f"{success.mean():.1%}", f"{all_fail:.0%}", *shown]), flush=True)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=float, nargs="+", default=[-1.1, 1.2, 3.2], help="logits of the right answer")
    parser.add_argument("--spread", type=float, default=2.0, help="standard deviation of the first logits (2)")
    parser.add_argument("--group", type=int, default=4, help="responses per prompt (4)")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--batch", type=int, default=64, help="prompts per step (64)")
    parser.add_argument("--answers", type=int, default=64)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adam")
    parser.add_argument(
        "--lr", type=float, nargs="+", help="of several each estimator's best counts (Adam: 0.05; SGD: 10 to 1000)"
    )
    args = parser.parse_args(argv)
    args.lr = args.lr or RATES[args.optimizer]
    return args


def ended(estimator: str, bandit: Bandit, rates: list[float], seeds: int) -> torch.Tensor:
    """Mean success rate after the last step, one value a seed, at the learning rate where it is highest."""
    return max(
        (torch.stack([train(bandit, estimator, lr, seed) for seed in range(seeds)]) for lr in rates), key=torch.mean
    )


if __name__ == "__main__":
    main()
