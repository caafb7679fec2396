"""Evaluate when it is due, record the result with the step whose weights it used, and keep the best checkpoint.

Upstream's asynchronous trainer leaves evaluations to the sample generator. It evaluates when it comes to it, with the
weights that the engines then have, puts the result behind the batches that wait for the trainer, and stops with the
last prompt. The synchronous trainer loses an evaluation that is interrupted. Here both trainers evaluate after a step
is saved, and training waits. An evaluation without a row in metrics.jsonl was interrupted; it is repeated when the run
is resumed.

Upstream takes metric and value of the best checkpoint from the checkpoint that is loaded. So another metric on the
command line has no effect, and a best checkpoint that was saved after that one is forgotten, and gives way to a worse.
Here the command's metric counts, and the best value is that of the best existing checkpoint. Of equals the first
stays the best, as upstream has it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.run import resume
from openrlhf_ebpo.run.manifest import damage, step_of
from openrlhf_ebpo.run.run_log import read_metrics

logger = logging.getLogger(__name__)

BEST = "--ckpt.best_metric_key"
NO_BEST = "none"
DEFAULT = "_pass1"  # the end of what upstream chooses by if no key is given
METRIC = "metric.json"  # upstream's, in a checkpoint: metric_key, metric_value
COUNT = "eval_num_samples"  # upstream's, in every evaluation


class ScheduledEvaluation:
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
            saved = {"metric_key": self.best_eval_metric_key, "metric_value": self._latest_eval_metric_value}
            for folder in resume.groups(self.args.ckpt.path, self.args.algo.advantage.estimator):
                if (folder / f"global_step{global_step}").is_dir():  # a checkpoint may lie on another node's own disk
                    write_json(Path(folder, f"global_step{global_step}", METRIC), saved)  # rotation goes by it
        self._latest_eval_metric_value = None  # a later checkpoint has other weights
        self.run_log.write_metrics(global_step, eval_metrics)

    def restore_best_checkpoint_state(self, checkpoint_states) -> None:
        requested = self.best_eval_metric_key
        super().restore_best_checkpoint_state(checkpoint_states)
        step = (checkpoint_states or {}).get("global_step", 0)
        if not step:
            return
        was = self.best_eval_metric_key
        if was == NO_BEST or requested:
            self.best_eval_metric_key = requested
        if self.best_eval_metric_key != was:
            print(f"{BEST}: the best checkpoint is now chosen by {requested or 'pass@1'}, and was by {was}", flush=True)
        found = best_so_far(Path(self.args.ckpt.path), Path(self.args.logger.run_dir), self.best_eval_metric_key)
        self.best_eval_metric_value = -math.inf if found is None else found
        self._latest_eval_metric_value = None

    def _detect_eval_metric_key(self, eval_metrics):
        found, requested = super()._detect_eval_metric_key(eval_metrics), self.best_eval_metric_key
        if found is None and requested != NO_BEST:
            logger.warning(
                "%s %s: this evaluation has no such metric, and no best checkpoint is saved; it has %s",
                *(BEST, requested, ", ".join(sorted(eval_metrics))),
            )
        return found


def best_so_far(ckpt_path: Path, run_dir: Path, key: str) -> float | None:
    """Return the value of the best checkpoint; None without such a checkpoint, or if neither it nor metrics.jsonl has a
    value. Those of later steps than the one that is resumed from were moved aside."""
    folder = ckpt_path / "_actor"
    tags = [tag for tag in resume.tags_of([folder]) if tag.startswith(resume.BEST)]
    tag = max((tag for tag in tags if not damage(folder / tag)), key=step_of, default=None)
    if tag is None:
        return None
    try:
        saved = json.loads((folder / tag / METRIC).read_text())
        chosen_by, value = saved.get("metric_key"), saved.get("metric_value")
    except (OSError, ValueError, AttributeError):
        return None
    if chosen_by and not (chosen_by == key if key else chosen_by.endswith(DEFAULT)):
        value = next((row.get(key) for row in read_metrics(run_dir) if row["step"] == step_of(tag)), None)
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


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
        import ray

        ray.get(self.vllm_lock.acquire.remote())
        try:
            yield
        finally:
            ray.get(self.vllm_lock.release.remote())


class NoEvaluation:
    """Mixin over GenerateSamplesActor: the trainer evaluates."""

    def _should_eval(self, global_step):
        return False
