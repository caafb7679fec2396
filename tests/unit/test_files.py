"""Side files survive a crash."""

import errno
import json
import os

import pytest

from openrlhf_ebpo.files import append_json_line, read_json_lines, replace_file, sync, write_json, write_text


def names(directory) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_writer_that_raises_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "prior.json"
    write_text(path, "old")
    with pytest.raises(RuntimeError, match="power"), replace_file(path) as temporary:
        temporary.write_text("half of the n")
        raise RuntimeError("power")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["prior.json"]


def test_a_value_that_is_no_json_leaves_the_old_file(tmp_path):
    write_json(tmp_path / "run.json", {"step": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "run.json", {"step": object()})
    assert json.loads((tmp_path / "run.json").read_text()) == {"step": 1}
    assert names(tmp_path) == ["run.json"]


def test_the_old_file_is_whole_until_the_new_one_is(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with replace_file(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == path.parent
    assert path.read_text() == "new"
    assert names(tmp_path) == ["a.txt"]


def test_missing_folders_are_made(tmp_path):
    write_json(tmp_path / "a" / "b" / "c.json", [1])
    assert json.loads((tmp_path / "a" / "b" / "c.json").read_text()) == [1]


def test_lines_are_appended_and_read_in_order(tmp_path):
    for step in (1, 2, 3):
        append_json_line(tmp_path / "m.jsonl", {"step": step})
    assert read_json_lines(tmp_path / "m.jsonl") == [{"step": 1}, {"step": 2}, {"step": 3}]


@pytest.mark.parametrize("torn", ['{"step": 2', '{"step": 2}', "{", "  "])
def test_a_torn_last_line_is_left_out(tmp_path, torn):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n' + torn)
    assert read_json_lines(path) == [{"step": 1}]


def test_no_file_and_an_empty_file_hold_no_rows(tmp_path):
    (tmp_path / "empty.jsonl").touch()
    assert read_json_lines(tmp_path / "empty.jsonl") == read_json_lines(tmp_path / "none.jsonl") == []


def test_text_in_a_row_may_hold_any_line_separator(tmp_path):
    row = {"step": 1, "text": "a\nb\r\n\u2028c\x85d\x0ce"}
    append_json_line(tmp_path / "m.jsonl", row)
    assert read_json_lines(tmp_path / "m.jsonl") == [row]


def test_a_disk_that_does_not_take_a_file_is_an_error_and_the_old_file_stays(tmp_path, monkeypatch):
    path = tmp_path / "prior.json"
    write_text(path, "old")

    def refuse(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    for write in (lambda: write_text(path, "new"), lambda: sync(path), lambda: append_json_line(path, {})):
        with pytest.raises(OSError, match="Input/output error"):
            write()
        assert path.read_text().startswith("old")
    sync(tmp_path)  # names in a folder: some network disks cannot
    assert names(tmp_path) == ["prior.json"]
