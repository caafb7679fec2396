"""Engines that die: what is said, what is repeated, and where no restart is possible."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from openrlhf_ebpo.engines import deaths, regenerated, restarts
from openrlhf_ebpo.errors import UsageError


def settings(**changes):
    values = {
        "max_restarts": 2,
        "tensor_parallel_size": 1,
        "sync_with_ray": False,
        "colocate_all": False,
        "async_enable": False,
    }
    values |= changes
    return SimpleNamespace(vllm=SimpleNamespace(**values), train=SimpleNamespace(**values))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"max_restarts": 0}, "--vllm.max_restarts is 0"),
        ({"tensor_parallel_size": 2}, "--vllm.tensor_parallel_size 2"),
        ({"colocate_all": True}, "--train.colocate_all"),
        ({"sync_with_ray": True}, "--vllm.sync_with_ray"),
    ],
)
def test_where_an_engine_cannot_be_started_again_the_error_names_engine_cause_and_flag(changes, word):
    args = settings(**changes)
    with pytest.raises(restarts.EngineError) as stopped:
        restarts.check_may_restart(args, "rollout engine 3", 1, deaths.EngineDied("its EngineCore was ended by SIGBUS"))
    assert all(
        text in str(stopped.value) for text in ("rollout engine 3 has died: its EngineCore was ended by SIGBUS", word)
    )


def test_a_crash_loop_ends():
    args = settings()
    for death in (1, 2):
        restarts.check_may_restart(args, "rollout engine 0", death)
    with pytest.raises(restarts.EngineError, match=r"3 engines have died in this run\n--vllm.max_restarts 2 is"):
        restarts.check_may_restart(args, "rollout engine 0", 3)
    assert restarts.why_not(settings(colocate_all=True, async_enable=True)) is None, "then it has GPUs of its own"


def test_a_negative_number_of_restarts_is_refused():
    with pytest.raises(UsageError, match=r"--vllm.max_restarts is -1"):
        restarts.check_flag({"vllm.max_restarts": -1})
    restarts.check_flag({"vllm.max_restarts": 0})


def test_prompts_can_be_given_again_also_in_the_middle_and_what_is_left_waits():
    prompts = regenerated.RepeatedPrompts(iter("abcdef"))
    prompts.begin()
    assert [next(prompts) for _ in range(3)] == ["a", "b", "c"]
    prompts.back()
    assert next(prompts) == "a"
    prompts.back()  # a second death
    assert [next(prompts) for _ in range(2)] == ["a", "b"]
    prompts.begin()  # the next batch, after the filter needed fewer
    assert [next(prompts) for _ in range(2)] == ["c", "d"]
    prompts.back()
    assert list(prompts) == ["c", "d", "e", "f"]


def test_the_cause_is_the_signal_or_the_last_error_of_the_log():
    assert "SIGKILL: mostly the machine or its container was out of memory" in deaths.described_exit(
        [-9], "ValueError: x"
    )
    assert deaths.described_exit([-11], None) == "its EngineCore was ended by SIGSEGV"
    log = "(EngineCore pid=3) ERROR torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB\nvllm.EngineDeadError: see above\n"
    assert deaths.described_exit([1], deaths.last_error(log)) == (
        "its EngineCore ended with status 1: torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB"
    )
    assert deaths.last_error("all is well") is None
    assert "log of the rollout actor" in deaths.described_exit([1], None)
    assert deaths.described_exit([], None).startswith("its EngineCore does not work any more")


def test_what_an_engine_prints_is_found_where_it_goes_to_a_file(tmp_path):
    code = "import sys; from openrlhf_ebpo.engines.deaths import own_log; print('ValueError: x', file=sys.stderr); print(own_log())"
    with open(tmp_path / "log", "w") as log:
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=log, text=True, timeout=120)
    assert "ValueError: x" in done.stdout
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "\n", "a pipe cannot be read again"


def test_the_engine_that_a_killed_actor_leaves_behind_is_ended_and_no_other():
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    started = {name: subprocess.Popen(sleep, env={**os.environ, deaths.MARK: name}) for name in ("mine", "other")}
    try:
        deaths.end_former_engine("mine", restarted=False)
        assert all(process.poll() is None for process in started.values())
        deaths.end_former_engine("mine", restarted=True)
        assert started["mine"].wait(10) is not None and started["other"].poll() is None
        assert os.environ[deaths.MARK] == "mine"
    finally:
        os.environ.pop(deaths.MARK, None)
        for process in started.values():
            process.kill()
            process.wait()


class Engine:
    """A rollout actor whose engine dies when it is told to."""

    def __init__(self):
        self.llm = SimpleNamespace(errored=False, engine_core=SimpleNamespace(resources=SimpleNamespace()))
        self.cancelled = False

    async def generate_responses(self):
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            self.cancelled = True
            raise


def test_whoever_waits_for_a_response_is_told_why_there_is_none():
    class Actor(deaths.RestartedRolloutActor, Engine):
        __init__ = Engine.__init__

    async def story():
        actor = Actor()
        actor._engine_ends = asyncio.create_task(deaths.ended(actor.llm))
        waiting = asyncio.create_task(actor.generate_responses())
        await asyncio.sleep(0.1)
        actor.llm.errored = True
        with pytest.raises(deaths.EngineDied, match="EngineCore"):
            await asyncio.wait_for(waiting, 20)
        await asyncio.sleep(0)
        assert actor.cancelled

    asyncio.run(story())


def test_the_trainers_queue_answers_requests_for_weights_and_gives_everything_else():
    payloads, sent = [restarts.WEIGHTS, ([], {}, None, 0.1), restarts.WEIGHTS, "done"], []
    queue = restarts.AnsweringQueue(
        SimpleNamespace(get=lambda block: payloads.pop(0)), lambda: sent.append(len(payloads))
    )
    assert queue.get(block=True) == ([], {}, None, 0.1)
    assert queue.get(block=True) == "done" and sent == [3, 1]


class AsyncTrainer:
    def __init__(self):
        self.rollout_queue, self.sent = EmptyQueue(), 0

    def broadcast_to_vllm(self):
        self.sent += 1


class EmptyQueue:
    """Ray's has a length, too: an empty one is false."""

    def __init__(self):
        self.payloads = [restarts.WEIGHTS, "done"]

    def __len__(self):
        return 0

    def get(self, block):
        return self.payloads.pop(0)


def test_the_queue_of_an_async_trainer_is_replaced_also_when_it_is_empty():
    class Trainer(restarts.ReadmittingTrainer, AsyncTrainer):
        args = settings(max_restarts=0)

    trainer = Trainer()
    assert trainer.rollout_queue.get(block=True) == "done" and trainer.sent == 1
