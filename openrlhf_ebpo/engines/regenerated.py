"""A batch that loses an engine is generated again, from the same prompts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from openrlhf_ebpo.engines.deaths import dead, is_engine_death, named, why_dead
from openrlhf_ebpo.engines.restarts import WEIGHTS, check_may_restart, wait_for_weights, why_not

CANCEL_SECONDS = 60.0


class RepeatedPrompts:
    """An iterator that can go back to where `begin` was called."""

    def __init__(self, source: Iterator):
        self.source = source
        self._again: deque = deque()
        self._given: list = []

    def __iter__(self):
        return self

    def __next__(self):
        item = self._again.popleft() if self._again else next(self.source)
        self._given.append(item)
        return item

    def begin(self) -> None:
        self._given = []

    def back(self) -> None:
        self._again.extendleft(reversed(self._given))
        self._given = []

    def left(self) -> list:
        """Drawn from the source, and not given since it went back."""
        return list(self._again)


class RegeneratedSamples:
    """Mixin over SamplesGenerator: where an engine dies, the whole batch is generated again, from the same prompts.

    Attributes:
        weights_again: returns when every engine is up and has the policy's weights; set by who can do that.
    """

    weights_again: Callable[[], None]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._prompts: RepeatedPrompts | None = None
        self._dispatched: list = []
        self._deaths = 0
        if self.vllm_engines and not why_not(self.args):
            for engine in self.vllm_engines:
                engine.leave_when_engine_dies.remote()

    def drawn_and_not_used(self) -> list:
        return self._prompts.left() if self._prompts else []

    def _dispatch_prompts_to_vllm(self, *args, **kwargs):
        refs = super()._dispatch_prompts_to_vllm(*args, **kwargs)
        self._dispatched += refs
        return refs

    def _generate_vllm(self, dataloader_iter, *args, **kwargs):
        prompts = self._repeatable(dataloader_iter)
        prompts.begin()
        while True:
            self._dispatched = []
            try:
                return super()._generate_vllm(prompts, *args, **kwargs)
            except Exception as error:
                if not is_engine_death(error):
                    raise
                self._recover(error)
                prompts.back()

    def _repeatable(self, iterator) -> RepeatedPrompts:
        """Of the training prompts it is kept: after a repetition the dynamic filter may leave some for the next batch."""
        if iterator is not getattr(self, "_dataloader_iter", None):
            return RepeatedPrompts(iterator)
        if self._prompts is None or self._prompts.source is not iterator:
            self._prompts = RepeatedPrompts(iterator)
        return self._prompts

    def _recover(self, error: Exception) -> None:
        import ray

        self._deaths += 1
        which = named(dead(self.vllm_engines))
        check_may_restart(self.args, which, self._deaths, error)
        print(
            f"warning: {which} died ({why_dead(error)}): it is started again, and the batch is generated again",
            flush=True,
        )
        for ref in self._dispatched:
            ray.cancel(ref)
        ray.wait(self._dispatched, num_returns=len(self._dispatched), timeout=CANCEL_SECONDS)
        self.weights_again()


class AskingForWeights:
    """Mixin over GenerateSamplesActor: only the trainer may call the policy, so it is asked through the queue of rollouts,
    in which it finds the request after the batches that are in it already."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._evaluates = False
        self.samples_generator.weights_again = self._weights_again

    def _run_eval(self):
        self._evaluates = True
        try:
            return super()._run_eval()
        finally:
            self._evaluates = False

    def _weights_again(self) -> None:
        import ray

        locked = self._evaluates or not self._partial_rollout  # the trainer needs the lock to send weights
        if locked:
            ray.get(self.vllm_lock.release.remote())
        try:
            self.rollout_queue.put(WEIGHTS, block=True)
            wait_for_weights(self.samples_generator.vllm_engines)
        finally:
            if locked:
                ray.get(self.vllm_lock.acquire.remote())
