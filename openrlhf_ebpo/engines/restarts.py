"""A rollout engine that dies is started again, gets the policy's weights, and the batch is generated again.

Ray starts the actor again, where it was and under the handle that everybody has. A dead EngineCore (vLLM's process
behind the actor) takes its actor with it, so there is one case. Before weights are sent, the trainer looks whether
every engine is a member of the group in which they travel; for one that is not, the group is made anew. That is done
by the trainer alone, also in async training: policy actors that take calls of two processes may take them in two orders.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator

from openrlhf_ebpo.engines.deaths import ANSWER_SECONDS, EngineDied, dead, named, why_dead
from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.rewards.guard import limit_rewards

START_SECONDS = 900.0  # for an engine to start again, as at the beginning of a run
JOIN_SECONDS = 600.0  # for policy and engines to make their group
WEIGHTS_SECONDS = 4 * 3600.0  # in async training the trainer may be in the middle of a step
SAID_EVERY = 60.0
WEIGHTS = "openrlhf_ebpo: engines wait for weights"  # in the queue of rollouts


class EngineError(ReportedError, RuntimeError):
    """A rollout engine has died and the run does not go on; the message says which, why, and what to do."""


def add_flag(group) -> None:
    group.add_argument(
        "--vllm.max_restarts",
        type=int,
        default=2,
        metavar="N",
        help="rollout engines that die are started again, so many times in a run; 0: the run ends with the first. Not with "
        "--train.colocate_all or --vllm.tensor_parallel_size above 1 (docs/health.md)",
    )


def check_flag(values: dict) -> None:
    if values["vllm.max_restarts"] < 0:
        raise UsageError(f"--vllm.max_restarts is {values['vllm.max_restarts']}; give 0 or more")


def why_not(args) -> str | None:
    """Why an engine cannot be started again with these settings; None where it can."""
    if args.vllm.max_restarts < 1:
        return "--vllm.max_restarts is 0"
    if args.vllm.tensor_parallel_size > 1:
        return f"with --vllm.tensor_parallel_size {args.vllm.tensor_parallel_size} an engine is several actors of Ray"
    if args.train.colocate_all and not args.train.async_enable:
        return "with --train.colocate_all it shares its GPU with the policy, whose memory is in use by now"
    if args.vllm.sync_with_ray:
        return "with --vllm.sync_with_ray the group in which weights travel cannot be made anew"
    return None


def allow(args) -> None:
    """In the driver, before upstream makes the engines: Ray may start them again."""
    from openrlhf.trainer.ray import vllm_engine

    actor = vllm_engine.RolloutRayActor
    restarts = 0 if why_not(args) else args.vllm.max_restarts
    actor._default_options = {**actor._default_options, "max_restarts": restarts}


class ReadmittingTrainer:
    """Mixin over PPOTrainer and TrainingActor: engines that were started again get the weights.

    Attributes:
        engine_restarts: how many there were since this process began.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.engine_restarts = 0
        if hasattr(self, "samples_generator"):
            self.samples_generator.weights_again = self.broadcast_to_vllm
        else:  # in async training another actor generates
            self.rollout_queue = AnsweringQueue(self.rollout_queue, self.broadcast_to_vllm)

    def train_step(self, rollout_samples, global_step):
        status, global_step = super().train_step(rollout_samples, global_step)
        status["engine/restarts"] = self.engine_restarts
        return status, global_step

    def broadcast_to_vllm(self):
        if getattr(self, "_partial_rollout", False):  # upstream pauses all engines before it sends
            self.readmit_engines()
        super().broadcast_to_vllm()

    def readmit_engines(self) -> None:
        import ray

        if why_not(self.args):
            return
        states = [wait_until_up(i, engine) for i, engine in enumerate(self.vllm_engines)]
        new = [i for i, (in_group, _) in enumerate(states) if not in_group]
        if not new:
            return
        self.engine_restarts += len(new)
        check_may_restart(self.args, named(new), self.engine_restarts)
        engines = [self.vllm_engines[i] for i in new]
        ray.get([limit_rewards(engine, self.args) for engine in engines])
        ray.get([engine.leave_when_engine_dies.remote() for engine in engines])
        try:
            ray.get(self.actor_model_group.async_run_method(method_name="rejoin_engines"), timeout=JOIN_SECONDS)
        except ray.exceptions.RayError as error:  # its limit, or another death
            raise EngineError(
                f"{named(new)}, started again, did not join the policy's group within {JOIN_SECONDS:.0f} s: {why_dead(error)}"
            ) from error
        print(f"{named(new)} runs again (restart {self.engine_restarts} of {self.args.vllm.max_restarts})", flush=True)


