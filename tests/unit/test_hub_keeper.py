"""The process that pushes is killed, again and again: it is started again, nothing is lost, and nothing goes twice."""

import os
import random
import signal
import time

import hub_runs
import pytest
from hub_runs import REPO, queue, states
from patience import seconds, wait_until

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.hub import outbox, pusher, training
from openrlhf_ebpo.hub.pusher import Keeper
from openrlhf_ebpo.run.run_log import read_run

PUSHED = {"2": "pushed", "4": "pushed"}


@pytest.fixture
def running(hub, hub_environment, make_run, monkeypatch):
    """A training of a user whose pauses are short; a process that is left behind is ended."""
    fast = {"OPENRLHF_EBPO_HUB_PAUSE": "0.02", "OPENRLHF_EBPO_HUB_TIMEOUT": str(seconds(5)), "OMP_NUM_THREADS": "1"}
    for name, value in {**hub_environment, **fast}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("openrlhf_ebpo.hub.pusher.CHECK_SECONDS", 0.05)
    run_dir = make_run(steps=(2, 4), status="running")
    yield run_dir
    kill(run_dir)


def kill(run_dir) -> bool:
    if not outbox.is_locked(run_dir) or not (pid := outbox.who_pushes(run_dir)).isdigit():
        return False
    os.kill(int(pid), signal.SIGKILL)
    wait_until(lambda: not outbox.is_locked(run_dir) or outbox.who_pushes(run_dir) != pid)
    return True


def arguments(sections, run_dir, wait=60.0):
    return sections(**{"hub.repo": REPO, "hub.wait": wait, "logger.run_dir": str(run_dir)})


def work(run_dir):
    """What the process does, here."""
    pusher.work(run_dir, pusher.Clock(run_dir, None, 60.0), report=lambda *_: None)


def test_one_that_was_killed_in_a_training_is_started_again_and_that_is_said_once(hub, running, sections, capsys):
    fault = hub.fail(r"^PUT /lfs/", hang=True)
    keeper = training.start_pushing(arguments(sections, running))
    queue(running, 2, 4)
    wait_until(lambda: fault.hits)
    assert kill(running)
    wait_until(lambda: states(running) == PUSHED)
    assert outbox.is_locked(running)  # it goes on, as the training does
    keeper.stop()
    assert capsys.readouterr().out.count("has ended before its work") == 1
    assert [c.title for c in hub.repo(REPO).history()] == ["step 4", "step 2", "initial commit"]


@pytest.mark.parametrize("wait", [60.0, 0.0])
def test_the_end_of_a_training_starts_one_if_none_lives_and_waits_for_it(hub, running, sections, capsys, wait):
    queue(running, 2, 4)
    write_json(running / "run.json", {**read_run(running), "status": "complete"})
    training.finish(arguments(sections, running, wait))
    out = capsys.readouterr().out
    if not wait:
        assert "not pushed yet: steps 2, 4" in out and not outbox.is_locked(running)
        return
    assert states(running) == PUSHED and outbox.items(running) == []
    assert f"hub: 2 pushed and verified at {REPO}: steps 2, 4" in out
    wait_until(lambda: not outbox.is_locked(running))


def test_killed_at_any_moment_nothing_is_lost_and_nothing_goes_twice(hub, running):
    chance = random.Random(0)
    hub.fail(".*", delay=0.03, times=10**6)
    hub.blobs = Blobs()
    queue(running, 2, 4)
    keeper, kills = Keeper(running, 60.0, report=lambda *_: None), 0
    deaths = iter(range(6))

    def strike():
        nonlocal kills
        keeper.next_start = 0.0
        keeper.check()
        time.sleep(chance.uniform(0.0, 1.6))
        if next(deaths, None) is not None:
            kills += kill(running)

    wait_until(lambda: states(running) == PUSHED and not outbox.items(running), 90, strike)
    assert kills >= 2
    repo = hub.repo(REPO)
    assert [c.title for c in repo.history()] == ["step 4", "step 2", "initial commit"]
    for step in (2, 4):
        weights = hub_runs.export_model(running.parent / "again", step) / "model.safetensors"
        assert repo.files(f"step-{step:06d}")["model.safetensors"] == weights.read_bytes()
    assert len(hub.blobs.arrivals) == len(set(hub.blobs.arrivals))


class Blobs(dict):
    """What is stored by LFS; remembers every arrival."""

    def __init__(self):
        super().__init__()
        self.arrivals = []

    def __setitem__(self, oid, content):
        self.arrivals.append(oid)
        super().__setitem__(oid, content)


def test_one_that_dies_at_once_is_started_again_after_pauses_that_grow_and_that_is_said_once(make_run, monkeypatch):
    run_dir = make_run(status="running")
    clock, started, said = [0.0], [], []
    monkeypatch.setattr("openrlhf_ebpo.hub.pusher.time.monotonic", lambda: clock[0])
    monkeypatch.delenv("OPENRLHF_EBPO_HUB_PAUSE", raising=False)
    keeper = Keeper(run_dir, 60.0, start=lambda *_: started.append(clock[0]), report=said.append)
    keeper.check()
    assert started == []  # nothing waits
    queue(run_dir, 2)
    with outbox.take_lock(run_dir):
        keeper.check()
        assert started == []  # somebody pushes
    for _ in range(3000):
        keeper.check()
        clock[0] += 1.0
    assert started == [0, 5, 15, 35, 75, 155, 315, 635, 1235, 1835, 2435]
    assert len(said) == 1 and f"openrlhf-ebpo hub push {run_dir}" in said[0]


def test_what_cannot_be_started_is_said_and_ends_no_training(make_run):
    def refuse(*_):
        raise UsageError("no room for a process")

    run_dir, said = make_run(status="running"), []
    queue(run_dir, 2)
    Keeper(run_dir, 60.0, start=refuse, report=said.append).check()
    assert said[-1] == "warning: hub: no room for a process"


def test_a_snapshot_that_nobody_can_read_holds_no_other_up(hub, use_hub, make_run, sections, capsys):
    run_dir = make_run()
    queue(run_dir, 2, 4)
    broken = outbox.items(run_dir)[0].path
    (broken / "push.json").write_text('{"step": "two"}')
    work(run_dir)
    assert states(run_dir) == {"4": "pushed"} and outbox.pending(run_dir) == 0
    training.finish(arguments(sections, run_dir))
    assert f"the snapshot {broken} is damaged" in capsys.readouterr().out


def test_an_unreadable_hub_json_is_replaced(make_run):
    run_dir = make_run()
    (run_dir / "hub.json").write_text('{"steps"')
    outbox.write_state(run_dir, 2, state="pushed")
    assert states(run_dir) == {"2": "pushed"}
