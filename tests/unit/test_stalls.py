"""Decisions: when a stalled training is reported and ended, and when a failed one is restarted."""

import re
import shutil

import pytest
from checkpoints import save_checkpoint

from openrlhf_ebpo.command import nested
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.run.heartbeat import Beat
from openrlhf_ebpo.run.run_settings import RunSettings
from openrlhf_ebpo.train.flags import Command
from openrlhf_ebpo.train.supervisor.restarts import PAUSE, Restarts, Start, SupervisionSettings, find_start
from openrlhf_ebpo.train.supervisor.stalls import Stalls, describe_missing_step, describe_phase, duration


def beat(step: int, phase: str = "training", detail: str = "") -> Beat:
    return Beat(step, phase, detail, 0.0, 0.0)


def test_no_step_is_said_after_the_limit_and_then_rarely():
    stalls = Stalls(warn=600, limit=0, began=0)
    stalls.update(beat(0), 1)
    due = [second for second in range(1, 9000) if stalls.is_due(second)]
    assert due == [600, 1200, 2400, 4800]
    assert not stalls.limit_passed(1e9)


def test_a_step_ends_a_warning_and_is_reported_once():
    stalls = Stalls(warn=600, limit=0, began=0)
    assert not stalls.update(beat(0), 1) and stalls.is_due(700)
    assert stalls.update(beat(1), 800) and not stalls.update(beat(1), 801)
    assert not stalls.is_due(1399) and stalls.is_due(1400)


def test_slow_steps_are_no_stall():
    """The first one, which holds the start, does not count as usual."""
    stalls = Stalls(warn=600, limit=1200, began=0)
    for step in range(5):
        stalls.update(beat(step), 5000 + 900 * step)
    now = 5000 + 900 * 4
    assert stalls.patience() == 4500
    assert not stalls.is_due(now + 4499) and stalls.is_due(now + 4500)
    assert not stalls.limit_passed(now + 4499) and stalls.limit_passed(now + 4500)


def test_the_limit_counts_from_the_last_change_of_any_kind():
    stalls = Stalls(warn=10, limit=60, began=0)
    for second, detail in ((0, "3 of 9"), (50, "2 of 9"), (100, "1 of 9")):
        stalls.update(beat(1, "rewards", detail), second)
    stalls.update(beat(1, "rewards", "1 of 9"), 150)
    assert not stalls.limit_passed(159) and stalls.limit_passed(160)


def test_a_heartbeat_that_cannot_be_read_for_a_moment_is_no_change():
    stalls = Stalls(warn=10, limit=60, began=0)
    for second in range(1, 60):
        stalls.update(beat(1) if second % 2 else None, second)
    assert stalls.limit_passed(61)
    stalls.update(None, 62)
    stalls.update(beat(2), 63)
    assert stalls.stepped == 63


def test_a_training_that_never_gives_a_sign_is_ended_too():
    stalls = Stalls(warn=10, limit=60, began=100)
    stalls.update(None, 101)
    assert stalls.is_due(110) and stalls.limit_passed(160)


def test_the_words_name_phase_what_is_outstanding_and_since_when():
    rewards = beat(7, "rewards", "3 of 256 outstanding, since 12:03:10")
    assert describe_missing_step(rewards, 660) == (
        "no step for 11 minutes (the last was 7); phase: rewards, 3 of 256 outstanding, since 12:03:10"
    )
    assert re.fullmatch(r"phase: training, since \d\d:\d\d:\d\d", describe_phase(beat(1)))
    assert describe_missing_step(None, 30) == "no step for 30 s; phase: unknown, since the heartbeat is missing"
    assert [duration(seconds) for seconds in (0.4, 119, 120, 7199, 7200)] == [
        "0 s",
        "119 s",
        "2 minutes",
        "120 minutes",
        "2 hours",
    ]


def test_restarts_are_counted_anew_after_a_newer_checkpoint(monkeypatch):
    counted = Restarts(2, Start("global_step10"))
    assert [counted.is_allowed(Start("global_step10")) for _ in range(3)] == [True, True, False]
    assert counted.is_allowed(Start("global_step20", "first")) and counted.in_a_row == 1
    assert counted.is_allowed(Start("global_step20", "first")) and counted.in_a_row == 2
    monkeypatch.delenv(PAUSE, raising=False)
    pauses = []
    counted = Restarts(99, Start(None))
    for _ in range(9):
        counted.is_allowed(Start(None))
        pauses.append(counted.pause())
    assert pauses[:4] == [10, 20, 40, 80] and pauses[-1] == 600
    assert not Restarts(0, Start(None)).is_allowed(Start("global_step10", "first"))


@pytest.mark.parametrize("saved", [False, True])
def test_a_restarted_command_resumes_and_moves_nothing_aside(saved):
    """The prior is reset, and a step chosen, once: not in place of what this command has saved since."""
    flags = {"ckpt.load_enable": False, "algo.advantage.ebpo.reset_prior": True, "ckpt.load_step": 8}
    command = Command(nested(flags), [], False, force=True, dry_run=False, sample=None, verbose=False, assume_cuda=None)
    restarted = command.resumed_after_failure(saved)
    reset, step = (False, None) if saved else (True, 8)
    assert restarted.args == nested(
        {"ckpt.load_enable": True, "algo.advantage.ebpo.reset_prior": reset, "ckpt.load_step": step}
    )
    assert not restarted.force


def test_a_step_that_was_chosen_is_gone_on_from_until_this_command_has_saved_something(tmp_path):
    """Then from its newest checkpoint, which may have the name of one that was there before."""

    def start(*attempts: str, load_step: int | None = 8) -> Start:
        return find_start(RunSettings(tmp_path / "run", tmp_path, load_step=load_step), attempts)

    for step in (8, 24):
        save_checkpoint(tmp_path, step, attempt="before")
    assert start("now") == Start("global_step8")
    shutil.rmtree(tmp_path / "_actor" / "global_step24")  # set aside
    assert start("now") == Start("global_step8")
    for step in (16, 24):
        save_checkpoint(tmp_path, step, attempt="now")
        assert start("now") == Start(f"global_step{step}", "now")
    assert start("now", "later", load_step=None) == Start("global_step24", "now")


GOOD = {
    "logger.stall_minutes": 10.0,
    "train.stall_limit": 0.0,
    "train.max_restarts": 0,
    "ckpt.save_steps": 5,
    "ckpt.disable_ds": False,
}


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("logger.stall_minutes", 0),
        ("logger.stall_minutes", float("nan")),
        ("train.stall_limit", -1),
        ("train.stall_limit", float("inf")),
        ("train.max_restarts", -1),
    ],
)
def test_a_flag_that_cannot_be_is_named(flag, value):
    SupervisionSettings.from_args(nested(GOOD)).check()
    with pytest.raises(UsageError, match=rf"--{flag} is {value}"):
        SupervisionSettings.from_args(nested({**GOOD, flag: value})).check()


@pytest.mark.parametrize("text", ["soon", "-1", "nan"])
def test_a_pause_that_cannot_be_is_named_before_the_training(monkeypatch, text):
    monkeypatch.setenv(PAUSE, text)
    with pytest.raises(UsageError, match=f"environment variable {PAUSE} is '{text}'; give a number above 0"):
        SupervisionSettings.from_args(nested(GOOD)).check()
