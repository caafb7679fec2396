"""EBPO and every other estimator of the registry in Molt's trainer (molt-rl 0.2.1).

    python -m openrlhf_ebpo.integrations.molt --algo.advantage.estimator ebpo.robust ...

in place of `python -m molt.cli.train_rl_ray`, with its flags and those of EBPO. The state is in every checkpoint's
client states and comes back on resume. Names that Molt has itself (grpo, rloo, gae ...) stay Molt's.
"""

from __future__ import annotations

import argparse
import functools
import runpy
from unittest.mock import patch

import ray
import torch
from molt.trainer import rl_trainer
from molt.trainer.algorithm import advantage
from molt.trainer.rollout import experience_maker
from molt.utils import config

from openrlhf_ebpo.command import error_exit
from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.estimator.settings import add_flags as add_estimator_flags
from openrlhf_ebpo.integrations.running import PRIOR, RunningEstimator

FLAG = "--algo.advantage.estimator"
MOLTS = sorted(advantage.ADVANTAGE_ESTIMATORS)  # before any of ours is registered
NOT_OURS = [*MOLTS, *(name for name, entry in registry.ESTIMATORS.items() if entry.upstream and name not in MOLTS)]


def running_estimator(args) -> RunningEstimator:
    """Return the estimator that Molt's arguments name.

    Raises:
        UsageError: the estimator or a setting, or it reads log-probabilities and Molt computes none.
    """
    group, settings = args.rollout.n_samples_per_prompt, vars(args.algo.advantage.ebpo)
    running = RunningEstimator(args.algo.advantage.estimator, group, settings)
    if args.train.force_on_policy and not args.algo.kl.init_coef:
        running.rehearse_without_log_probabilities()
    return running


class PriorExperienceMaker(rl_trainer.RemoteExperienceMaker):
    """Registers the run's estimator in this process; Molt's own code calls it and spreads its advantages over
    tokens."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.running = running_estimator(self.args)
        advantage.register_advantage_estimator(self.advantage_estimator)(self._advantages)
        for module in (advantage, experience_maker):  # the second has imported it by name
            module.GROUP_ADVANTAGE_ESTIMATORS = module.GROUP_ADVANTAGE_ESTIMATORS | {self.advantage_estimator}

    def compute_advantages_and_returns(self, experiences):
        self._experiences = experiences
        experiences = super().compute_advantages_and_returns(experiences)
        del self._experiences  # or their tensors would stay in Ray's memory for a step
        return experiences

    def _advantages(self, rewards, groups, ctx):
        """Return advantages and returns by Molt's contract, a (B, L) per experience, for rewards (R,) of the rollouts
        and their rows by prompt."""
        masks = ctx.action_masks
        of_row = {row: number for number, group in enumerate(groups) for row in group}

        def per_rollout(per_sample: list[torch.Tensor]) -> torch.Tensor:
            values = torch.cat(per_sample).double()
            return values.new_zeros(len(rewards)).index_add(0, ctx.sample_to_rollout, values)

        def score_weights():
            log_probs = [experience.action_log_probs for experience in self._experiences]
            pairs = zip(log_probs, masks, strict=True)
            return per_rollout([((1 - log_prob.double().exp()) ** 2 * mask).sum(1) for log_prob, mask in pairs]).numpy()

        lengths = per_rollout([mask.sum(1) for mask in masks])
        found = self.running.step_rows(
            torch.where(lengths > 0, rewards.double(), torch.nan).numpy(),
            [of_row[row] for row in range(len(rewards))],
            lengths.numpy(),
            score_weights,
        )
        returns = advantage.broadcast_advantages(torch.as_tensor(found).to(rewards), ctx)
        return [each.clone() for each in returns], returns


class PriorTraining:
    """Keeps the estimator's state with the checkpoints of Molt's TrainingActor, and logs its metrics."""

    def __init__(self, *args, **kwargs):
        rl_trainer.RemoteExperienceMaker = PriorExperienceMaker
        super().__init__(*args, **kwargs)
        self.running = self.experience_maker.running

    def train_step(self, rollout_samples, global_step):
        status, global_step = super().train_step(rollout_samples, global_step)
        return status | self.running.metrics, global_step

    def save_logs_and_checkpoints(self, global_step, logs_dict=None, client_states=None):
        super().save_logs_and_checkpoints(global_step, logs_dict, self._with_prior(client_states))

    def save_best_checkpoint(self, eval_metrics, global_step, client_states=None):
        super().save_best_checkpoint(eval_metrics, global_step, self._with_prior(client_states))

    def _with_prior(self, client_states: dict | None) -> dict:
        """Add the state to this dictionary, which Molt changes afterwards."""
        client_states = {} if client_states is None else client_states
        client_states[PRIOR] = self.running.pack()
        return client_states

    def load_checkpoint_states_or_default(self):
        """Raises PriorMismatch: the checkpoint has no prior, or another estimator's."""
        states = super().load_checkpoint_states_or_default()
        if states.get("global_step"):
            self.running.unpack(states.get(PRIOR), f"{PRIOR} in the client states of {self.args.ckpt.path}")
        return states


@error_exit()
def main() -> None:
    """Run Molt's command with the registry's names among its choices; refuse an estimator before Molt starts
    anything."""
    add_argument, hierarchize = argparse.ArgumentParser.add_argument, config.hierarchize

    def add(parser, *names, **options):
        if FLAG in names:
            del options["choices"]
            options["type"] = functools.partial(registry.known, of_openrlhf=NOT_OURS)
            add_estimator_flags(parser)
        return add_argument(parser, *names, **options)

    def checked(args):
        args = hierarchize(args)
        if args.algo.advantage.estimator not in MOLTS:
            running_estimator(args)
            actor = rl_trainer.TrainingActor.__ray_metadata__.modified_class.__ray_actor_class__
            # a class of no module: Ray sends it and Molt's by value, and imports PriorTraining where it runs
            rl_trainer.TrainingActor = ray.remote(type("PriorTrainingActor", (PriorTraining, actor), {}))
        return args

    with patch.object(argparse.ArgumentParser, "add_argument", add), patch.object(config, "hierarchize", checked):
        runpy.run_module("molt.cli.train_rl_ray", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    from openrlhf_ebpo.integrations import molt  # by its name, so that Ray's processes import it, too

    molt.main()
