"""Failing rewards made visible: checked where they are computed, carried with the sample, acted on once.

Upstream calls `reward_func` (or a reward server) one response at a time inside the rollout actor, logs an
exception at INFO and goes on without a reward. Here the response carries the error to the controller. Under
an estimator that is computed here the sample is then excluded (advantage 0, no tokens trained) and counted; OpenRLHF's
own cannot leave a sample out, so they stop with the error.
"""

from __future__ import annotations

import asyncio
import logging
import math
from contextvars import ContextVar

import numpy as np
import torch

from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.rewards.calls import TIMEOUT, Calls, RewardError, await_turn, describe
from openrlhf_ebpo.rewards.under_way import under_way

logger = logging.getLogger(__name__)

ERROR_KEY = "reward_error"  # in a rollout actor's response
INFO_KEY = "ebpo_reward_error"  # in Experience.info: a list of one string, "" where all is well


def check_reward(returned) -> dict:
    """Return what a reward function gave for one response, if it can be used: numbers as they are, a list of one
    number (as reward servers send it) as that number. What it logs beside the reward is upstream's business.

    Args:
        returned: expected {"rewards": number or tensor of one number, "scores": same, optional, "extra_logs": dict
            of numbers, optional}.

    Raises:
        RewardError: it says what was found instead.
    """
    if not isinstance(returned, dict):
        raise RewardError(
            f"reward_func returned {_show(returned)}; it must return a dict with the key 'rewards' "
            "(and optionally 'scores' and 'extra_logs')"
        )
    if returned.get("rewards") is None:
        raise RewardError(f"reward_func gave no reward: 'rewards' is missing or None in {_show(returned)}")
    extra_logs = returned.get("extra_logs") or {}
    if not isinstance(extra_logs, dict):
        raise RewardError(f"reward_func gave 'extra_logs' as {_show(extra_logs)}; a dict of numbers is needed")
    if taken := {"step", "time"} & extra_logs.keys():
        raise RewardError(
            f"'extra_logs' has {', '.join(sorted(taken))}, which every row of metrics.jsonl has: rename it"
        )
    checked = {k: finite_number(returned[k], k) for k in ("rewards", "scores") if returned.get(k) is not None}
    return {**returned, **checked}


def finite_number(value, name: str):
    """`value`, out of its list of one; raises RewardError unless it is one finite number."""
    size = value.numel() if isinstance(value, torch.Tensor) else np.size(value)
    if size != 1:
        raise RewardError(f"the reward function gave {size} values as {name!r} for one response: {_show(value)}")
    if isinstance(value, (list, tuple, np.ndarray)):
        value = np.asarray(value, dtype=object).item()
    try:
        number = math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise RewardError(f"the reward function gave {_show(value)} as {name!r}; one finite number is needed")
    return value


def _show(value) -> str:
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) <= 200 else text[:197] + "..."


# Each response is computed in an asyncio task of its own, so this is one value per response.
_failure: ContextVar[str | None] = ContextVar("reward_failure", default=None)
_turn_seconds: ContextVar[float] = ContextVar("turn_seconds", default=TIMEOUT)


class GuardedSingleTurnExecutor:
    """Mixin over SingleTurnAgentExecutor: a response whose reward failed says so, and no reward is waited for for ever.

    Attributes:
        reward_timeout: seconds for one call of the reward function. Servers have upstream's limits.
    """

    reward_timeout = TIMEOUT

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._calls = Calls()

    async def execute(self, *args, **kwargs):
        _failure.set(None)
        response = await super().execute(*args, **kwargs)
        if self.reward_endpoints and response["reward"] is None:
            response[ERROR_KEY] = _failure.get() or "the reward could not be computed; see the rollout actor's log"
        return response

    async def _fetch_rewards_via_func(self, *args):
        seconds = None if getattr(self.reward_func, "limits_itself", False) else self.reward_timeout
        return await _checked(asyncio.gather(self._calls.run(self.reward_func, *args, seconds=seconds)))

    async def _fetch_rewards_via_http(self, *args):
        with under_way.running():
            return await _checked(super()._fetch_rewards_via_http(*args))


async def _checked(rewards) -> list:
    try:
        with under_way.asked():
            return [check_reward(reward) for reward in await rewards]
    except Exception as error:  # upstream logs it at INFO and drops it: keep its text, let it go its way
        _failure.set(describe(error))
        raise


