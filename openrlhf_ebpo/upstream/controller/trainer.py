"""Carries prior and run log through upstream's synchronous and asynchronous trainers."""

from __future__ import annotations

import functools
import logging
import time
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from openrlhf_ebpo.errors import TrainingPaused
from openrlhf_ebpo.estimator import stored
from openrlhf_ebpo.model_folder import problems
from openrlhf_ebpo.run import checkpoint_list, heartbeat
from openrlhf_ebpo.run.batches import BatchSettings
from openrlhf_ebpo.run.resume import set_later_aside
from openrlhf_ebpo.run.run_log import read_metrics
from openrlhf_ebpo.run.run_writer import RunWriter
from openrlhf_ebpo.upstream.controller import mismatch, step_notices
from openrlhf_ebpo.upstream.controller.failures import save_failed_batch
from openrlhf_ebpo.upstream.controller.scheduled_evaluation import AsynchronousEvaluation, ScheduledEvaluation
from openrlhf_ebpo.upstream.install import subclass
from openrlhf_ebpo.upstream.phases import RUN_LOG, Phases
from openrlhf_ebpo.upstream.saving import (
    CLIENT_STATE,
    KL_COEFFICIENT,
    STATE_KEY,
    SaveTimes,
    force_save,
    is_exported,
    starting_state,
)

logger = logging.getLogger(__name__)


