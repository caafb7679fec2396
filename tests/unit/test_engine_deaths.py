"""A rollout engine that dies: what is said of it, and the limits of whoever waits for it."""

import ast
import asyncio
import itertools
import os
import subprocess
import sys
from datetime import timedelta
from types import SimpleNamespace

import pytest
from ray.exceptions import RayActorError

from openrlhf_ebpo.engines import engines
from openrlhf_ebpo.upstream import engine_errors
from openrlhf_ebpo.upstream.controller import failures
from openrlhf_ebpo.upstream.engine_errors import EngineError
from openrlhf_ebpo.upstream.rollout import deaths
from openrlhf_ebpo.upstream.stack import module_path


def test_the_cause_is_the_signal_or_the_last_error_of_the_log():
    assert "SIGKILL: mostly the machine or its container was out of memory" in deaths.describe_exit(
        [-9], "ValueError: x"
    )
    assert deaths.describe_exit([-11], "") == "its EngineCore was ended by SIGSEGV"
    log = (
        "(EngineCore pid=3) ERROR torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB\nvllm.EngineDeadError: "
        "see above\n"
    )
    assert deaths.describe_exit([1], log) == (
        "its EngineCore ended with status 1: torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB"
    )
    assert "log of the rollout actor" in deaths.describe_exit([1], "all is well")
    assert deaths.describe_exit([], "").startswith("its EngineCore failed")


def test_what_an_engine_prints_is_found_where_it_goes_to_a_file(tmp_path):
    code = (
        "import sys; from openrlhf_ebpo.upstream.rollout.deaths import read_own_log; print('ValueError: x', "
        "file=sys.stderr); print(read_own_log())"
    )
    with open(tmp_path / "log", "w") as log:
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=log, text=True)
    assert "ValueError: x" in done.stdout
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "\n", "a pipe cannot be read again"


class Engine:
    """A rollout actor whose engine dies when it is told to, and joins as long as `join` says."""

    join = 0.0

    async def __init__(self):
        self.llm = SimpleNamespace(errored=False, engine_core=SimpleNamespace(resources=SimpleNamespace()))

    async def init_process_group(self, number: int):
        await asyncio.sleep(self.join)
        return 1 // number

    async def update_weight(self, name, number: int):
        return 1 // number

    update_weight_cuda_ipc = update_weight


class Actor(deaths.FailFastRolloutActor, Engine):
    pass


async def started(join: float = 0.0) -> Actor:
    actor = object.__new__(Actor)
    actor.join = join
    await actor.__init__()
    return actor


