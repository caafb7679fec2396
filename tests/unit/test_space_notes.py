"""Notes and tags beside a run: what is kept, who may write, and what a hostile file does."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from space_runs import learning_run

from openrlhf_ebpo.space import notes
from openrlhf_ebpo.space.errors import RunError
from openrlhf_ebpo.space.groups import Index
from openrlhf_ebpo.space.notes import ANY, FILE, Changed, Note, Notes
from openrlhf_ebpo.space.runs import Run


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    return Run("run", tmp_path / "run", 0)


def kept(run) -> list[dict]:
    return [json.loads(line) for line in (run.path / FILE).read_text().splitlines()]


def test_the_last_note_of_a_group_counts_and_earlier_ones_stay_in_the_file(run):
    store = Notes(enabled=True)
    first = store.keep(run, (3, 1), "p", Note("looks right", ("check", "check", " odd  one ")))
    assert store.of(run) == {(3, 1): first} and first.tags == ("check", "odd one")
    second = store.keep(run, (3, 1), "p", Note("it is wrong", (), first.time))
    assert Notes(enabled=True).of(run) == {(3, 1): second}
    assert [line["note"] for line in kept(run)] == ["looks right", "it is wrong"]
    store.keep(run, (3, 1), "p", Note("", (), second.time))
    assert store.of(run) == {} and len(kept(run)) == 3
    store.keep(run, (3, 1), "p", Note("written anew"))


def test_a_note_that_somebody_else_has_changed_is_not_replaced_unseen(run):
    store = Notes(enabled=True)
    mine = store.keep(run, (3, 1), "p", Note("mine"))
    with pytest.raises(Changed, match="since the page was loaded"):
        store.keep(run, (3, 1), "p", Note("theirs, who saw none"))
    assert store.of(run)[3, 1].text == "mine"
    store.keep(run, (3, 1), "p", Note("theirs, who saw mine", (), mine.time))
    store.keep(run, (3, 1), "another prompt, after a resume", Note("of that one"))


def test_many_writers_at_once_lose_nothing(run):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: Notes(enabled=True).keep(run, (i, 0), "p", Note(f"note {i}")), range(40)))
    assert {note.text for note in Notes(enabled=True).of(run).values()} == {f"note {i}" for i in range(40)}


def test_texts_and_tags_have_limits_also_in_a_file_that_others_wrote(run):
    store = Notes(enabled=True)
    note = store.keep(run, (1, 0), "p", Note("x" * 5000, tuple(f"{i}" * 100 for i in range(20))))
    assert len(note.text) == notes.LONGEST and len(note.tags) == notes.TAGS and len(note.tags[0]) == notes.TAG
    (run.path / FILE).write_text(json.dumps({"step": 1, "group": 0, "note": "y" * 9999, "tags": ["a,b"] * 99}) + "\n")
    assert store.of(run)[1, 0] == Note("y" * notes.LONGEST, ("a b",), "None", "")
    assert notes.tags_of("b, a,,b , *") == ["b", "a"]


@pytest.mark.parametrize(
    "line",
    [
        *(
            b"{",
            b"[]",
            b"null",
            b'{"step": "x", "group": 0}',
            b'{"group": 0}',
            b"\xff\xfe",
            b'{"step": 1e999, "group": 0}',
        ),
        *(b"[" * 100_000, b'{"step": 99999999999999999999, "group": 0, "note": "n"}', b'{"step": -1, "group": 0}'),
    ],
)
def test_a_damaged_line_is_passed_over_and_a_torn_one_is_ended(run, line):
    store = Notes(enabled=True)
    (run.path / FILE).write_bytes(line)
    store.keep(run, (2, 0), "p", Note("whole"))
    assert {note.text for note in store.of(run).values()} == {"whole"}
    assert (run.path / FILE).read_bytes().startswith(line + b"\n")


def test_the_file_does_not_grow_without_end(run, monkeypatch):
    monkeypatch.setattr(notes, "ROOM", 500)
    store = Notes(enabled=True)
    with pytest.raises(RunError, match="is full"):
        for step in range(20):
            store.keep(run, (step, 0), "p", Note("a note"))
    assert len(store.of(run)) == len(kept(run)) >= 2 and (run.path / FILE).stat().st_size <= 500


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "link out of the run"])
def test_only_an_ordinary_file_is_read_or_written(run, tmp_path, kind):
    path, outside = run.path / FILE, tmp_path / "outside"
    outside.write_text('{"step": 1, "group": 0, "note": "not yours"}\n')
    (run.path / "inside").write_text(outside.read_text())
    {
        "link": lambda: path.symlink_to(run.path / "inside"),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "link out of the run": lambda: path.symlink_to(outside),
    }[kind]()
    store = Notes(enabled=True)
    try:
        assert store.of(run) == {}
    except RunError as error:
        assert "leads out" in str(error) or "not a file" in str(error)
    with pytest.raises(RunError):
        store.keep(run, (1, 0), "", Note("x"))
    assert "not yours" in outside.read_text() and len(outside.read_text().splitlines()) == 1


def test_a_writer_that_holds_the_file_is_not_waited_for_without_end(run, monkeypatch):
    import fcntl

    monkeypatch.setattr(notes, "WAIT", 0.1)
    with open(run.path / FILE, "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="another program has held it"):
            Notes(enabled=True).keep(run, (1, 0), "p", Note("x"))


def test_a_disabled_store_and_a_run_of_the_hub_have_none(run, tmp_path):
    (run.path / FILE).write_text('{"step": 1, "group": 0, "note": "private"}\n')
    remote = Run("owner/name", run.path, 0, remote=True)
    for store, of in ((Notes(), run), (Notes(enabled=True), remote)):
        assert store.of(of) == {}
        with pytest.raises(RunError, match="not kept here"):
            store.keep(of, (1, 0), "", Note("x"))


@pytest.mark.parametrize(
    ("option", "host", "enabled"),
    [
        ("auto", "127.0.0.1", True),
        ("auto", "localhost", True),
        ("auto", "0.0.0.0", False),
        ("auto", "10.0.0.7", False),
        ("on", "0.0.0.0", True),
        ("off", "127.0.0.1", False),
    ],
)
def test_notes_are_kept_where_only_this_machine_reaches_the_app(monkeypatch, option, host, enabled):
    assert notes.kept_by(option, host) == Notes(enabled, anywhere=option == "on")
    monkeypatch.setenv("SPACE_ID", "owner/name")
    assert not notes.kept_by(option, host).enabled


def test_groups_are_found_by_tag_and_a_rolled_back_group_has_no_note(tmp_path):
    learning_run(tmp_path / "run", steps=3, seed=1, name="run", prompts=4)
    run, store = Run("run", tmp_path / "run", 0), Notes(enabled=True)
    groups, _ = Index(run).read()
    every = np.arange(len(groups))
    for position, tags in ((0, ("odd",)), (5, ("odd", "wrong")), (7, ())):
        place = int(groups.step[position]), int(groups.group[position])
        store.keep(run, place, groups.prompt_id[position], Note("see" if position == 7 else "", tags))
    store.keep(run, (2, 0), "another prompt", Note("", ("odd",)))
    found = store.of(run)
    assert notes.tagged(found, groups, every, "odd").tolist() == [0, 5]
    assert notes.tagged(found, groups, every[::-1], ANY).tolist() == [7, 5, 0]
    assert (
        notes.tagged(found, groups, every, "absent").tolist() == []
        and len(notes.tagged(found, groups, every, "")) == 12
    )
    assert notes.tags_in(found)[0] == ("odd", 3)
    assert notes.note_at(found, groups, 7).text == "see" and not notes.note_at(found, groups, 1)
