"""The trainer's phase for the heartbeat, and how far generation, rewards, log-probabilities and training are.

Engines answer while they generate. The policy's actors do not answer before their call ends, and may be on another
node, so their rank 0 leaves its count of micro-batches in Ray's key-value store.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from datetime import datetime

import ray
from ray.experimental import internal_kv

from openrlhf_ebpo.run.heartbeat import GENERATING, LOADING, REWARDS, STARTING, Heartbeat

POLL_SECONDS = 5.0
EVALUATING = "evaluating"
CHECKING_SAMPLES, LOG_PROBS, ADVANTAGES = "checking samples", "log-probabilities", "advantages"
TRAINING, RUN_LOG = "training", "run log"
COUNTED = (GENERATING, REWARDS, EVALUATING)
IN_MICRO_BATCHES = (LOG_PROBS, TRAINING)


class Phases:
    """Mixin over PPOTrainer and TrainingActor: every method that may take long reports its phase."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.heart = Heartbeat(self.args.logger.run_dir)
        self.heart.report(STARTING)
        self.experience_maker.in_phase = self.heart.in_phase
        if self.vllm_engines:
            watching = {"args": (self.heart, self.vllm_engines), "daemon": True, "name": "heartbeat"}
            threading.Thread(target=watch_rollouts, **watching).start()

    def init_checkpoint_states(self):
        self.heart.report(LOADING)
        states = super().init_checkpoint_states()
        prompts, steps = getattr(self, "prompts_dataloader", None), 0  # of all episodes; 0 where it is not known:
        # dynamic filtering decides it, or another process has the prompts
        if prompts is not None and not self.args.algo.dynamic_filtering_enable:
            steps = self.args.train.num_episodes * math.ceil(len(prompts) / self.args.rollout.batch_size)
        self.heart.report(GENERATING, step=(states or {}).get("global_step", 0), steps=steps)
        return states

    def fit(self, *args, **kwargs):
        super().fit(*args, **kwargs)
        self.heart.report("exporting the model")

    def train_step(self, rollout_samples, global_step):
        with self.heart.in_phase("making experience"):
            status, global_step = super().train_step(rollout_samples, global_step)
        self.heart.report(GENERATING, step=global_step)
        return status, global_step

    def ppo_train(self, *args, **kwargs):
        with self.heart.in_phase(TRAINING):
            return super().ppo_train(*args, **kwargs)

    def broadcast_to_vllm(self, *args, **kwargs):
        with self.heart.in_phase("syncing weights"):
            return super().broadcast_to_vllm(*args, **kwargs)

    def save_logs_and_checkpoints(self, *args, **kwargs):
        with self.heart.in_phase("saving"):
            return super().save_logs_and_checkpoints(*args, **kwargs)

    def evaluate(self, *args, **kwargs):
        with self.heart.in_phase(EVALUATING):
            return super().evaluate(*args, **kwargs)


def watch_rollouts(heart: Heartbeat, engines) -> None:
    """Ask the engines, while responses are generated, what has not come back yet; never returns."""
    most = 0
    while True:
        time.sleep(POLL_SECONDS)
        if heart.phase not in COUNTED:
            most = 0
            if heart.phase in IN_MICRO_BATCHES:
                heart.report(detail=micro_batches(), only_in=IN_MICRO_BATCHES)
            continue
        try:
            states = _ask(engines)
        except Exception:  # an engine has died: that is said by who waits for it
            continue
        if states is None:
            heart.report(detail="an engine does not answer", only_in=COUNTED)
            continue
        requests, rewards, began = states
        most = max(most, rewards)
        phase, detail = describe_pending(requests, rewards, most, began)
        heart.report(None if heart.phase == EVALUATING else phase, detail, only_in=COUNTED)


class MicroBatches:
    """A forward hook that counts the micro-batches of a model, and reports the count once in POLL_SECONDS."""

    def __init__(self):
        self.count, self.last_report = 0, -math.inf

    def __call__(self, *_) -> None:
        self.count += 1
        now = time.monotonic()
        if now - self.last_report >= POLL_SECONDS and ray.is_initialized():
            self.last_report = now
            with contextlib.suppress(Exception):  # it must not end a training step
                internal_kv._internal_kv_put(_key(), str(self.count))


def micro_batches() -> str:
    """Return the last count reported by the model's rank 0 as text; empty without one."""
    with contextlib.suppress(Exception):
        if count := internal_kv._internal_kv_get(_key()):
            return f"{count.decode()} micro-batches since the start"
    return ""


def _key() -> str:
    return f"openrlhf_ebpo: micro-batches of job {ray.get_runtime_context().get_job_id()}"


def _ask(engines) -> tuple[int, int, float | None] | None:
    """Return unfinished requests, rewards that have not come back, and when the oldest of these began; None without an
    answer."""
    calls = [engine.get_num_unfinished_requests.remote() for engine in engines]
    calls += [engine.pending_rewards.remote() for engine in engines]
    if ray.wait(calls, num_returns=len(calls), timeout=POLL_SECONDS)[1]:
        return None
    found = ray.get(calls)
    requests, rewards = found[: len(engines)], found[len(engines) :]
    began = min((moment for _, moment in rewards if moment is not None), default=None)
    return sum(requests), sum(number for number, _ in rewards), began


def describe_pending(requests: int, rewards: int, most: int, began: float | None) -> tuple[str, str]:
    """Return phase and detail. most: how many rewards were outstanding at once; began: the oldest, by time.time()."""
    since = f", since {datetime.fromtimestamp(began):%H:%M:%S}" if began is not None else ""
    waiting = f"{rewards} of {most} outstanding{since}"
    if not requests:
        return (REWARDS, waiting) if rewards else (GENERATING, "")
    return GENERATING, f"{requests} responses unfinished" + (f"; rewards: {waiting}" if rewards else "")
