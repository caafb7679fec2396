"""The process that pushes is killed, again and again: it is started again, nothing is lost, and nothing goes twice."""

import os
import random
import signal
import time

import hub_runs
import pytest
from patience import seconds, wait_until

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.hub import outbox, pusher, training
from openrlhf_ebpo.hub.pusher import MAX_STARTS, Keeper
from openrlhf_ebpo.run.run_log import read_run

REPO = "owner/model"


@pytest.fixture
def environment(hub, hub_environment, monkeypatch):
    """Of a user whose pauses are short; processes that are left behind are ended."""
    fast = {"OPENRLHF_EBPO_HUB_PAUSE": "0.02", "OPENRLHF_EBPO_HUB_TIMEOUT": str(seconds(5)), "OMP_NUM_THREADS": "1"}
    for name, value in {**hub_environment, **fast}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("openrlhf_ebpo.hub.pusher.LOOK_SECONDS", 0.05)


@pytest.fixture
def running(environment, make_run):
    run_dir = make_run(steps=(2, 4), status="running")
    yield run_dir
    kill(run_dir)


def queue(run_dir, *steps):
    for step in steps:
        outbox.add(run_dir, step, run_dir.parent / "ckpt" / f"global_step{step}_hf", repo=REPO)


def kill(run_dir) -> bool:
    if not outbox.is_locked(run_dir) or not (pid := outbox.who_pushes(run_dir)).isdigit():
        return False
    os.kill(int(pid), signal.SIGKILL)
    wait_until(lambda: not outbox.is_locked(run_dir) or outbox.who_pushes(run_dir) != pid)
    return True


def pushed(run_dir):
    return [int(step) for step, row in outbox.read_state(run_dir)["steps"].items() if row["state"] == "pushed"]


def arguments(sections, run_dir, wait=60.0):
    return sections(**{"hub.repo": REPO, "hub.wait": wait, "logger.run_dir": str(run_dir)})


def test_one_that_was_killed_in_a_training_is_started_again_and_that_is_said_once(hub, running, sections, capsys):
    fault = hub.fail(r"^PUT /lfs/", hang=True)
    keeper = training.start_pushing(arguments(sections, running))
    queue(running, 2, 4)
    wait_until(lambda: fault.hits)
    assert kill(running)
    wait_until(lambda: pushed(running) == [2, 4])
    assert outbox.is_locked(running)  # it goes on, as the training does
    keeper.stop()
    assert capsys.readouterr().out.count("has ended before its work") == 1
    assert [c.title for c in hub.repo(REPO).history()] == ["step 4", "step 2", "initial commit"]


def test_the_end_of_a_training_starts_one_if_none_lives_and_waits_for_it(hub, running, sections, capsys):
    queue(running, 2, 4)
    write_json(running / "run.json", {**read_run(running), "status": "complete"})
    training.finish(arguments(sections, running))
    assert pushed(running) == [2, 4] and outbox.items(running) == []
    assert f"hub: 2 pushed and verified at {REPO}: steps 2, 4" in capsys.readouterr().out
    wait_until(lambda: not outbox.is_locked(running))


def test_with_no_time_to_wait_none_is_started_at_the_end(running, sections, capsys):
    queue(running, 2)
    training.finish(arguments(sections, running, wait=0.0))
    assert "not pushed yet: steps 2" in capsys.readouterr().out and not outbox.is_locked(running)


def test_killed_at_any_moment_nothing_is_lost_and_nothing_goes_twice(hub, running):
    chance = random.Random(0)
    hub.fail(".*", delay=0.03, times=10**6)
    stored = []
    put, hub.blobs = hub.blobs, Blobs(stored)
    assert put == {}
    queue(running, 2, 4)
    keeper, kills = Keeper(running, 60.0, report=lambda *_: None), 0
    deaths = iter(range(6))

    def strike():
        nonlocal kills
        keeper.starts, keeper.next_start = 0, 0.0  # more often than it would let itself be killed
        keeper.check()
        time.sleep(chance.uniform(0.0, 1.6))
        if next(deaths, None) is not None:
            kills += kill(running)

    wait_until(lambda: pushed(running) == [2, 4] and not outbox.items(running), 90, strike)
    assert kills >= 2
    repo = hub.repo(REPO)
    assert [c.title for c in repo.history()] == ["step 4", "step 2", "initial commit"]
    for step in (2, 4):
        weights = hub_runs.export_model(running.parent / "again", step) / "model.safetensors"
        assert repo.files(f"step-{step:06d}")["model.safetensors"] == weights.read_bytes()
    assert len(stored) == len(set(stored))


