"""End the run with its cause when a rollout engine dies, as any other process; `--train.max_restarts` resumes it.

vLLM's EngineCore is a process below the rollout actor. When it ends, requests fail with an EngineDeadError that names
no cause, and a collective_rpc under way (of a weight sync, of joining its group) waits for ever: nothing completes its
future (vllm/v1/engine/core_client.py, `process_outputs_socket`). So the actor ends with its EngineCore, and every call
fails. The EngineCore ends with its actor, which the kernel sees to: a cluster that the command has joined would keep
it, with its memory.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

from openrlhf_ebpo.command import end_with_parent
from openrlhf_ebpo.errors import without_traceback
from openrlhf_ebpo.upstream.engine_errors import JOIN_SECONDS, EngineError

POLL_SECONDS = 0.5
EXIT_DELAY_SECONDS = 2.0  # for the cause to reach the driver before the actor ends
LOG_BYTES = 64 << 10
RAISED = re.compile(r"\b[\w.]*(?<!EngineDead)(?:Error|Exception): .+")
LESS_MEMORY = "less memory for it: --vllm.gpu_memory_utilization, --data.max_len, fewer processes on its machine"


class FailFastRolloutActor:
    """Mixin over RolloutRayActor: it ends with its EngineCore or a failed weight sync, and tells the cause."""

    async def __init__(self, *args, **kwargs):
        await super().__init__(*args, **kwargs)
        self._joining = asyncio.get_running_loop().create_future()
        self._sync_error: Exception | None = None

    async def death(self) -> str:
        """Wait for the EngineCore to end or a weight sync to fail; return the cause. The actor exits right after."""
        while not (self.llm.errored or self._sync_error):
            await asyncio.sleep(POLL_SECONDS)
        asyncio.get_running_loop().call_later(EXIT_DELAY_SECONDS, os._exit, 1)
        if self.llm.errored:
            return await cause_of_death(self.llm)
        return f"a weight sync failed: {without_traceback(self._sync_error)}"

    async def update_weight(self, *args, **kwargs):
        return await self._end_with_failure(super().update_weight(*args, **kwargs))

    async def update_weight_cuda_ipc(self, *args, **kwargs):
        return await self._end_with_failure(super().update_weight_cuda_ipc(*args, **kwargs))

    async def _end_with_failure(self, call):
        """Await one call of a weight sync. An engine that raises before it has joined the broadcast leaves the policy
        waiting for it (gloo: two hours); the end of the engine's process closes the connection."""
        try:
            return await call
        except Exception as error:
            self._sync_error = error
            raise

    async def init_process_group(self, *args, **kwargs):
        call = super().init_process_group(*args, **kwargs)
        self._joining.set_result(asyncio.ensure_future(asyncio.wait_for(call, JOIN_SECONDS)))
        return await self.joined()

    async def joined(self):
        """Wait until the engine is in the weight-sync group.

        Raises:
            EngineError: it took longer than JOIN_SECONDS.
        """
        try:
            return await (await self._joining)
        except asyncio.TimeoutError:
            raise EngineError(
                f"a rollout engine on {os.uname().nodename} did not join the weight-sync group within "
                f"{JOIN_SECONDS:.0f} s: do the machines reach each other?"
            ) from None


def end_with_actor(original):
    """Replacement of EngineCoreProc.run_engine_core, which vLLM has its new process find by name."""
    run_engine_core.__wrapped__ = original
    return run_engine_core


def run_engine_core(*args, **kwargs) -> None:
    """Run vLLM's EngineCore in a process that is killed when the actor is gone. The rows are applied where it was
    forked, and not where it was spawned."""
    from vllm.v1.engine.core import EngineCoreProc

    end_with_parent(signal.SIGKILL)
    run = EngineCoreProc.run_engine_core
    getattr(run, "__wrapped__", run)(*args, **kwargs)


async def cause_of_death(llm) -> str:
    """Describe how the EngineCore ended, with the last error that it has logged."""
    manager = getattr(llm.engine_core.resources, "engine_manager", None)
    processes = list(getattr(manager, "processes", ()))
    for _ in range(20):  # it announces its end a moment before
        if all(process.exitcode is not None for process in processes):
            break
        await asyncio.sleep(0.1)
    return describe_exit([p.exitcode for p in processes if p.exitcode is not None], read_own_log())


def describe_exit(codes: list[int], log: str) -> str:
    """codes: exit codes of its processes. log: the last error in it is the cause."""
    if (code := next((code for code in codes if code < 0), None)) is not None:
        name = signal.Signals(-code).name
        memory = f": mostly the machine or its container was out of memory; {LESS_MEMORY}" if name == "SIGKILL" else ""
        return f"its EngineCore was ended by {name}{memory}"
    ended = f"its EngineCore ended with status {codes[0]}" if codes else "its EngineCore failed"
    errors = [match[0] for match in RAISED.finditer(log)]
    return f"{ended}: {errors[-1][:400]}" if errors else f"{ended}; the log of the rollout actor says more"


def read_own_log() -> str:
    """Return the end of what this process and its EngineCore have written to stderr, if that is a file, as under
    Ray."""
    path = Path(os.readlink("/proc/self/fd/2"))
    if not path.is_file():
        return ""
    with open(path, "rb") as log:
        log.seek(max(path.stat().st_size - LOG_BYTES, 0))
        return log.read().decode(errors="replace")
