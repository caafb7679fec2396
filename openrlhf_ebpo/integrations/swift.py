"""EBPO and every other estimator of the registry in ms-swift's GRPOTrainer (ms-swift 4.6).

    from openrlhf_ebpo.integrations import swift          # plugin.py

    swift.use("ebpo.robust", pass_reward=1.0)             # settings of EstimatorConfig

    swift rlhf --rlhf_type grpo --external_plugins plugin.py ...

The state is prior.json in every checkpoint and in the output directory; `--resume_from_checkpoint` brings it back.
"""

from __future__ import annotations

import torch
from swift.rlhf_trainers import GRPOTrainer
from swift.trainers import TrainerFactory

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.integrations.running import RunningEstimator
from openrlhf_ebpo.integrations.trl import RunningPrior


class EBPOTrainer(RunningPrior, GRPOTrainer):
    """Replaces the advantages of ms-swift's training batches; evaluation stays as it is.

    Raises:
        UsageError: the estimator, or a setting of ms-swift that hides the rewards from it.
    """

    estimator, estimator_settings = "ebpo", {}

    def __init__(self, *args, **kwargs):
        config = kwargs["args"]
        if config.kl_in_reward and config.beta:
            raise UsageError("--kl_in_reward true mixes the KL into the rewards; leave it false: the loss has the KL")
        if config.scale_rewards == "gdpo":
            raise UsageError("--scale_rewards gdpo normalises each reward by itself; estimators take their sum")
        if kwargs["template"].sequence_parallel_size > 1:
            raise UsageError("--sequence_parallel_size: EBPO in ms-swift takes 1")
        self.running = RunningEstimator(self.estimator, config.num_generations, self.estimator_settings)
        super().__init__(*args, **kwargs)

    def _compute_advantages(self, samples, rewards_per_func, batch_encoded_inputs):
        """Return advantages (M·G,) of all processes, as ms-swift's.

        Raises:
            UsageError: a multi-turn scheduler made another number of samples than G a prompt.
        """
        theirs = super()._compute_advantages(samples, rewards_per_func, batch_encoded_inputs)
        if not self.model.training:
            return theirs
        if self.dynamic_num_samples:
            raise UsageError("the multi-turn scheduler gives prompts unequal numbers of samples; EBPO takes G of each")
        batches = [each["grpo_batch"] for each in batch_encoded_inputs]

        def score_weights():
            terms = [(1 - each.old_per_token_logps.double().exp()) ** 2 * each.completion_mask for each in batches]
            return self._of_all(torch.cat([each.sum(1) for each in terms]))

        found = self._step_estimator(
            rewards_per_func,
            lambda: self._of_all(torch.cat([each.completion_mask.sum(1) for each in batches])),
            score_weights,
        )
        return theirs if found is None else torch.as_tensor(found).to(theirs)


def use(estimator: str = "ebpo", **settings) -> None:
    """Make ms-swift train GRPO with this estimator, and its settings of EstimatorConfig."""
    EBPOTrainer.estimator, EBPOTrainer.estimator_settings = estimator, settings
    TrainerFactory.TRAINER_MAPPING["grpo"] = f"{__name__}.EBPOTrainer"
