"""Set arguments of vLLM's engines beyond upstream's flags, in the driver that makes them: which log-probabilities they
give."""

from __future__ import annotations

from openrlhf_ebpo.upstream.rollout.log_probs import PROCESSED


class ActorWithDefaults:
    """Stands in for RolloutRayActor: its engines get these arguments in addition to upstream's."""

    def __init__(self, actor_class, given: dict):
        self.actor_class, self.given = actor_class, given

    def options(self, **options):
        return ActorWithDefaults(self.actor_class.options(**options), self.given)

    def remote(self, **kwargs):
        return self.actor_class.remote(**{**self.given, **kwargs})


def set_arguments(temperature: float) -> None:
    """Set the engines' arguments, in the driver and before upstream makes them. Where rollouts have a temperature,
    their log-probabilities do too: they are then computed for every token."""
    from openrlhf.trainer.ray import vllm_engine

    if temperature != 1:
        vllm_engine.RolloutRayActor = ActorWithDefaults(vllm_engine.RolloutRayActor, {"logprobs_mode": PROCESSED})
