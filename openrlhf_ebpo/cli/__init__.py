"""openrlhf-ebpo: one console command for everything.

argparse, not click or jsonargparse: OpenRLHF's parser is argparse's, our flags of `train` join it, and all commands
read alike.
"""

from __future__ import annotations

from openrlhf_ebpo.cli.dispatch import Command, dispatcher

ABOUT = (
    """EBPO, an empirical-Bayes advantage estimator, for an installed, unmodified OpenRLHF: training and its tools."""
)
COMMANDS = {
    "train": Command(
        "openrlhf_ebpo.cli.train_ppo_ray", "train a policy: OpenRLHF's train_ppo_ray with the estimator ebpo"
    ),
    "sft": Command("openrlhf_ebpo.cli.train_sft", "supervised warm start: OpenRLHF's train_sft, also without a GPU"),
    "data": Command(
        "openrlhf_ebpo.cli.data", "prepare training data: clean, cluster by topic, measure difficulty, order"
    ),
    "eval": Command("openrlhf_ebpo.cli.eval", "evaluate models on benchmarks, custom tasks, or files; report; rescore"),
    "hub": Command("openrlhf_ebpo.cli.hub", "push and pull models, priors, runs and results; deploy the Space"),
    "doctor": Command("openrlhf_ebpo.cli.doctor", "check this machine: versions, libraries, memory, leftovers, GPUs"),
    "replay": Command(
        "openrlhf_ebpo.cli.replay", "recompute a run's advantages from its rollouts, with its estimator or another one"
    ),
    "verify": Command("openrlhf_ebpo.cli.verify", "check a run: rows, advantages, prior, checkpoints, models"),
    "space": Command(
        "openrlhf_ebpo.space.main", "look at runs in a browser: dynamics, samples, evaluation, the estimator"
    ),
}

main = dispatcher("openrlhf-ebpo", ABOUT, COMMANDS)
