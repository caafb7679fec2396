"""EBPO and other estimators of the registry in verl's PPO trainer (verl 0.9.1).

    algorithm.adv_estimator=ebpo            # or ebpo.corrected ...
    trainer.checkpoint_callback_class=openrlhf_ebpo.integrations.verl.PriorCheckpoint
    +algorithm.ebpo.normalise=scale         # optional: settings of EstimatorConfig

verl finds this module by the entry point `verl.plugins`. The callback makes the estimator, saves prior.json in every
checkpoint and reads that of the checkpoint which verl resumes from; without it the estimator is refused, so that no run
loses its prior. Names that verl has already (rloo, opo, gae ...) stay verl's.
"""

from __future__ import annotations

import functools
import os

import numpy as np
import torch
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, AdvantageEstimator, register_adv_est
from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.integrations.running import RunningEstimator

CALLBACK = "trainer.checkpoint_callback_class=openrlhf_ebpo.integrations.verl.PriorCheckpoint"
VERLS = {each.value for each in AdvantageEstimator}
NAMES = [name for name, entry in registry.ESTIMATORS.items() if entry.code and name not in VERLS]
NAMES += registry.VARIANTS

_running: RunningEstimator | None = None  # of this process: verl computes advantages where it makes the callback


class PriorCheckpoint(CheckpointCallback):
    """Makes the estimator of the run, and keeps its state with verl's checkpoints.

    Args:
        config: verl's complete configuration.

    Raises:
        UsageError: the estimator, or a setting that hides rewards from it. PriorMismatch: the checkpoint to resume from
            has no prior.json (verl was killed before this callback was called), or another estimator's;
            +algorithm.ebpo.reset_prior=true starts afresh.
    """

    def __init__(self, config=None):
        global _running
        super().__init__(config)
        name = config.algorithm.adv_estimator
        if config.algorithm.get("use_kl_in_reward", False):
            raise UsageError("algorithm.use_kl_in_reward=True mixes the KL into the rewards; use actor.use_kl_loss")
        running = RunningEstimator(name, config.actor_rollout_ref.rollout.n, config.algorithm.get("ebpo", {}))
        running.rehearse_without_log_probabilities()
        of, folder = config.trainer, None  # the checkpoint that verl is about to load, by its own rules
        if of.resume_mode == "resume_path":
            folder = os.path.abspath(of.resume_from_path)
        elif of.resume_mode != "disable":
            folder = find_latest_ckpt_path(os.path.abspath(of.default_local_dir))
        if folder is not None:
            running.restore(folder)
        self.running = _running = running
        from verl.trainer.ppo.v1.trainer_base import PPOTrainer  # what makes this callback; not needed to import verl

        if not hasattr(PPOTrainer._compute_advantage, "__wrapped__"):
            PPOTrainer._compute_advantage = with_metrics(PPOTrainer._compute_advantage)

    def on_save(self, trainer, global_step, checkpoint_dir, async_save=False, **kwargs):
        self.running.save(checkpoint_dir)


def with_metrics(compute_advantage):
    """Wrap PPOTrainer._compute_advantage: the estimator's metrics join those of the step."""

    @functools.wraps(compute_advantage)
    def computed(self, batch, metrics):
        batch = compute_advantage(self, batch, metrics)
        metrics.update(self.checkpoint_callback.running.metrics)
        return batch

    return computed


def advantages(token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index, config=None, **_):
    """Return advantages and returns (B, T), as verl's own: one number a response, on its tokens.

    Args:
        token_level_rewards, response_mask: (B, T). index: (B,), the prompt that a response answers.

    Raises:
        UsageError: no callback made an estimator, or a prompt has more responses than rollout.n.
    """
    if _running is None:
        raise UsageError(f"this advantage estimator keeps a state: add {CALLBACK}")
    groups = np.unique(np.asarray(index).astype(str), return_inverse=True)[1]
    lengths = response_mask.double().sum(-1)
    rewards = torch.where(lengths > 0, token_level_rewards.double().sum(-1), torch.nan)
    found = _running.step_rows(rewards.cpu().numpy(), groups, lengths=lengths.cpu().numpy())
    spread = torch.as_tensor(found).to(token_level_rewards)[:, None] * response_mask
    return spread, spread


for _name in NAMES:
    register_adv_est(_name)(advantages)
if missing := [name for name in NAMES if ADV_ESTIMATOR_REGISTRY.get(name) is not advantages]:
    raise RuntimeError(f"verl did not register {missing}")
