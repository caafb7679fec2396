"""A training says what it does while it runs."""

import json
import shutil
from pathlib import Path

import pytest
from patience import wait_until

from openrlhf_ebpo.run import heartbeat
from openrlhf_ebpo.run.heartbeat import GENERATING, REWARDS, Heartbeat, read_beat


def test_a_phase_has_a_beginning_and_its_details_do_not_change_it(tmp_path, monkeypatch):
    clock = iter(range(100, 200))
    monkeypatch.setattr("time.time", lambda: next(clock))
    heart = Heartbeat(tmp_path)
    monkeypatch.setattr(heart._changed, "set", heart.write)  # at once
    heart.report(GENERATING, step=3)
    began = read_beat(tmp_path)
    heart.report(detail="7 left")
    assert (began.step, began.phase, began.detail) == (3, GENERATING, "")
    assert read_beat(tmp_path) == began._replace(detail="7 left", time=began.time + 1)
    with heart.in_phase("training"):
        assert read_beat(tmp_path).phase == "training" and read_beat(tmp_path).since > began.since
        heart.report(REWARDS, "late news", only_in=(GENERATING, REWARDS))  # of a thread
        assert read_beat(tmp_path).phase == "training"
    assert read_beat(tmp_path).phase == GENERATING
    assert [path.name for path in tmp_path.iterdir()] == [heartbeat.FILE]


def test_the_seconds_of_all_phases_are_the_time_that_went_by_each_counted_once(tmp_path, monkeypatch):
    monkeypatch.setattr(Heartbeat, "_keep_writing", lambda self: None)
    now = [100.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    heart = Heartbeat(tmp_path)
    now[0] = 103.0
    heart.report(GENERATING)
    now[0] = 110.0
    heart.report(detail="7 left")
    with heart.in_phase("making experience"):
        now[0] = 111.0
        with heart.in_phase("advantages"):
            now[0] = 111.5
        now[0] = 113.0
    now[0] = 114.0
    assert heart.spent() == {heartbeat.STARTING: 3.0, GENERATING: 8.0, "making experience": 2.5, "advantages": 0.5}
    now[0] = 115.0
    assert heart.spent() == {GENERATING: 1.0}


def test_it_is_written_in_the_background(tmp_path):
    Heartbeat(tmp_path).report("training", step=2)
    wait_until(lambda: read_beat(tmp_path), 20)
    assert read_beat(tmp_path).step == 2


def test_a_folder_that_is_gone_and_a_full_disk_stop_nothing_and_nothing_is_made(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()
    heart = Heartbeat(folder)
    shutil.rmtree(folder)
    heart.report(GENERATING)
    heart.write()
    assert not folder.exists() and read_beat(folder) is None
    folder.mkdir()
    heart.write()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    heart.report("training")
    heart.write()
    assert read_beat(folder).phase == GENERATING


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "[" * 9999, json.dumps({"step": 1, "phase": "x", "detail": "", "since": 1e300, "time": 0})],
)
def test_what_is_no_heartbeat_is_none(tmp_path, text):
    (tmp_path / heartbeat.FILE).write_text(text)
    assert read_beat(tmp_path) is None


def test_text_of_a_heartbeat_is_harmless_on_a_screen(tmp_path):
    row = {"step": 1, "phase": "\x1b[2Jx", "detail": "y\n" * 999, "since": 0, "time": 0}
    (tmp_path / heartbeat.FILE).write_text(json.dumps(row))
    found = read_beat(tmp_path)
    assert found.phase == "[2Jx" and found.detail.isprintable() and len(found.detail) < heartbeat.MAX_TEXT_CHARS + 4
