"""What the policy does while engines join that never come: `joining_engines.py ADDRESS`, a driver of that Ray cluster.

Prints a line for each case. A process of its own, for Ray's threads are not to outlive its shutdown in that of the tests.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading

import ray

from openrlhf_ebpo.engines.joining import JoiningPolicy
from openrlhf_ebpo.engines.restarts import EngineError


@ray.remote(num_cpus=0, max_restarts=1)
class Engine:
    async def process_id(self) -> int:
        return os.getpid()

    async def join(self) -> None:
        await asyncio.sleep(600)


class Upstream:
    def __init__(self):
        self.vllm_engines = [Engine.remote() for _ in range(2)]

    def _init_vllm_sync_group(self, backend: str) -> None:
        if backend == "broken":
            raise ValueError(backend)
        if backend == "waits":
            ray.get([engine.join.remote() for engine in self.vllm_engines])


class Policy(JoiningPolicy, Upstream):
    pass


def main() -> None:
    ray.init(address=sys.argv[1], log_to_driver=False)
    policy = Policy()
    policy._init_vllm_sync_group("at once")
    print("joined", flush=True)
    try:
        policy._init_vllm_sync_group("broken")
    except ValueError as error:
        print("raised", error, flush=True)
    second = ray.get(policy.vllm_engines[1].process_id.remote())
    threading.Timer(1.5, os.kill, (second, signal.SIGKILL)).start()
    try:
        policy._init_vllm_sync_group("waits")
    except EngineError as error:
        print("stopped", error, flush=True)
    os._exit(0)  # a thread still waits


if __name__ == "__main__":
    main()
