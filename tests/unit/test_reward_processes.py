"""Reward functions that hang, crash, exit, take all memory or leave processes behind: one failed reward each, and the
others get theirs. Real processes."""

import asyncio
import json
import os
import signal
import subprocess
import sys

import psutil
import pytest
import uvloop
from patience import seconds, wait_until_gone

from openrlhf_ebpo.rewards.processes import sources
from openrlhf_ebpo.rewards.processes.reward_values import RewardError
from openrlhf_ebpo.rewards.processes.sources import RewardFile, default_calls
from openrlhf_ebpo.rewards.processes.worker import MAX_PRINTED_CHARS
from openrlhf_ebpo.rewards.reward_settings import RewardSettings

LIMIT = seconds(1.0)
HOOK = "openrlhf_ebpo.upstream.install.install"
REWARD = r"""
import ctypes, os, re, signal, subprocess, sys, threading, time
CALLS = []

class Hostile(Exception):
    def __str__(self):
        sys.exit("no text")

def spawn(code):
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    open(os.path.join(os.path.dirname(__file__), "spawned"), "a").write(f"{process.pid}\n")

def reward_func(queries, prompts, labels):
    kind = labels[0]
    CALLS.append(kind)
    if kind == "good": return {"rewards": 1.0, "extra_logs": {"calls": len(CALLS), "pid": os.getpid()}}
    if kind == "slow": time.sleep(0.3)
    if kind == "sleeps": time.sleep(1000)
    if kind == "regex": re.match(r"(a+)+$", "a" * 60 + "b")
    if kind == "exits": sys.exit("the judge is gone")
    if kind == "interrupts": raise KeyboardInterrupt
    if kind == "os._exit": os._exit(3)
    if kind == "segfault": ctypes.string_at(0)
    if kind == "killed": os.kill(os.getpid(), signal.SIGKILL)
    if kind == "memory": return {"rewards": len([bytearray(1 << 20) for _ in range(100_000)])}
    if kind == "hostile": raise Hostile
    if kind == "raises": return {}["answer"]
    if kind == "huge": return {"rewards": 1.0, "extra_logs": {str(i): 1.0 for i in range(100_000)}}
    if kind == "lambda": return {"rewards": 1.0, "extra_logs": {"function": lambda: 1, "text": "x" * (2 << 20)}}
    if kind == "dropped": return {"rewards": 1.0, "lock": threading.Lock()}
    if kind == "closes":
        os.closerange(0, 256)
        time.sleep(1000)
    if kind == "writes":
        for fd in range(3, 64):
            try: os.write(fd, b"garbage" * 10)
            except OSError: pass
        time.sleep(1000)
    if kind == "prints": print("hello " * 1000, flush=True)
    if kind == "leaves": spawn("import time; time.sleep(1000)")
    if kind == "forks":
        if not os.fork():
            os.setsid()
            if os.fork(): os._exit(0)
            open(os.path.join(os.path.dirname(__file__), "spawned"), "a").write(f"{os.getpid()}\n")
            time.sleep(1000)
    if kind == "tensors":
        import torch
        return {"rewards": torch.tensor([0.5]), "scores": torch.tensor(1), "extra_logs": {"judge": torch.ones(3)}}
    if kind == "arrays":
        import numpy
        return {"rewards": numpy.array([0.5]), "scores": numpy.float32(1), "extra_logs": {"judge": numpy.int64(2)}}
    return {"rewards": 0.0}
"""


@pytest.fixture
def ask(tmp_path):
    """Labels -> what each gives, a reply or the error's text, all asked for at the same time; `then`: afterwards."""
    (tmp_path / "reward.py").write_text(REWARD)

    def run(*labels: str, then: tuple = (), timeout: float = 60.0, memory_mb: int = 512, workers: int = 2) -> list:
        async def one(calls: RewardFile, label: str):
            try:
                return await calls.ask([f"q {label}"], ["q "], [label])
            except RewardError as error:
                return str(error)

        async def gather():
            calls = RewardFile(RewardSettings((str(tmp_path / "reward.py"),), None, timeout, memory_mb, workers), HOOK)
            await calls.prepare()
            found = await asyncio.gather(*(one(calls, label) for label in labels))
            return found + await asyncio.gather(*(one(calls, label) for label in then))

        return uvloop.run(asyncio.wait_for(gather(), 200))  # the loop that Ray's actors have

    return run