class PPOTrainerWithPrior(Phases, ScheduledEvaluation):
    """Mixin over PPOTrainer and (AsyncPPOTrainerWithPrior) TrainingActor."""

    _packed: tuple | None = None  # the estimator's state, and that as it is stored

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        logger = self.args.logger
        self.run_log = RunWriter(logger.run_dir, self.tokenizer, logger.rollouts_every)
        self.notices = step_notices.StepNotices()
        self.save_times = SaveTimes(self.args.ckpt)

    def init_checkpoint_states(self):
        """Restore the state to start from: upstream's states, our prior, and a run log without later steps."""
        states = super().init_checkpoint_states()
        if not states:  # an interrupted first save leaves a folder from which DeepSpeed loads nothing
            print(f"No complete checkpoint in {self.args.ckpt.path}: starting from step 0")
            states = {"episode": 0, "global_step": 0, "total_consumed_prompts": 0, "data_loader_state_dict": {}}
        maker, step, continues = self.experience_maker, states["global_step"], True
        run_dir, ckpt_path = self.run_log.run_dir, Path(self.args.ckpt.path)
        if maker.estimator:
            initial = self._prior_state()
            maker.state = starting_state(states, maker.estimator, self.args.ckpt.path)
            state = self._prior_state()
            continues = state == (states.get(STATE_KEY) if step else initial)
            self.run_log.write_prior(state)
        if step and (aside := set_later_aside(ckpt_path, step)):
            print(f"moved the checkpoints of steps after {step} to {aside}", flush=True)
        self.run_log.roll_back(step, continues)
        centred = maker.estimator is None or maker.estimator.centred
        before = read_metrics(run_dir)
        self.watch = mismatch.StalenessMonitor(BatchSettings.from_args(self.args).age, before, centred)
        if step:
            if self.args.algo.kl.target:
                self.kl_ctl.value = states.get(KL_COEFFICIENT, self.kl_ctl.value)
            self.resume_evaluations({k: v for k, v in states.items() if k in CLIENT_STATE}, before)
            complete = functools.partial(problems, code=False)  # nothing is loaded
            new = checkpoint_list.find_unlisted(run_dir, ckpt_path, step, complete)
            checkpoint_list.add_rows(run_dir, new)
            for row in new:
                print(f"{row['tag']} is complete and was not in {checkpoint_list.LIST}", flush=True)
        return states

    def fit(self, *args, **kwargs):
        self.save_times.restart()
        try:
            super().fit(*args, **kwargs)
        except TrainingPaused:
            for tracker in filter(None, (self.wandb_logger, self.tensorboard_logger)):
                tracker.close()
            raise
        self.run_log.flush()
        if state := self._prior_state():
            ray.get(self.actor_model_group.async_run_method(method_name="remember_prior", state=state))

    def train_step(self, rollout_samples, global_step):
        responses, size = len(rollout_samples), self.args.train.batch_size
        if untrained := responses % size:  # upstream does not warn
            logger.warning(
                "step %d: the last %d of %d responses fill no optimizer step of --train.batch_size %d: OpenRLHF drops "
                "them, or mixes them into the next step",
                *(global_step + 1, untrained, responses, size),
            )
        before = self._prior_state()
        status, global_step = super().train_step(rollout_samples, global_step)
        with self.heart.in_phase(RUN_LOG):
            started = time.time()
            self.run_log.write_rollouts(global_step, self.experience_maker.rollouts, before)
            if state := self._prior_state():
                self.run_log.write_prior(state)
            status.update(self.experience_maker.metrics)
            if (stale := self.watch.is_stale(status)) is not None:
                status[mismatch.STALE] = float(stale)
            self._print_notices(global_step, status)
            status["timing/run_log"] = time.time() - started
        return status, global_step

    def _print_notices(self, step: int, status: dict) -> None:
        maker, notice = self.experience_maker, self.notices.print_if_due
        unread = status.get(step_notices.UNREAD, 0.0)
        if status[step_notices.ZERO_ADVANTAGE]:
            result, passes = maker.rollouts.result, maker.config.pass_reward
            notice("zero", lambda: step_notices.zero_notice(step, result, status, passes))
        if unread > step_notices.UNREAD_LIMIT:
            tokens = maker.rollouts.responses[maker.unread.index(True)].tolist()
            notice("unread", lambda: step_notices.unread_warning(step, unread, self.tokenizer.decode(tokens)))
        if status.get(mismatch.STALE):
            notice("stale", lambda: self.watch.warning(step, status[mismatch.K3]))

    def ppo_train(self, global_steps):
        with save_failed_batch(self, global_steps + 1):
            return super().ppo_train(global_steps)

    def save_logs_and_checkpoints(self, global_step, logs_dict=None, client_states=None):
        metrics = {k: v for k, v in (logs_dict or {}).items() if k != "generated_samples"}
        asked_by = None if self.args.ckpt.disable_ds else heartbeat.end_requested_by(self.run_log.run_dir)
        saves = bool(asked_by) or self.save_times.is_due(global_step)
        with self.heart.in_phase(RUN_LOG):
            spent = self.heart.spent()  # where the time since the line before went
            metrics |= {f"phase/{phase.replace(' ', '_')}": seconds for phase, seconds in spent.items()}
            self.run_log.write_metrics(global_step, metrics)
            if saves:
                self.run_log.flush()  # a resume from this checkpoint relies on all rows up to its step
        if saves:
            client_states = self._complete(client_states)  # else unused, and a state per prompt takes a while to pack
        with force_save(self.args.ckpt, saves):
            super().save_logs_and_checkpoints(global_step, logs_dict, client_states)
        if saves:
            self._log_checkpoint(global_step, f"global_step{global_step}")
            self.save_times.restart()
        self.evaluate_if_due(global_step, client_states or {})
        if asked_by:
            heartbeat.forget_end_request(self.run_log.run_dir)
            raise TrainingPaused(f"saved step {global_step} and ended, as {asked_by} asked")

    def save_best_checkpoint(self, eval_metrics, global_step, client_states=None):
        best = self.best_eval_metric_value
        super().save_best_checkpoint(eval_metrics, global_step, self._complete(client_states))
        if self.best_eval_metric_value != best:
            self._log_checkpoint(global_step, f"best_global_step{global_step}")

    def _prior_state(self) -> dict | None:
        """Return the estimator's state as it is stored; packed once a step, as a state never changes."""
        maker = self.experience_maker
        if not maker.estimator:
            return None
        if self._packed is None or self._packed[0] is not maker.state:
            self._packed = maker.state, stored.pack(maker.estimator, maker.state)
        return self._packed[1]

    def _complete(self, client_states: dict | None) -> dict:
        state = self._prior_state()
        own = {STATE_KEY: state} if state else {}
        if self.args.algo.kl.target:  # the coefficient adapts to the KL
            own[KL_COEFFICIENT] = float(self.kl_ctl.value)
        return {**(client_states or {}), **own}

    def _log_checkpoint(self, step: int, tag: str) -> None:
        ckpt = self.args.ckpt
        exported = is_exported(ckpt, tag)
        if ckpt.disable_ds and not exported:
            return  # nothing was saved
        self.run_log.write_checkpoint(
            step,
            tag=tag,
            checkpoint=None if ckpt.disable_ds else f"{ckpt.path}/_actor/{tag}",
            model=f"{ckpt.path}/{tag}_hf" if exported else None,
        )


class AsyncPPOTrainerWithPrior(AsynchronousEvaluation, PPOTrainerWithPrior):
    """Mixin over TrainingActor."""


class OnThisNode:
    """Stands in for a Ray actor class: `.remote()` schedules the actor on the caller's node (node affinity)."""

    def __init__(self, actor_class):
        self.actor_class = actor_class

    def remote(self, *args, **kwargs):
        node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        return self.actor_class.options(scheduling_strategy=node, num_cpus=0).remote(*args, **kwargs)


def on_this_node(original):
    return OnThisNode(original)


def ebpo_trainer(original):
    return OnThisNode(subclass(original, PPOTrainerWithPrior))


def ebpo_trainer_async(original):
    return OnThisNode(subclass(original, AsyncPPOTrainerWithPrior))