class Blobs(dict):
    """What is stored by LFS; remembers every arrival."""

    def __init__(self, arrivals):
        super().__init__()
        self.arrivals = arrivals

    def __setitem__(self, oid, content):
        self.arrivals.append(oid)
        super().__setitem__(oid, content)


def test_one_that_dies_at_once_is_given_up_after_pauses_that_grow_and_has_hope_after_a_success(make_run, monkeypatch):
    run_dir = make_run(status="running")
    queue(run_dir, 2)
    clock, started, said = [0.0], [], []
    monkeypatch.setattr("openrlhf_ebpo.hub.pusher.time.monotonic", lambda: clock[0])
    monkeypatch.delenv("OPENRLHF_EBPO_HUB_PAUSE", raising=False)
    keeper = Keeper(run_dir, 60.0, start=lambda *_: started.append(clock[0]), report=said.append)
    while keeper.check():
        clock[0] += 1.0
    assert started == [0, 5, 15, 35, 75] and len(started) == MAX_STARTS
    assert not keeper.check() and len(said) == 2 and "is not started any more" in said[1]
    assert f"openrlhf-ebpo hub push {run_dir}" in said[1]
    outbox.write_state(run_dir, 4, state="pushed")
    assert keeper.check() and len(started) == MAX_STARTS + 1
    clock[0] += 1e6
    while keeper.check():
        clock[0] += 1.0
    queue(run_dir, 4)  # a new step begins a new count
    assert keeper.check() and len(started) == 2 * MAX_STARTS + 1


def test_what_cannot_be_started_is_said_and_ends_no_training(make_run):
    def refuse(*_):
        raise UsageError("no room for a process")

    run_dir, said = make_run(status="running"), []
    queue(run_dir, 2)
    assert Keeper(run_dir, 60.0, start=refuse, report=said.append).check()
    assert said[-1] == "warning: hub: no room for a process"


def test_nothing_is_started_while_somebody_pushes_or_nothing_waits(make_run):
    run_dir = make_run(status="running")
    keeper = Keeper(run_dir, 60.0, start=pytest.fail)
    assert keeper.check()
    queue(run_dir, 2)
    with outbox.take_lock(run_dir):
        assert keeper.check()


def test_a_snapshot_that_nobody_can_read_holds_no_other_up(hub, use_hub, make_run, sections, capsys):
    run_dir = make_run()
    queue(run_dir, 2, 4)
    broken = outbox.items(run_dir)[0].path
    (broken / "push.json").write_text('{"step": "two"}')
    pusher.work(run_dir, pusher.Clock(run_dir, None, 60.0), report=lambda *_: None)
    assert pushed(run_dir) == [4] and outbox.pending(run_dir) == 0
    training.finish(arguments(sections, run_dir))
    assert f"the snapshot {broken} is damaged" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        '{"failed": "x", "steps": {}}',
        '{"failed": 0, "steps": {"2": "pushed"}}',
        '{"failed": 0, "steps": {"two": {"state": "pushed", "attempts": 1}}}',
        '{"failed": 0, "steps": {"2": {"state": "pushed\\u001b", "attempts": 1}}}',
        '{"failed": 0, "steps": [1]}',
        "[" * 100_000,
    ],
)
def test_a_hub_json_of_other_things_is_put_aside(hub, use_hub, make_run, text):
    run_dir = make_run()
    queue(run_dir, 2)
    (run_dir / "hub.json").write_text(text)
    pusher.work(run_dir, pusher.Clock(run_dir, None, 60.0), report=lambda *_: None)
    assert pushed(run_dir) == [2] and (run_dir / "hub.json.damaged").read_text() == text
