"""openrlhf-ebpo: one console command for everything.

argparse, not click or jsonargparse: OpenRLHF's parser is argparse's, our flags of `train` join it, and all commands read alike.
"""

from __future__ import annotations

import importlib
import sys

COMMANDS = {
    "train": ("openrlhf_ebpo.cli.train_ppo_ray", "train a policy: OpenRLHF's train_ppo_ray with the estimator ebpo"),
    "sft": ("openrlhf_ebpo.cli.train_sft", "supervised warm start: OpenRLHF's train_sft, also without a GPU"),
    "data": ("openrlhf_ebpo.cli.data", "prepare training data: clean, cluster by topic, measure difficulty, order"),
    "eval": (
        "openrlhf_ebpo.cli.eval",
        "measure models on benchmarks, tasks of your own, or files; report; rescore",
    ),
    "hub": ("openrlhf_ebpo.cli.hub", "push and pull models, priors, runs and results; deploy the Space"),
    "doctor": ("openrlhf_ebpo.cli.doctor", "check this machine: versions, libraries, memory, leftovers, GPUs"),
    "space": ("openrlhf_ebpo.cli.space", "look at runs in a browser: dynamics, samples, evaluation, the estimator"),
}


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in COMMANDS:
        importlib.import_module(COMMANDS[argv[0]][0]).main(argv[1:])
        return
    lines = [f"  openrlhf-ebpo {name:<8} {summary}" for name, (_, summary) in COMMANDS.items()]
    usage = "\n".join(["usage: openrlhf-ebpo COMMAND [flags]   (COMMAND --help teaches its flags)", "", *lines])
    if argv in (["-h"], ["--help"]):
        print(usage)
        return
    sys.exit(f"no such command: {argv[0]}\n{usage}" if argv else usage)
