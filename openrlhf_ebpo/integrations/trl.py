"""EBPO and every other estimator of the registry in TRL's GRPOTrainer (TRL 1.0 to 1.16), and in Unsloth's.

    from openrlhf_ebpo.integrations.trl import EBPOTrainer

    EBPOTrainer(model=..., reward_funcs=..., args=GRPOConfig(num_generations=2, ...), train_dataset=...,
                estimator="ebpo.robust")

A subclass of GRPOTrainer takes EBPOMixin first. `scale_rewards` has no effect: the estimator scales. The state is
prior.json in every checkpoint and in the output directory; `train(resume_from_checkpoint=...)` brings it back.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import torch
import trl

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.integrations.running import RunningEstimator

LOGGED = "advantages"  # in TRL's table of completions
SUM = "sum_then_normalize"  # TRL's default of multi_objective_aggregation
HOOKS = {  # methods that the mixin extends or calls, and the attributes that they have to use
    "__init__": ("num_iterations", "reward_weights", "_step", "_logs", "_metrics"),
    "_calculate_rewards": (),
    "_generate_and_score_completions": ("_calculate_rewards",),
    "_get_per_token_logps_and_entropies": (),
    "_save_checkpoint": (),
}


class RunningPrior:
    """Steps the estimator on a trainer's rewards, and keeps its state in the checkpoints of transformers' Trainer.

    Attributes:
        running: the estimator; set before the trainer is made.
    """

    running: RunningEstimator
    _drawn = 0  # which of the sampler's generation cycles the latest batch is of

    def _step_estimator(self, each: torch.Tensor, lengths, score_weights) -> np.ndarray | None:
        """Return the advantages (M·G,) of all processes; None where no function scored any response.

        Args:
            each: (M·G, functions), all processes' rewards. lengths, score_weights: give (M·G,), as of RunningEstimator.
        """
        self._drawn = self._cycle_of(self._step % self.args.gradient_accumulation_steps)
        self.running.before = self.running.state
        rewards = (each * self.reward_weights.to(each.device)).nansum(1)
        rewards[each.isnan().all(1)] = torch.nan  # no function scored it
        if rewards.isnan().all():
            return None
        found = self.running.step(rewards.cpu().numpy(), lengths(), score_weights)
        for name, value in self.running.metrics.items():
            self._metrics["train"][name].append(value)
        return found.advantages.ravel()

    def _of_all(self, local: torch.Tensor):
        """Gather from all processes, (M·G,), in the order of the gathered rewards."""
        return self.accelerator.gather(local.contiguous()).double().cpu().numpy()

    def _cycle_of(self, micro_batches: int = 0) -> int:
        """Return the sampler's generation cycle so many micro-batches after the latest optimizer step."""
        position = self.state.global_step * self.args.gradient_accumulation_steps + micro_batches
        return position // (self.args.steps_per_generation * self.num_iterations)

    def _write_prior(self, folder: Path) -> None:
        """Save the state. Within a generation cycle it is the one from before the cycle, whose prompts a resumed run
        draws again: no prompt enters the prior twice, and none that was trained on is left out.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.running.save(folder, before=self._cycle_of() == self._drawn)

    def _save_checkpoint(self, model, trial):
        """Write the prior first: TRL pushes the checkpoint at the end, and FSDP does not call `_save` for sharded
        weights."""
        if self.args.should_save:
            self._write_prior(Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}"))
        super()._save_checkpoint(model, trial)

    def _save(self, output_dir=None, state_dict=None):
        """Save the prior too. `hub_strategy="every_save"` uploads the copy in the output directory."""
        super()._save(output_dir, state_dict)
        for folder in {Path(output_dir or self.args.output_dir), Path(self.args.output_dir)}:
            self._write_prior(folder)

    def _load_best_model(self):
        """Take the prior that belongs to the best weights, for their export."""
        super()._load_best_model()
        self.running.load(self.state.best_model_checkpoint)

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self.running.restore(checkpoint)


class EBPOMixin(RunningPrior):
    """Replaces the advantages of GRPOTrainer's training batches; evaluation stays as it is.

    Args:
        estimator: a name of `openrlhf-ebpo replay --help`, or MODULE:NAME. estimator_settings: of EstimatorConfig.

    Raises:
        UsageError: the estimator, or a setting of TRL that hides the rewards from it.
    """

    def __init__(self, *args, estimator: str = "ebpo", estimator_settings: dict | None = None, **kwargs):
        if missing := missing_hooks(type(self)):
            raise UsageError(
                f"trl {trl.__version__}, {type(self).__name__}: {', '.join(missing)} missing; EBPOMixin goes before "
                "the GRPOTrainer of TRL 1.0 to 1.16 (AsyncGRPOTrainer computes advantages in its worker)"
            )
        config = next((each for each in (*args, *kwargs.values()) if hasattr(each, "num_generations")), trl.GRPOConfig)
        if (aggregation := getattr(config, "multi_objective_aggregation", SUM)) != SUM:
            raise UsageError(
                f"multi_objective_aggregation={aggregation!r} normalises each reward by itself; estimators take their "
                f"weighted sum: leave it at {SUM!r}"
            )
        self.running = RunningEstimator(estimator, config.num_generations, estimator_settings)
        if kwargs.get("tools") or kwargs.get("environment_factory"):
            try:
                self.running.rehearse_without_log_probabilities()
            except UsageError:
                raise UsageError(
                    f"estimator {self.running.estimator.name!r} with these settings weighs responses by their "
                    "log-probabilities, which TRL's tools do not allow: leave tools out, or choose another estimator "
                    "(ebpo.corrected)"
                ) from None
        self._gathered, self._scored = None, False
        super().__init__(*args, **kwargs)  # loads the model

    def _prepare_inputs(self, inputs):
        """
        Raises:
            UsageError: the trainer scores responses elsewhere, so that the estimator would take no part.
        """
        training = self.model.training  # Unsloth ends an evaluation's generation in training mode
        prepared = super()._prepare_inputs(inputs)
        if training and not self._scored:
            raise UsageError(
                f"{type(self).__name__} does not score in _generate_and_score_completions, as asynchronous trainers "
                "do: EBPOMixin would change nothing; choose a synchronous GRPO trainer"
            )
        return prepared

    def _calculate_rewards(self, *args, **kwargs):
        self._gathered = super()._calculate_rewards(*args, **kwargs)
        return self._gathered

    def _generate_and_score_completions(self, inputs):
        training = self.model.training
        output = super()._generate_and_score_completions(inputs)
        if not training:
            return output
        self._scored = True
        advantages = self._step_estimator(
            self._gathered,
            lambda: self._of_all(output["completion_mask"].sum(1)),
            lambda: self._of_all(self._score_weights(output)),
        )
        if advantages is None:
            return output  # TRL's are 0
        local = len(output["advantages"])
        mine = advantages[self.accelerator.process_index * local :][:local]
        output["advantages"] = torch.as_tensor(mine).to(output["advantages"])
        for _ in advantages:
            self._logs[LOGGED].pop()
        self._logs[LOGGED].extend(advantages.tolist())
        return output

    @torch.no_grad()
    def _score_weights(self, output) -> torch.Tensor:
        """Compute Σ_t (1 − π(y_t))² of this process's completions, by a forward pass where TRL has made none.

        Raises:
            UsageError: the prompts have images, which the forward pass would need.
        """
        log_probs, mask = output.get("old_per_token_logps"), output["completion_mask"]
        if log_probs is None:
            if {"pixel_values", "tool_mask"} & output.keys():
                raise UsageError(
                    f"estimator {self.running.estimator.name!r}: score weights are for text alone, without tools"
                )
            tokens = torch.cat([output["prompt_ids"], output["completion_ids"]], 1)
            attended = torch.cat([output["prompt_mask"], mask], 1)
            size = self.args.per_device_train_batch_size
            log_probs = self._get_per_token_logps_and_entropies(self.model, tokens, attended, mask.shape[1], size)[0]
        return ((1 - log_probs.double().exp()) ** 2 * mask).sum(1)


class EBPOTrainer(EBPOMixin):
    """trl.GRPOTrainer with `estimator` and `estimator_settings`.

    The base is trl.GRPOTrainer as it is when a trainer is made, because `import unsloth` replaces it.
    """

    def __new__(cls, *args, **kwargs):
        if not issubclass(cls, trl.GRPOTrainer):
            cls = type(cls.__name__, (cls, trl.GRPOTrainer), {"__module__": cls.__module__})
        return object.__new__(cls)


def missing_hooks(trainer: type) -> list[str]:
    """Return the HOOKS that no class after the mixin defines, and their attributes that no such definition uses."""
    bases = trainer.__mro__[trainer.__mro__.index(RunningPrior) + 1 : -1]  # without object
    missing = []
    for method, attributes in HOOKS.items():
        defined = [inspect.unwrap(vars(base)[method]) for base in bases if method in vars(base)]
        used = {name for each in defined if inspect.isfunction(each) for name in each.__code__.co_names}
        missing += [f"{method}: {name}" for name in attributes if name not in used] if defined else [method]
    return missing