def among_the_living(broadcast):
    """In place of BasePPOTrainer.broadcast_to_vllm, which async training calls when no response is generated any more: an engine
    may have died while the trainer waited for that."""

    @functools.wraps(broadcast)
    def broadcast_to_vllm(self):
        self.readmit_engines()
        try:
            broadcast(self)
        except Exception as error:
            if gone := dead(self.vllm_engines):
                raise EngineError(
                    f"{named(gone)} died while weights were sent to it, which cannot be repeated in the same run: "
                    f"{why_dead(error)}"
                ) from error
            raise

    return broadcast_to_vllm


class AnsweringQueue:
    """The trainer's end of the queue of rollouts in async training: what is no rollout is answered here."""

    def __init__(self, queue, send_weights: Callable[[], None]):
        self._queue, self._send_weights = queue, send_weights

    def get(self, **how):
        while (payload := self._queue.get(**how)) == WEIGHTS:
            self._send_weights()
        return payload


class RejoiningPolicy:
    """Mixin over PolicyModelActor."""

    def rejoin_engines(self) -> None:
        """Make the group in which weights travel anew; the one before had an engine that is gone."""
        import torch
        from openrlhf.utils.distributed_util import torch_dist_barrier_and_cuda_sync

        if torch.distributed.get_rank() == 0:
            self.trainer._init_vllm_sync_group(self.strategy.args.vllm.sync_backend)
        torch_dist_barrier_and_cuda_sync()


def check_may_restart(args, which: str, deaths: int, error: Exception | None = None) -> None:
    """Raises EngineError where there were enough restarts, or an engine cannot be started again."""
    cause = f": {why_dead(error)}" if error else ""
    if impossible := why_not(args):
        raise EngineError(f"{which} has died{cause}\nIt is not started again: {impossible}.")
    if deaths > args.vllm.max_restarts:
        raise EngineError(
            f"{which} has died, and {deaths} engines have died in this run{cause}\n--vllm.max_restarts "
            f"{args.vllm.max_restarts} is the limit, for a cause that stays: see to it, or raise the limit."
        )


def wait_until_up(number: int, engine) -> tuple[bool, bool]:
    """Its `membership`, once it answers.

    Raises:
        EngineError: Ray does not start it again, or it takes too long.
    """
    import ray

    last: Exception | None = None
    for _ in waiting(START_SECONDS, f"rollout engine {number} to start again"):
        try:
            return ray.get(engine.membership.remote(), timeout=ANSWER_SECONDS)
        except ray.exceptions.ActorDiedError as error:
            raise EngineError(
                f"rollout engine {number} has died and could not be started again: {why_dead(error)}"
            ) from error
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError, EngineDied) as error:
            last = error
    raise EngineError(f"rollout engine {number} did not start again within {START_SECONDS:.0f} s: {why_dead(last)}")


def wait_for_weights(engines) -> None:
    for _ in waiting(WEIGHTS_SECONDS, "the trainer to send the policy's weights to an engine that was started again"):
        if not dead(engines):
            return
    raise EngineError(f"the trainer sent no weights to an engine that was started again within {WEIGHTS_SECONDS:.0f} s")


def waiting(seconds: float, what: str) -> Iterator[None]:
    """Once a second until the time is over; now and then it says what is waited for."""
    began = said = time.monotonic()
    while (now := time.monotonic()) - began < seconds:
        yield
        time.sleep(1)
        if now - said > SAID_EVERY:
            said = now
            print(f"waiting for {what}, for {now - began:.0f} s by now", flush=True)
