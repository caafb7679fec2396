"""Downloads of a selection: what is in them, who can read them, and where they end."""

from __future__ import annotations

import csv
import io
import json
import math

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from space_runs import hostile_run, learning_run

from openrlhf_ebpo.space import exports
from openrlhf_ebpo.space.errors import RunError
from openrlhf_ebpo.space.exports import FORMATS, ROWS, about, export, guarded, links, name_of
from openrlhf_ebpo.space.groups import Index
from openrlhf_ebpo.space.links import clean, parsed
from openrlhf_ebpo.space.runs import Run

EVIL = (
    "=1+1",
    "+1",
    "-1",
    "@A1",
    " =1",
    "\t=1",
    "\r=1",
    "\ufeff=1",
    "＝1",
    "'=1",
    "'",
    "a=1",
    "",
    "NA",
    'a,"b"\nc\r\nd',
    "−1",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    learning_run(folder, steps=6, seed=1, name="run", prompts=8)
    return Run("a/run, ü", folder, 0)


def chosen(run, every: int = 3):
    groups, _ = Index(run).read()
    return groups, np.arange(len(groups))[::every][::-1]


def written(run, groups, positions, kind: str) -> bytes:
    return b"".join(export(run, groups, positions, kind))


def expected(run, groups, positions) -> pa.Table:
    """The same rows, read with nothing of the app."""
    steps = list(dict.fromkeys(groups.step[positions].tolist()))
    of = {step: set(groups.group[positions][groups.step[positions] == step].tolist()) for step in steps}
    parts = [pq.read_table(run.path / "rollouts" / f"step-{step:06d}.parquet") for step in steps]
    rows = [
        row for step, part in zip(steps, parts, strict=True) for row in part.to_pylist() if row["group"] in of[step]
    ]
    return pa.Table.from_pylist(rows, parts[0].schema)


def same(found: dict, wanted: dict) -> bool:
    nothing = lambda v: v is None or v == "" or (isinstance(v, float) and math.isnan(v))  # noqa: E731
    return all(
        (nothing(found[k]) and nothing(v)) or found[k] == v or found[k] == pytest.approx(v, rel=1e-6)
        for k, v in wanted.items()
    )


def test_parquet_has_the_rows_as_they_are_in_the_run(run):
    groups, positions = chosen(run)
    found = pq.read_table(io.BytesIO(written(run, groups, positions, "parquet")))
    wanted = expected(run, groups, positions)
    assert found.schema.equals(wanted.schema) and found.equals(wanted) and len(found) == 4 * len(positions)


def test_json_lines_have_every_column_and_no_nan(run):
    groups, positions = chosen(run)
    rows = [
        json.loads(line, parse_constant=pytest.fail)
        for line in written(run, groups, positions, "jsonl").decode().splitlines()
    ]
    wanted = expected(run, groups, positions).to_pylist()
    assert len(rows) == len(wanted) and all(map(same, rows, wanted))
    assert list(rows[0]) == list(wanted[0])


def test_csv_is_read_by_pandas(run):
    groups, positions = chosen(run)
    text = written(run, groups, positions, "csv")
    types = {"label": str, "prompt_id": str}
    rows = pandas.read_csv(io.BytesIO(text), keep_default_na=False, na_values=[""], dtype=types).to_dict("records")
    wanted = expected(run, groups, positions).to_pylist()
    assert len(rows) == len(wanted)
    assert all(same(row, {**want, "label": guarded(want["label"])}) for row, want in zip(rows, wanted, strict=True))
    assert {type(row["advantage"]) for row in rows} == {float}


def texts_run(folder, texts, **columns) -> Run:
    (folder / "rollouts").mkdir(parents=True, exist_ok=True)
    count = len(texts)
    rows = {"group": [0] * count, "prompt": texts, "response": texts, "reward": [-1.5] * count, **columns}
    pq.write_table(pa.table(rows), folder / "rollouts" / "step-000001.parquet")
    return Run("run", folder, 0)


def test_no_text_in_csv_is_a_formula_and_every_text_comes_back(tmp_path):
    run = texts_run(tmp_path, list(EVIL), **{"=cmd()": [[-1, 2]] * len(EVIL)})
    groups, _ = Index(run).read()
    text = written(run, groups, np.array([0]), "csv")
    rows = list(csv.reader(io.StringIO(text.decode(), newline="")))
    assert rows[0] == ["group", "prompt", "response", "reward", "'=cmd()"]
    cells = [row[2] for row in rows[1:]]
    assert all(cell.lstrip("\ufeff \t\r\n")[:1] not in ("=", "+", "-", "@", "＝") for cell in cells)
    assert tuple(cell.removeprefix("'") if cell[:1] == "'" else cell for cell in cells) == EVIL
    assert {row[3] for row in rows[1:]} == {"-1.5"}, "a number is no text"
    read = pandas.read_csv(io.BytesIO(text), keep_default_na=False, na_values=[""])
    assert tuple(read["response"].str.removeprefix("'").fillna("")) == EVIL, "as docs/space.md says"
    assert read["reward"].tolist() == [-1.5] * len(EVIL)
    kept = pq.read_table(io.BytesIO(written(run, groups, np.array([0]), "parquet")))
    assert tuple(kept["response"].to_pylist()) == EVIL


@pytest.mark.parametrize("kind", FORMATS)
def test_a_hostile_run_is_exported_whole(tmp_path, kind):
    hostile_run(tmp_path / "evil", megabytes=0.05)
    run = Run("evil", tmp_path / "evil", 0)
    groups, _ = Index(run).read()
    for position in range(len(groups)):
        assert len(written(run, groups, np.array([position]), kind)) > 1000


def test_files_of_an_older_version_lack_columns_and_other_types_are_refused(tmp_path):
    run = texts_run(tmp_path, ["a", "b"])
    path = run.path / "rollouts" / "step-000002.parquet"
    table = pq.read_table(run.path / "rollouts" / "step-000001.parquet")
    pq.write_table(table.append_column("more", pa.array([1, 2])), path)
    groups, _ = Index(run).read()
    found = pq.read_table(io.BytesIO(written(run, groups, np.array([1, 0]), "parquet")))
    assert found["more"].to_pylist() == [1, 2, None, None]
    pq.write_table(table.set_column(3, "reward", pa.array(["1", "2"])), path)
    with pytest.raises(RunError, match="columns of different types"):
        written(run, groups, np.array([1, 0]), "csv")
    path.unlink()
    with pytest.raises(RunError, match="step 2 are gone"):
        written(run, groups, np.array([1, 0]), "csv")


def test_an_export_has_limits(run, monkeypatch):
    groups, positions = chosen(run)
    monkeypatch.setattr(exports, "BYTES", 20_000)
    with pytest.raises(RunError, match="larger than"):
        written(run, groups, positions, "jsonl")
    monkeypatch.setattr(exports, "ROWS", 10)
    with pytest.raises(RunError, match="at most 10"):
        export(run, groups, positions, "csv")
    assert "at most 10" in links({}, run, groups, positions) and "<button" not in links({}, run, groups, positions)


def test_only_the_files_of_the_selection_are_read_and_little_of_them_at_a_time(run, monkeypatch):
    groups, positions = chosen(run, every=1)
    one = positions[groups.step[positions] == 4]
    opened = []
    monkeypatch.setattr(
        exports, "open_file", lambda r, name: opened.append(name) or pq.ParquetFile(r.path / "rollouts" / name)
    )
    pieces = export(run, groups, one, "jsonl")
    assert opened == ["step-000004.parquet"], "its schema"
    assert len(list(pieces)) == 1 and set(opened) == {"step-000004.parquet"}


def test_the_links_say_what_will_come_and_keep_the_view(run):
    groups, positions = chosen(run)
    found = links(clean({"kind": "all_fail", "text": '"><b>'}), run, groups, positions)
    assert f"{len(positions)} groups, {4 * len(positions)} responses, about" in found and "<b>" not in found
    target = "?" + str(found).split('data-download="')[1].split('"')[0].replace("&#38;", "&")
    view = clean(parsed(target))
    assert view["runs"] == ["a/run, ü"] and view["kind"] == "all_fail" and view["text"] == '"><b>'
    assert parsed(target)["format"] == "csv"
    assert links({}, run, groups, positions[:0]) == ""
    assert name_of(run, "csv") == "a_run-rollouts.csv" and ROWS == 200_000


def test_the_size_that_is_said_is_near(run):
    groups, positions = chosen(run)
    kilobytes = int(about(run, groups, positions).split()[2].replace(",", ""))
    assert 0.3 < kilobytes * 1024 / len(written(run, groups, positions, "jsonl")) < 1.5