def test_an_actor_tells_the_cause_and_ends_with_its_engine(monkeypatch):
    ended = []
    monkeypatch.setattr(deaths, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(deaths, "EXIT_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(os, "_exit", ended.append)

    async def story():
        actor = await started()
        death = asyncio.create_task(actor.death())
        await asyncio.sleep(0.1)
        assert not death.done()
        actor.llm.errored = True
        assert "EngineCore" in await asyncio.wait_for(death, 20)
        await asyncio.sleep(0.1)

    asyncio.run(story())
    assert ended == [1]


@pytest.mark.parametrize("method", ["update_weight", "update_weight_cuda_ipc"])
def test_an_actor_whose_engine_refuses_a_weight_ends_with_the_cause(monkeypatch, method):
    """The policy may wait in the broadcast that the engine has not joined."""
    ended = []
    monkeypatch.setattr(deaths, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(deaths, "EXIT_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(os, "_exit", ended.append)

    async def story():
        actor = await started()
        death = asyncio.create_task(actor.death())
        assert await getattr(actor, method)("head", number=1) == 1
        await asyncio.sleep(0.1)
        assert not death.done()
        with pytest.raises(ZeroDivisionError):
            await getattr(actor, method)("head", number=0)
        told = await asyncio.wait_for(death, 20)
        assert told == "a weight sync failed: integer division or modulo by zero"
        await asyncio.sleep(0.1)

    asyncio.run(story())
    assert ended == [1]


def test_who_waits_for_an_engine_to_join_learns_how_that_ended(monkeypatch):
    async def story(number: int, join: float):
        actor = await started(join)
        waiting = asyncio.create_task(actor.joined())
        await asyncio.sleep(0.05)
        assert not waiting.done(), "not called yet"
        calls = await asyncio.gather(actor.init_process_group(number), waiting, return_exceptions=True)
        return [each if isinstance(each, int) else str(each) for each in calls]

    assert asyncio.run(story(1, 0.01)) == [1, 1]
    assert asyncio.run(story(0, 0.01)) == ["integer division or modulo by zero"] * 2
    monkeypatch.setattr(deaths, "JOIN_SECONDS", 0.1)
    for said in asyncio.run(story(1, 60)):
        assert "did not join the weight-sync group within 0 s: do the machines reach each other?" in said


def test_the_limits_end_a_start_before_the_barrier_of_the_other_ranks_does():
    tree = ast.parse(module_path("openrlhf.utils.deepspeed.deepspeed").read_text())
    setup = next(node for node in ast.walk(tree) if getattr(node, "name", None) == "setup_distributed")
    barrier = eval(ast.unparse(setup.args.defaults[0]), {"timedelta": timedelta})
    assert barrier.total_seconds() > engine_errors.LOAD_SECONDS + engine_errors.JOIN_SECONDS


def test_engines_join_a_group_where_upstream_makes_one():
    """Upstream's own line, from its source: with CUDA's memory handles the engine is never called to join."""
    tree = ast.parse(module_path("openrlhf.trainer.ray.ppo_actor").read_text())
    line = next(
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "self.use_cuda_ipc"
    )
    upstream = compile(ast.Expression(line), "upstream", "eval")
    for backend, colocate_all, async_enable in itertools.product(("nccl", "gloo"), (True, False), (True, False)):
        train = SimpleNamespace(colocate_all=colocate_all, async_enable=async_enable)
        args = SimpleNamespace(vllm=SimpleNamespace(sync_backend=backend), train=train)
        trainer = SimpleNamespace(args=args)
        assert failures.syncs_in_a_group(args) is not eval(upstream, {"backend": backend, "self": trainer})


@pytest.fixture
def start(monkeypatch):
    """Start engines of which each first call gives what a test says; `ray` is a stand-in, no engine starts."""

    def started(*ends, patience=None):
        refs = list(range(len(ends)))

        def get(done):
            for ref in done:
                if isinstance(ends[ref], Exception):
                    raise ends[ref]

        def wait(waiting, timeout):
            assert timeout
            return [ref for ref in waiting if ends[ref] != "never"][:1], []

        actors = [SimpleNamespace(limit_rewards=SimpleNamespace(remote=lambda _, ref=ref: ref)) for ref in refs]
        monkeypatch.setattr("openrlhf.trainer.ray.vllm_engine.create_vllm_engines", lambda *_, **__: actors)
        monkeypatch.setattr("ray.get", get)
        monkeypatch.setattr("ray.wait", wait)
        clock = itertools.count(0, 3600.0)
        monkeypatch.setattr(engines.time, "monotonic", lambda: next(clock))
        return engines._start(engines.EngineSettings("m", 64, num_engines=len(ends), patience=patience)) == actors

    return started


def test_an_engine_that_does_not_start_ends_the_job_with_its_cause_though_others_still_load(start):
    assert start("up", "up")
    with pytest.raises(EngineError, match=r"an engine for m .* did not start: .*no licence"):
        start("never", RayActorError(error_msg="no licence"))


@pytest.mark.parametrize("patience", [None, 60.0])
def test_no_job_waits_for_ever_for_an_engine(start, patience):
    with pytest.raises(EngineError, match=r"engines of m: .*3600 s"):
        start("up", "never", patience=patience)
