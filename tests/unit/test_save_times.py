"""A training saves by steps and by minutes, and ends after a step on request."""

import math
from types import SimpleNamespace

import pytest

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.run.heartbeat import END_FILE, MAX_ASKER_CHARS, end_requested_by, forget_end_request
from openrlhf_ebpo.upstream.saving import SaveTimes, check_minutes, force_save, is_exported


class Clock:
    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.parametrize(("every", "minutes"), [(3, 0.0), (3, 10.0), (math.inf, 10.0), (math.inf, 0.0)])
def test_steps_and_minutes_each_ask_for_a_save(every, minutes):
    """Steps of four minutes: ten have passed after the third, counted from the last save."""
    clock, saved = Clock(), []
    times = SaveTimes(SimpleNamespace(save_steps=every, save_minutes=minutes), clock)
    for step in range(1, 11):
        clock.seconds += 240
        if times.is_due(step):
            saved.append(step)
            times.restart()
    assert saved == ([3, 6, 9] if every == 3 or minutes else [])


def test_a_save_by_steps_puts_off_the_one_by_minutes():
    clock = Clock()
    times = SaveTimes(SimpleNamespace(save_steps=2, save_minutes=10.0), clock)
    clock.seconds += 599
    assert not times.is_due(1) and times.is_due(2)
    times.restart()
    clock.seconds += 599
    assert not times.is_due(3)
    clock.seconds += 1
    assert times.is_due(3)


@pytest.mark.parametrize("every", [5, math.inf])
def test_upstream_saves_where_it_is_asked_to_and_its_setting_comes_back(every):
    ckpt = SimpleNamespace(save_steps=every)
    for saves in (True, False):
        with pytest.raises(OSError), force_save(ckpt, saves):
            assert [step % ckpt.save_steps == 0 for step in (5, 7)] == [saves, saves]
            raise OSError
        assert ckpt.save_steps == every


@pytest.mark.parametrize("minutes", [-1, math.nan, math.inf])
def test_minutes_that_are_none_are_refused(minutes):
    with pytest.raises(UsageError, match=r"--ckpt\.save_minutes is "):
        check_minutes(SimpleNamespace(save_minutes=minutes, disable_ds=False))


def test_minutes_without_anything_to_resume_from_are_refused():
    with pytest.raises(UsageError, match=r"--ckpt\.disable_ds"):
        check_minutes(SimpleNamespace(save_minutes=60.0, disable_ds=True))
    check_minutes(SimpleNamespace(save_minutes=0.0, disable_ds=True))


@pytest.mark.parametrize(
    ("every", "exported"), [(5, [True, False, True]), (-1, [False, False, True]), (math.inf, [False, False, True])]
)
def test_models_are_exported_by_steps_and_best_and_not_by_time(every, exported):
    tags = ["global_step10", "global_step12", "best_global_step12"]
    assert [is_exported(SimpleNamespace(save_hf=True, save_steps=every), tag) for tag in tags] == exported
    assert not any(is_exported(SimpleNamespace(save_hf=False, save_steps=every), tag) for tag in tags)


def test_a_request_names_what_asks(tmp_path):
    assert end_requested_by(tmp_path) is None
    (tmp_path / END_FILE).write_text("SIGUSR1")
    assert end_requested_by(tmp_path) == "SIGUSR1"
    (tmp_path / END_FILE).write_text("\n")  # `touch`, `echo >`
    assert end_requested_by(tmp_path) == f"the file {END_FILE}"
    (tmp_path / END_FILE).write_bytes(b"\x1b[31m" + b"\xff" * 10**6)
    assert end_requested_by(tmp_path).isprintable() and len(end_requested_by(tmp_path)) <= MAX_ASKER_CHARS
    forget_end_request(tmp_path)
    forget_end_request(tmp_path)
    assert end_requested_by(tmp_path) is None
