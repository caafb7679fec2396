"""Policy and rollout engines make together the group in which weights travel; an engine that dies meanwhile is told of.

Upstream's policy waits for all engines in one blocking call, on the CPU for half an hour by torch's limit. An engine that died and
was started again has lost what it was asked, so nobody would come.
"""

from __future__ import annotations

import functools
import threading
import time
from concurrent import futures

from openrlhf_ebpo.engines.deaths import ANSWER_SECONDS, named, why_dead
from openrlhf_ebpo.engines.restarts import JOIN_SECONDS, EngineError

LOOK_SECONDS = 1.0
LOAD_SECONDS = 2 * 3600.0  # a large model from a slow disk; the supervisor tells of it long before


class JoiningPolicy:
    """Mixin over ActorPPOTrainer."""

    def _init_vllm_sync_group(self, backend: str) -> None:
        """Raises EngineError where an engine dies meanwhile, or it takes too long."""
        processes = process_ids(self.vllm_engines)
        joined = in_a_thread(functools.partial(super()._init_vllm_sync_group, backend))
        began = time.monotonic()
        while not futures.wait([joined], timeout=LOOK_SECONDS).done:
            if deaths := dead_since(processes, self.vllm_engines):
                raise EngineError(
                    f"{named([*deaths])} died while the group was made in which weights travel: {'; '.join(deaths.values())}"
                )
            if time.monotonic() - began > JOIN_SECONDS:
                raise EngineError(
                    f"policy and rollout engines did not make the group in which weights travel within {JOIN_SECONDS:.0f} s"
                )
        joined.result()


def process_ids(engines) -> list[int]:
    """Once all of them have started."""
    import ray

    try:
        return ray.get([engine.process_id.remote() for engine in engines], timeout=LOAD_SECONDS)
    except ray.exceptions.RayError as error:
        raise EngineError(f"a rollout engine did not start: {why_dead(error)}") from error


def in_a_thread(call) -> futures.Future:
    """Its result, of a thread that does not keep the process from ending."""
    import torch

    result: futures.Future = futures.Future()
    device = torch.cuda.current_device() if torch.cuda.is_available() else None  # each thread has one of its own

    def run() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="join_engines", daemon=True).start()
    return result


def dead_since(processes: list[int], engines) -> dict[int, str]:
    """Why, by the number of the engine: those that do not work any more, or run in another process than they did."""
    import ray

    calls = [engine.process_id.remote() for engine in engines]
    found = {}
    for number, (before, call) in enumerate(zip(processes, calls, strict=True)):
        try:
            if ray.get(call, timeout=ANSWER_SECONDS) != before:
                found[number] = "its process ended, and Ray has started it again"
        except ray.exceptions.GetTimeoutError:  # busy, on a slow machine
            continue
        except ray.exceptions.RayError as error:
            found[number] = why_dead(error)
    return found
