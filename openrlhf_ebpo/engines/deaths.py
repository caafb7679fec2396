"""The rollout actor that knows of its engine's death; how an engine died, and which did."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import warnings
from pathlib import Path

import psutil

from openrlhf_ebpo.engines.cluster import reason

ANSWER_SECONDS = 30.0
LOG_BYTES = 64 << 10
MARK = "OPENRLHF_EBPO_ENGINE_OF"  # variable of an EngineCore: the actor that it belongs to
RAISED = re.compile(r"\b[\w.]*(?<!EngineDead)(?:Error|Exception): .+")
WATCH_SECONDS = 0.5
LEAVE_SECONDS = 2.0  # whoever waits for a response is told the cause meanwhile
LESS_MEMORY = "less memory for it: --vllm.gpu_memory_utilization, --data.max_len, fewer processes on its machine"


class EngineDied(RuntimeError):
    """vLLM's EngineCore is gone; the message says why. Raised in the rollout actor, in place of vLLM's EngineDeadError,
    which only says "see above"."""


class RestartedRolloutActor:
    """Mixin over RolloutRayActor: it knows whether it has the policy's weights, and why its engine died."""

    async def __init__(self, *args, **kwargs):
        actor_id, again = this_actor()
        end_former_engine(actor_id, again)
        await super().__init__(*args, **kwargs)
        self._in_group = False
        self._has_weights = not again
        self._engine_ends = asyncio.create_task(ended(self.llm))

    async def leave_when_engine_dies(self) -> None:
        """Have Ray start this actor again, with a new engine. Where Ray may not, it stays and tells the cause."""
        self._engine_ends.add_done_callback(lambda _: asyncio.get_running_loop().call_later(LEAVE_SECONDS, os._exit, 1))

    async def membership(self) -> tuple[bool, bool]:
        """Whether the engine is in the group in which weights travel, and whether it has the policy's weights.

        Raises:
            EngineDied: its EngineCore is gone.
        """
        if self.llm.errored:
            raise EngineDied(await cause_of_death(self.llm))
        return self._in_group, self._has_weights

    async def process_id(self) -> int:
        """Another one after a restart. Raises EngineDied as `membership`."""
        if self.llm.errored:
            raise EngineDied(await cause_of_death(self.llm))
        return os.getpid()

    async def generate_responses(self, *args, **kwargs):
        """Raises EngineDied, also where the engine has given its response and the reward is not there yet."""
        work = asyncio.ensure_future(super().generate_responses(*args, **kwargs))
        try:
            await asyncio.wait({work, self._engine_ends}, return_when=asyncio.FIRST_COMPLETED)
            if self.llm.errored:
                raise EngineDied(await cause_of_death(self.llm))
            return await work
        finally:
            work.cancel()

    async def init_process_group(self, *args, **kwargs):
        result = await super().init_process_group(*args, **kwargs)
        self._in_group = True
        return result

    async def update_weight(self, name, dtype, shape, empty_cache=False):
        result = await super().update_weight(name, dtype, shape, empty_cache)
        self._has_weights |= empty_cache  # which marks the last one
        return result


async def ended(llm) -> None:
    """Returns when the engine has died."""
    while not llm.errored:
        await asyncio.sleep(WATCH_SECONDS)
    print(f"the rollout engine has died: {await cause_of_death(llm)}", file=sys.stderr, flush=True)


def this_actor() -> tuple[str, bool]:
    """Its id, and whether Ray has started it again."""
    import ray

    context = ray.get_runtime_context()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own code calls what it has deprecated
        return context.get_actor_id(), context.was_current_actor_reconstructed


def is_engine_death(error: BaseException) -> bool:
    """Whether the actor's process has ended or is being started again, or vLLM's EngineCore has ended."""
    import ray
    from vllm.v1.engine.exceptions import EngineDeadError

    return isinstance(error, (ray.exceptions.RayActorError, EngineDied, EngineDeadError))


def dead(engines) -> list[int]:
    """Numbers of the engines that do not work, or that are new and have no weights yet."""
    import ray

    calls = [engine.membership.remote() for engine in engines]
    found = []
    for i, call in enumerate(calls):
        try:
            _, has_weights = ray.get(call, timeout=ANSWER_SECONDS)
        except ray.exceptions.RayError:
            has_weights = False
        if not has_weights:
            found.append(i)
    return found


def why_dead(error: BaseException) -> str:
    """Ray wraps what the actor raised, with its traceback."""
    return reason(getattr(error, "cause", None) or error)


def named(numbers: list[int]) -> str:
    if not numbers:
        return "a rollout engine"
    return f"rollout engine{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def end_former_engine(actor_id: str, restarted: bool) -> None:
    """An EngineCore outlives an actor that was killed, and would keep the memory that the new one needs."""
    former = (process for process in psutil.process_iter() if restarted and process.pid != os.getpid())
    for process in former:
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == actor_id:
                process.kill()
                process.wait(10)
    os.environ[MARK] = actor_id


async def cause_of_death(llm) -> str:
    """How the EngineCore ended, and what it has said last."""
    manager = getattr(llm.engine_core.resources, "engine_manager", None)
    processes = list(getattr(manager, "processes", ()))
    for _ in range(20):  # it announces its end a moment before
        if all(process.exitcode is not None for process in processes):
            break
        await asyncio.sleep(0.1)
    return described_exit([p.exitcode for p in processes if p.exitcode is not None], last_error(own_log()))


def described_exit(codes: list[int], error: str | None) -> str:
    if (code := next((code for code in codes if code < 0), None)) is not None:
        name = signal.Signals(-code).name
        memory = f": mostly the machine or its container was out of memory; {LESS_MEMORY}" if name == "SIGKILL" else ""
        return f"its EngineCore was ended by {name}{memory}"
    ended = f"its EngineCore ended with status {codes[0]}" if codes else "its EngineCore does not work any more"
    return f"{ended}: {error}" if error else f"{ended}; the log of the rollout actor says more"


def own_log() -> str:
    """The end of what this process and its EngineCore have written to stderr, where that is a file, as under Ray."""
    path = Path(os.readlink("/proc/self/fd/2"))
    if not path.is_file():
        return ""
    with open(path, "rb") as log:
        log.seek(max(path.stat().st_size - LOG_BYTES, 0))
        return log.read().decode(errors="replace")


def last_error(log: str) -> str | None:
    found = [match[0] for match in RAISED.finditer(log)]
    return found[-1][:400] if found else None
