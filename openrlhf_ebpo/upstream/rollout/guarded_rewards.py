"""Executors and a rollout actor that bound rewards and carry a failed one with its response.

Upstream calls `reward_func` (or a reward server) one response at a time inside the rollout actor, logs an
exception at INFO and continues without a reward. Here the response carries the error to the controller, which acts on
it once (guarded_samples.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import functools
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar

import torch

from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.rewards.processes.reward_values import ERROR_KEY, check_reward, describe
from openrlhf_ebpo.rewards.processes.servers import GIVER, RewardServers
from openrlhf_ebpo.rewards.processes.sources import RewardFile, RewardSource
from openrlhf_ebpo.rewards.reward_settings import BUILT_IN, TIMEOUT_FLAG, RewardSettings
from openrlhf_ebpo.upstream import remote_code

# One value per response, as each has its own asyncio task: upstream drops an error between reward and `execute`.
_failure: ContextVar[str | None] = ContextVar("reward_failure", default=None)


class PendingRewards:
    """Rewards of an executor (of agents: turns) that have not come back."""

    def __init__(self):
        self._began: dict[object, float] = {}

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count a reward while it is computed."""
        call = object()
        self._began[call] = time.time()
        try:
            yield
        finally:
            del self._began[call]

    def count(self) -> tuple[int, float | None]:
        """Return their number, and when the oldest was requested, by time.time(): the same for every poll."""
        return len(self._began), min(self._began.values(), default=None)


class GuardedSingleTurnExecutor:
    """Mixin over SingleTurnAgentExecutor: a response carries the error of its reward, and rewards have a time limit.
    A user's reward file is neither imported nor called in this process.

    Attributes:
        reward_settings: set before the first reward is requested.
    """

    reward_settings = RewardSettings()

    def __init__(self, remote_rm_url=None):
        self.outstanding = PendingRewards()
        endpoints = [remote_rm_url] if isinstance(remote_rm_url, str) else list(remote_rm_url or [])
        is_users_file = bool(endpoints) and endpoints[0].endswith(".py") and endpoints[0] not in BUILT_IN.values()
        super().__init__(None if is_users_file else endpoints)
        if is_users_file:
            self.reward_endpoints, self.reward_func = endpoints, endpoints[0]  # upstream asks whether there is one

    async def prepare_rewards(self) -> None:
        """Raises RewardError if the reward file cannot be imported."""
        if self._source:
            await self._source.prepare()

    async def execute(self, *args, **kwargs):
        _failure.set(None)
        response = await super().execute(*args, **kwargs)
        if self.reward_endpoints and response["reward"] is None:
            if self._source and self._source.failure:
                raise ReportedError(self._source.failure)
            response[ERROR_KEY] = _failure.get() or "the reward could not be computed; see the rollout actor's log"
        return response

    @functools.cached_property
    def _source(self) -> RewardSource | None:
        """Return the source; None for packaged rewards, which limit themselves (pool.py), and without rewards."""
        if isinstance(self.reward_func, str):  # the executor of an agent file may have another file than the settings
            settings = dataclasses.replace(self.reward_settings, sources=(self.reward_func,))
            return RewardFile(settings, remote_code.hook())
        if self.reward_endpoints and not self.reward_func:
            settings = self.reward_settings
            return RewardServers(self.reward_endpoints, settings.timeout)
        return None

    async def _fetch_rewards_via_func(self, *args):
        source = self._source
        try:
            with self.outstanding.counted():
                rewards = [await source.ask(*args)] if source else await super()._fetch_rewards_via_func(*args)
            giver = [GIVER] if isinstance(source, RewardServers) else []
            return [check_reward(reward, *giver) for reward in rewards]
        except Exception as error:  # upstream logs it at INFO and drops it: keep its text
            _failure.set(describe(error))
            raise

    _fetch_rewards_via_http = _fetch_rewards_via_func  # servers are a source


class GuardedMultiTurnExecutor:
    """Mixin over MultiTurnAgentExecutor: if the agent's own code raises or hangs, its reward has failed; the
    response is what it was until then.

    Attributes:
        reward_settings: its `timeout` is for one call of the agent's `reset` or `step`.
    """

    reward_settings = RewardSettings()

    def __init__(self, agent_instance_cls):
        self.outstanding = PendingRewards()
        guarded = {"_guarding_executor": self}
        super().__init__(type(agent_instance_cls.__name__, (GuardedTurns, agent_instance_cls), guarded))

    async def execute(self, prompt, label, sampling_params, *args, **kwargs):
        """Upstream writes each turn's budget into sampling_params, which the samples of a prompt share: a copy each."""
        _failure.set(None)
        response = await super().execute(prompt, label, copy.deepcopy(sampling_params), *args, **kwargs)
        if error := _failure.get():
            return {**response, "reward": None, "scores": None, ERROR_KEY: error}
        return response


class GuardedTurns:
    """Mixin over an agent. After a failure it ends the conversation."""

    async def reset(self, states: dict, **kwargs):
        return await _turn(self._guarding_executor, "reset", states, super().reset, states, **kwargs)

    async def step(self, state_dict: dict, **kwargs):
        ended = {"rewards": torch.tensor(math.nan), "environment_feedback": "", "done": True}
        if _failure.get():
            return ended
        return await _turn(self._guarding_executor, "step", ended, super().step, state_dict, **kwargs)


async def _turn(executor, name: str, otherwise: dict, turn: Callable[..., Awaitable], *args, **kwargs) -> dict:
    """Return the result of the agent's coroutine function; `otherwise` after a failure. Cancels what takes too long."""
    settings = executor.reward_settings
    with executor.outstanding.counted():
        task = asyncio.ensure_future(_result_or_error(turn, args, kwargs))
        try:
            done, _ = await asyncio.wait({task}, timeout=settings.timeout)
        finally:
            task.cancel()
    if not done:
        error = f"the agent's {name} took longer than {settings.timeout:g} s ({TIMEOUT_FLAG})"
    else:
        returned, error = (None, f"the agent's {name} was cancelled") if task.cancelled() else task.result()
    if error is None:
        return returned
    _failure.set(error)
    return otherwise


async def _result_or_error(turn: Callable[..., Awaitable], args: tuple, kwargs: dict) -> tuple:
    """Return (result, None) or (None, error). A SystemExit that left the task would end the event loop."""
    try:
        return await turn(*args, **kwargs), None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, describe(error)


class LimitedRolloutActor:
    """Mixin over RolloutRayActor, whose arguments upstream fixes: the settings of rewards reach it afterwards."""

    async def limit_rewards(self, settings: RewardSettings) -> None:
        """Raises RewardError if the reward file cannot be imported."""
        self.executor.reward_settings = settings
        if prepare := getattr(self.executor, "prepare_rewards", None):
            await prepare()

    def pending_rewards(self) -> tuple[int, float | None]:
        """Return `PendingRewards.count`. An actor whose event loop is blocked does not answer: call with a timeout."""
        outstanding = getattr(self.executor, "outstanding", None)  # an agent file may have an executor of another base
        return outstanding.count() if outstanding else (0, None)