TOO_LONG = f"reward_func took longer than {LIMIT:g} s (--reward.timeout)"
BAD = {
    "sleeps": TOO_LONG,
    "regex": TOO_LONG,
    "exits": "SystemExit: the judge is gone (",
    "interrupts": "KeyboardInterrupt: ",
    "os._exit": "reward_func ended its process (exit code 3)",
    "segfault": "reward_func ended its process (signal 11, SIGSEGV)",
    "killed": "reward_func ended its process (signal 9, SIGKILL; another process killed it",
    "memory": "reward_func needed more memory than 64 MB (--reward.memory)",
    "hostile": "reward_func ended its process (exit code 1)",
    "raises": "KeyError: 'answer' (",
    "huge": "bytes for one response; 'extra_logs' is for numbers",
    "closes": "reward_func",
    "writes": "reward_func",
}


def test_what_goes_wrong_is_said_and_the_others_get_their_rewards(ask):
    labels = [*BAD, *["good", "slow"] * 30]
    found = ask(*labels, timeout=LIMIT, memory_mb=64)
    bad = dict(zip(BAD, found, strict=False))
    assert [kind for kind in BAD if BAD[kind] not in str(bad[kind])] == [], bad
    rewards = [reply if isinstance(reply, str) else reply["rewards"] for reply in found[len(BAD) :]]
    assert rewards == [1.0, 0.0] * 30