class GuardedMultiTurnExecutor:
    """Mixin over MultiTurnAgentExecutor: where the agent's own code raises or hangs, its reward has failed; the
    response is what it was until then.

    Attributes:
        reward_timeout: seconds for one call of the agent's `reset` or `step`.
    """

    reward_timeout = TIMEOUT

    def __init__(self, agent_instance_cls):
        super().__init__(type(agent_instance_cls.__name__, (GuardedTurns, agent_instance_cls), {}))

    async def execute(self, *args, **kwargs):
        _failure.set(None)
        _turn_seconds.set(self.reward_timeout)
        response = await super().execute(*args, **kwargs)
        if error := _failure.get():
            return {**response, "reward": None, "scores": None, ERROR_KEY: error}
        return response


class GuardedTurns:
    """Mixin over an agent. After a failure it ends the conversation."""

    async def reset(self, states: dict, **kwargs):
        return await _turn("reset", states, super().reset, states, **kwargs)

    async def step(self, state_dict: dict, **kwargs):
        ended = {"rewards": torch.tensor(math.nan), "environment_feedback": "", "done": True}
        return ended if _failure.get() else await _turn("step", ended, super().step, state_dict, **kwargs)


async def _turn(name: str, otherwise: dict, turn, *args, **kwargs) -> dict:
    try:
        with under_way.asked(), under_way.running():
            return await await_turn(f"the agent's {name}", turn, *args, seconds=_turn_seconds.get(), **kwargs)
    except RewardError as error:
        _failure.set(str(error))
        return otherwise


class LimitedRolloutActor:
    """Mixin over RolloutRayActor, whose arguments upstream fixes: --reward.timeout is told it afterwards."""

    def limit_rewards(self, seconds: float) -> None:
        self.executor.reward_timeout = seconds

    def rewards_under_way(self) -> tuple[int, float | None]:
        """How many rewards (of agents: turns) have not come back, and for how many seconds the oldest has run; None
        where none runs. An actor whose event loop is blocked does not answer: ask with a limit."""
        return under_way.state()


class GuardedSamplesGenerator:
    """Mixin over SamplesGenerator: turns a failed reward into NaN and its text under an estimator computed here, into an error otherwise."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for engine in self.vllm_engines:
            engine.limit_rewards.remote(self.args.reward.timeout)

    def _process_response_into_experience(self, response, **kwargs):
        error = self._reward_error(response)
        if not registry.computed_here(self.args.algo.advantage.estimator):
            if error is not None:
                raise RewardError(
                    f"the reward of a response failed: {error}\nOnly an estimator that openrlhf_ebpo computes "
                    "(--advantage_estimator ebpo, or your own) can go on without it. "
                    f"Prompt: {response['prompt'][:200]!r}"
                )
            return super()._process_response_into_experience(response, **kwargs)
        if error is not None:
            logger.warning("a reward failed, its response is left out: %s", error)
            # without a score the dynamic filter lets the whole group pass: its other samples count, and so does this error
            response = {**response, "reward": math.nan, "scores": None}
        experience = super()._process_response_into_experience(response, **kwargs)
        experience.info[INFO_KEY] = [error or ""]
        return experience

    def _reward_error(self, response) -> str | None:
        """What went wrong where the reward was computed; agents' rewards are looked at here."""
        if ERROR_KEY in response or not self.args.train.agent_func_path:
            return response.get(ERROR_KEY)
        try:
            finite_number(response.get("reward"), "reward")
        except RewardError as error:
            return str(error)
        return None

    def generate_eval_samples(self, **kwargs):
        """Evaluation counts a failed reward as a failed response, and says how many there were."""
        samples = super().generate_eval_samples(**kwargs)
        failed = [sample for sample in samples if any(sample.info.get(INFO_KEY, ()))]
        for sample in failed:
            sample.rewards = torch.full_like(sample.rewards, self.args.algo.advantage.ebpo.fail_reward)
        if failed:
            logger.warning(
                "evaluation: the reward of %d of %d responses failed and counts as the fail reward; first error: %s",
                len(failed),
                len(samples),
                failed[0].info[INFO_KEY][0],
            )
        return samples
