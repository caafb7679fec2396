"""The state of a run: every end and every stop."""

import json

import numpy as np
import pytest

from openrlhf_ebpo.run.heartbeat import Beat
from openrlhf_ebpo.space.metrics import Metrics
from openrlhf_ebpo.space.run_state import SILENCE, Signs, ago, clock, condition, lasting, seconds, signs, usual_step
from openrlhf_ebpo.space.runs import Run

NOW = 1_700_001_000.0
STEPS = Metrics(np.arange(1, 11), {"time": 1_700_000_000.0 + 100 * np.arange(10)})  # the last 100 s ago
HELD = Signs(None, NOW - 3)
RUNNING = {"status": "running"}


def said(about=RUNNING, metrics=STEPS, seen=HELD, now=NOW):
    return condition(about, metrics, seen, now)


def test_a_training_at_work_says_what_it_does():
    beat = Beat(10, "rewards", "3 of 256 outstanding", NOW - 40, NOW - 2)
    found = said(seen=Signs(beat, NOW - 3))
    assert found == ("training", "rewards, 3 of 256 outstanding", 10, 1_700_000_900.0, 0, None)
    assert said(metrics=Metrics(), seen=Signs(beat, None)).step == 10
    assert said(metrics=Metrics()).step is None


def test_planned_steps_and_the_time_left_are_known():
    beat = Beat(10, "rewards", "", NOW - 40, NOW - 2, 80)
    assert said(seen=Signs(beat, NOW - 3))[4:] == (80, 7000.0)
    assert said(seen=Signs(beat, NOW - 3), about={"status": "complete"})[4:] == (80, None)
    assert said(seen=Signs(beat._replace(steps=5), NOW - 3))[4:] == (0, None), "fewer than there are"
    assert [lasting(each) for each in (5, 120, 7000, 200_000)] == ["less than a minute", "2 min", "117 min", "2 days"]
    assert ago(NOW - 120, NOW) == "2 min ago" and ago(0.0, NOW) == clock(0.0) and ago(NOW + 99, NOW) == clock(NOW + 99)


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"seen": Signs(None, NOW - SILENCE - 1)}, "silent", "No sign of life since 2023-11-14 22:28 UTC"),
        (
            {
                "about": {
                    **RUNNING,
                    "stalled": {"time": "2023-11-14T22:20:00+00:00", "step": 10, "what": "no step for 8"},
                }
            },
            "stalled",
            "Since 2023-11-14 22:20 UTC: no step for 8",
        ),
        ({"now": NOW + 700, "seen": Signs(None, NOW + 699)}, "stalled", "Nothing new since"),
        ({"now": NOW + 700, "seen": Signs(None, None)}, "silent", "Nothing new since 2023-11-14 22:28 UTC"),
        ({"about": {**RUNNING, "stalled": None}}, "training", ""),
        ({"about": {**RUNNING, "stalled": {"time": [], "what": None}}}, "stalled", "Since an unknown time"),
        ({"about": {"status": "complete", "warning": "40 of 46 steps"}}, "complete", "40 of 46 steps"),
        (
            {"about": {"status": "failed", "error": "RuntimeError: out of memory"}},
            "failed",
            "RuntimeError: out of memory",
        ),
        ({"about": {"status": "interrupted", "error": "ended by SIGTERM"}}, "interrupted", "ended by SIGTERM"),
        ({"about": {"status": "complete", "error": None}}, "complete", ""),
        ({"about": {"status": {"x": 1}}}, "unknown", "does not say"),
        ({"about": {}}, "unknown", "does not say"),
    ],
)
def test_every_end_and_every_stop_is_told(changes, kind, words):
    found = said(**changes)
    assert found.kind == kind and words in found.detail, found


def test_a_step_may_take_five_usual_ones():
    slow = Metrics(np.arange(1, 5), {"time": NOW - 4000 + 1000.0 * np.arange(4)})
    assert usual_step(slow) == 1000 and said(metrics=slow, seen=Signs(None, None)).kind == "training"


def test_signs_of_a_run_that_holds_anything(tmp_path):
    assert signs(Run("x", tmp_path, 0)) == (None, None)
    (tmp_path / "outside").mkdir()
    run = tmp_path / "run"
    run.mkdir()
    beat = {"step": 3, "phase": "training", "detail": "", "since": 5.0, "time": 6.0}
    (tmp_path / "outside" / "heartbeat.json").write_text(json.dumps(beat))
    (run / "heartbeat.json").symlink_to(tmp_path / "outside" / "heartbeat.json")
    assert signs(Run("x", run, 0)).beat is None
    (run / "heartbeat.json").unlink()
    (run / "heartbeat.json").write_text(json.dumps(beat))
    (run / "training.lock").touch()
    found = signs(Run("x", run, 0))
    assert found.beat.step == 3 and found.lock == (run / "training.lock").stat().st_mtime


def test_times_may_be_anything():
    assert seconds("2023-11-14T22:20:00+00:00") == seconds("2023-11-14T22:20:00") == 1_700_000_400
    assert [seconds(each) for each in (None, 3, "soon", [], "9999-99-99")] == [None] * 5
    assert [clock(each) for each in (None, float("nan"), 1e99, -5.0)] == ["an unknown time"] * 4