@pytest.mark.parametrize("which", [0, 1], ids=["keeper", "server"])
def test_a_process_that_somebody_kills_costs_no_reward(tmp_path, which):
    (tmp_path / "reward.py").write_text(REWARD)

    async def run() -> list[dict]:
        calls = RewardFile(RewardSettings((str(tmp_path / "reward.py"),), None, 60, 512, 1), HOOK)
        await calls.prepare()
        made = [asyncio.ensure_future(calls.ask(["q"], ["q"], ["slow"])) for _ in range(3)]
        await asyncio.sleep(0.1)
        keeper = psutil.Process(calls._processes._workers[0]._popen.pid)
        [keeper, *keeper.children()][which].kill()
        return [*await asyncio.gather(*made), await calls.ask(["q"], ["q"], ["good"])]

    assert [reply["rewards"] for reply in uvloop.run(run())] == [0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("kind", ["tensors", "arrays"])
def test_numbers_cross_the_border_as_numbers(ask, kind):
    (reply,) = ask(kind)
    judge = {"tensors": 1.0, "arrays": 2}[kind]
    assert reply == {"rewards": 0.5, "scores": 1, "extra_logs": {"judge": judge}}


def test_unread_values_may_be_anything_and_prints_are_not_replies(ask):
    assert [reply["rewards"] for reply in ask("dropped", "lambda", "prints", "good")] == [1.0, 1.0, 0.0, 1.0]


def test_what_is_printed_goes_to_standard_error(ask, capfd):
    assert [reply["rewards"] for reply in ask("prints")] == [0.0]
    printed = capfd.readouterr()
    assert "hello" in printed.err and not printed.out


def test_a_call_that_prints_much_does_not_fill_the_log(ask, capfd):
    assert [reply["rewards"] for reply in ask("prints", "prints")] == [0.0, 0.0]
    printed = capfd.readouterr().err
    assert printed.count("hello ") == 2 * (MAX_PRINTED_CHARS // 6) and printed.count("of what a call prints") == 2


def test_quick_calls_share_one_process_and_its_state(ask):
    found = ask(*["good"] * 20)
    assert len({reply["extra_logs"]["pid"] for reply in found}) == 1
    assert max(reply["extra_logs"]["calls"] for reply in found) == 20


def test_calls_that_wait_get_another_process_and_no_call_is_made_twice(ask):
    found = ask(*["slow"] * 32, *["good"] * 8, workers=2)
    by_process: dict[int, int] = {}
    for reply in found[-8:]:
        by_process[reply["extra_logs"]["pid"]] = reply["extra_logs"]["calls"]
    assert max(by_process.values()) < len(found) and sum(by_process.values()) <= len(found)


def test_as_many_calls_at_a_time_as_upstream_makes():
    assert default_calls() == min(32, len(os.sched_getaffinity(0)) + 4)


def test_a_source_whose_calls_all_hang_is_not_called_any_more(ask, monkeypatch):
    monkeypatch.setattr(sources, "MIN_FAILED", 4)
    found = ask(*["sleeps"] * (5 + default_calls()), timeout=0.2, workers=1)  # nothing has to end within it
    asked = sum(reply.startswith("reward_func took longer") for reply in found)
    assert 4 <= asked < 4 + default_calls(), "those that waited for a process by then"
    assert not found[-1].startswith("reward_func took longer") and found[-1].endswith(found[0])


def pids(folder) -> list[int]:
    return [int(line) for line in (folder / "spawned").read_text().split()] if (folder / "spawned").exists() else []


@pytest.mark.parametrize("kind", ["leaves", "forks"])
def test_what_a_function_leaves_behind_ends_with_its_process(ask, tmp_path, kind):
    ask(kind, "slow", "slow")
    assert pids(tmp_path)
    wait_until_gone(pids(tmp_path))


PARENT = """
import asyncio, json, psutil, sys
from pathlib import Path
from openrlhf_ebpo.rewards.processes.sources import RewardFile, default_calls
from openrlhf_ebpo.rewards.processes.worker import MAX_PRINTED_CHARS
from openrlhf_ebpo.rewards.reward_settings import RewardSettings
async def main():
    calls = RewardFile(RewardSettings((sys.argv[1],), None, 60, 512, 2), "openrlhf_ebpo.upstream.install.install")
    asyncio.ensure_future(calls.ask(["q"], ["q"], ["leaves"]))
    while not (Path(sys.argv[1]).parent / "spawned").exists():
        await asyncio.sleep(0.1)
    for kind in ("sleeps", "regex"):
        asyncio.ensure_future(calls.ask(["q"], ["q"], [kind]))
    await asyncio.sleep(1)
    print(json.dumps([process.pid for process in psutil.Process().children(recursive=True)]), flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_killed_rollout_actor_not_even_in_the_middle_of_a_call(tmp_path, number):
    (tmp_path / "reward.py").write_text(REWARD)
    command = [sys.executable, "-c", PARENT, str(tmp_path / "reward.py")]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    found = json.loads(parent.stdout.readline())
    os.kill(parent.pid, number)
    parent.wait()
    assert len(found) >= 2
    wait_until_gone([*found, *pids(tmp_path)])


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (
            "import no_such_module",
            "reward.py fails when imported: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("import sys; sys.exit(4)", "reward.py fails when imported: SystemExit: 4"),
        ("import os; os._exit(4)", "reward.py ended its process (exit code 4) while it was imported"),
        ("reward = 1", "reward.py fails when imported: reward_func is not callable, or not there"),
        ("reward_func = 1", "reward.py fails when imported: reward_func is not callable, or not there"),
        ("async def reward_func(queries, prompts, labels): return 1.0", "reward_func is an `async def`"),
        (
            "class Judge:\n    async def __call__(self, queries, prompts, labels): return 1.0\nreward_func = Judge()",
            "reward_func is an `async def`",
        ),
        (
            "def reward_func(queries, prompts): return 1.0",
            "reward_func(queries, prompts) cannot be called with queries, prompts, labels (too many positional",
        ),
        ("def reward_func(q, p, l, tokenizer): return 1.0", "(missing a required argument: 'tokenizer')"),
        ("def reward_func(completions, **kwargs): return 1.0", "reward_func(completions, **kwargs) cannot be called"),
    ],
)
def test_a_file_that_cannot_be_imported_is_named_at_once(tmp_path, source, shown):
    (tmp_path / "reward.py").write_text(source)
    with pytest.raises(RewardError) as error:
        asyncio.run(RewardFile(RewardSettings((str(tmp_path / "reward.py"),)), HOOK).prepare())
    assert shown in str(error.value)


def test_a_model_on_the_gpu_is_loaded_once(tmp_path):
    """A stand-in for a torch that has been to the GPU, since this has to be seen where there is none."""
    (tmp_path / "torch.py").write_text("class cuda:\n    is_initialized = staticmethod(lambda: True)\n")
    (tmp_path / "reward.py").write_text(
        "import os, time, torch\ndef reward_func(q, p, l):\n    time.sleep(0.1)\n    return {'rewards': os.getpid()}\n"
    )

    async def gather():
        calls = RewardFile(RewardSettings((str(tmp_path / "reward.py"),), None, 60, 512, 2), HOOK)
        return await asyncio.gather(*(calls.ask(["q"], ["q"], ["l"]) for _ in range(30)))

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        assert len({reply["rewards"] for reply in asyncio.run(gather())}) == 1
