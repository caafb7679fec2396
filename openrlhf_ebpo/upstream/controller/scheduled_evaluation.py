"""Evaluate when it is due, and record the result with the step whose weights it used.

Upstream's asynchronous trainer leaves evaluations to the sample generator. It evaluates when it comes to it, with the
weights that the engines then have, puts the result behind the batches that wait for the trainer, and stops with the
last prompt. The synchronous trainer loses an evaluation that is interrupted. Here both trainers evaluate after a step
is saved, and training waits. An evaluation without a row in metrics.jsonl was interrupted; it is repeated when the run
is resumed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import ray

from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.run import resume
from openrlhf_ebpo.upstream.controller.best_checkpoint import METRIC, BestCheckpoint

COUNT = "eval_num_samples"  # upstream's, in every evaluation


class ScheduledEvaluation(BestCheckpoint):
    """Mixin over PPOTrainer.

    Attributes:
        eval_steps: every so many steps an evaluation is due; infinite: never.
        evaluated: the last step that was evaluated.
    """

    evaluated = 0
    _resumed: Mapping | None = None  # client states, until the engines have the weights

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.eval_steps = steps if (steps := self.args.eval.steps) > 0 else math.inf
        self.args.eval.steps = math.inf  # switches upstream's schedule off

    def resume_evaluations(self, client_states: Mapping, metrics: Sequence[Mapping]) -> None:
        """Note what the run has evaluated. An evaluation that is due follows when the engines have the checkpoint's
        weights."""
        self._resumed = client_states
        self.evaluated = max((row["step"] for row in metrics if COUNT in row), default=0)

    def broadcast_to_vllm(self):
        super().broadcast_to_vllm()
        if client_states := self._resumed:
            self._resumed = None
            self.evaluate_if_due(client_states["global_step"], client_states)

    def evaluate_if_due(self, step: int, client_states: Mapping) -> None:
        """Evaluate if a multiple of --eval.steps has passed since the last evaluation."""
        if self.eval_dataloader and step // self.eval_steps > self.evaluated // self.eval_steps:
            self.save_best_checkpoint(self.evaluate(step), step, client_states)
            self.evaluated = step

    def evaluate(self, step: int) -> dict:
        from openrlhf.trainer.ppo_trainer import compute_eval_metrics

        args = self.args
        settings = {
            "max_len": args.data.max_len,
            "max_new_tokens": args.rollout.max_new_tokens,
            "top_p": args.rollout.top_p,
            "temperature": args.eval.temperature,
            "n_samples_per_prompt": args.eval.n_samples_per_prompt,
        }
        with self.holding_engines():
            samples = self.samples_generator.generate_eval_samples(**settings)
        metrics = compute_eval_metrics(self.eval_dataloader, samples, args.eval.n_samples_per_prompt)
        for tracker in filter(None, (self.wandb_logger, self.tensorboard_logger)):
            tracker.log_eval(step, metrics)
        print(f"evaluation after step {step}: {dict(metrics)}", flush=True)
        return metrics

    @contextlib.contextmanager
    def holding_engines(self) -> Iterator[None]:
        """Keep others from generating; only asynchronous training has others."""
        yield

    def save_best_checkpoint(self, eval_metrics, global_step, client_states=None):
        """Record an evaluation: the best checkpoint, the value in the step's own checkpoint, and the row last."""
        self.run_log.flush()
        if not eval_metrics:
            return
        super().save_best_checkpoint(eval_metrics, global_step, client_states)
        if self._latest_eval_metric_value is not None:
            self._write_metric(f"global_step{global_step}")
        self._latest_eval_metric_value = None  # a later checkpoint has other weights
        self.run_log.write_metrics(global_step, eval_metrics)

    def _write_metric(self, tag: str) -> None:
        """Rotation goes by it. A checkpoint may lie on another node's own disk."""
        saved = {"metric_key": self.best_eval_metric_key, "metric_value": self._latest_eval_metric_value}
        for folder in resume.groups(self.args.ckpt.path, self.args.algo.advantage.estimator):
            if (folder / tag).is_dir():
                write_json(Path(folder, tag, METRIC), saved)


class AsynchronousEvaluation(ScheduledEvaluation):
    """Mixin over TrainingActor, which has no samples generator, and whose engines generate while it trains."""

    eval_dataloader = None

    def __init__(self, pretrain, strategy, *args, **kwargs):
        super().__init__(pretrain, strategy, *args, **kwargs)
        if self.eval_steps < math.inf and self.args.eval.dataset:
            from openrlhf.trainer.ppo_trainer import prepare_datasets
            from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

            prompts, self.eval_dataloader, _ = prepare_datasets(strategy, self.tokenizer)
            self.samples_generator = SamplesGenerator(
                strategy, prompts, self.eval_dataloader, self.tokenizer, self.vllm_engines
            )

    @contextlib.contextmanager
    def holding_engines(self) -> Iterator[None]:
        ray.get(self.vllm_lock.acquire.remote())
        try:
            yield
        finally:
            ray.get(self.vllm_lock.release.remote())


class NoEvaluation:
    """Mixin over GenerateSamplesActor: the trainer evaluates."""

    def _should_eval(self, global_step):
        return False
