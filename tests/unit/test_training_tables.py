"""Tables of training data: Parquet and JSON lines, whole or in batches."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openrlhf_ebpo.data.training_tables import (
    check_columns,
    column_names,
    count_rows,
    read_rows,
    read_table,
    with_column,
    write_table,
)
from openrlhf_ebpo.errors import UsageError

ROWS = [
    {"id": "a", "prompt": [{"role": "user", "content": "1 + 1 = ?\u2028中"}], "rate": 0.5, "gold": {"text": "2"}},
    {"id": "b", "prompt": [{"role": "user", "content": '{"x": \\frac}'}], "rate": None, "gold": {"text": None}},
    {"id": "c", "prompt": [], "rate": 1.0, "gold": {"text": "3"}},
]


@pytest.fixture(params=["parquet", "jsonl"])
def path(request, tmp_path):
    path = tmp_path / f"rows.{request.param}"
    write_table(pa.Table.from_pylist(ROWS), path)
    return path


def test_what_is_written_is_read(path):
    assert read_table(path).to_pylist() == ROWS
    assert [row for rows in read_rows(path) for row in rows] == ROWS
    assert count_rows(path) == 3
    assert {"id", "prompt", "rate", "gold", "gold.text"} <= set(column_names(path))


def test_batches_hold_no_more_rows_than_asked_for(path):
    assert [len(rows) for rows in read_rows(path, batch_size=2)] == [2, 1]


def test_only_the_wanted_columns_are_read(path):
    assert next(read_rows(path, ["gold"]))[0] == {"gold": {"text": "2"}}


def test_several_tables_make_one_file(tmp_path):
    for suffix in ("parquet", "jsonl"):
        table = pa.table({"id": ["a"]})
        write_table(iter([table, table]), tmp_path / f"rows.{suffix}")
        assert read_table(tmp_path / f"rows.{suffix}").to_pylist() == [{"id": "a"}] * 2


def test_a_failing_source_leaves_the_old_file(path):
    def tables():
        yield pa.table({"id": ["z"]})
        raise RuntimeError("power")

    with pytest.raises(RuntimeError, match="power"):
        write_table(tables(), path)
    assert read_table(path).to_pylist() == ROWS
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_column_is_added_or_replaced_in_its_place():
    table = with_column(pa.table({"id": ["a", "b"], "x": [1, 2]}), "cluster", ["t", "u"])
    assert table.column_names == ["id", "x", "cluster"]
    table = with_column(table, "x", [3, None], pa.float64())
    assert table.column_names == ["id", "x", "cluster"]
    assert table["x"].to_pylist() == [3.0, None]


def test_json_rows_may_differ_in_their_columns(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [{"id": "a"}, {"id": "b", "rate": 1}, {"rate": 0.5}]
    path.write_text("\n".join(map(json.dumps, lines)))  # no line end at the end
    assert read_table(path).to_pylist() == [
        {"id": "a", "rate": None},
        {"id": "b", "rate": 1.0},
        {"id": None, "rate": 0.5},
    ]


def test_json_types_may_only_show_in_a_later_batch(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"rate": null}\n' * 9000 + '{"rate": 0.5}\n')
    assert read_table(path)["rate"].to_pylist() == [None] * 9000 + [0.5]


def test_values_of_several_types_are_rows_and_no_table(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": "x"}\n{"a": [2]}\n')
    assert [row["a"] for rows in read_rows(path) for row in rows] == [1, "x", [2]]
    with pytest.raises(UsageError, match="column 'a' fits no one type"):
        read_table(path)


@pytest.mark.parametrize(
    "text", ['{"a": 1}\n{"a": \n', '{"a": 1}\n[{"a": 1}]\n', '{"a": "\\ud800"}\n', '[{"a": 1}, 2]']
)
def test_a_file_that_training_cannot_read_is_named_with_its_flag(tmp_path, text):
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        read_table(path)
    assert str(error.value).startswith(f"--input {path}: cannot be read (")


def test_a_json_array_is_read_as_lines_are(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(' [\n {"a": 1},\n {"a": 2, "b": {"c": 3}}]')
    assert read_table(path)["a"].to_pylist() == [1, 2] and count_rows(path) == 2
    assert [len(rows) for rows in read_rows(path, batch_size=1)] == [1, 1]
    assert column_names(path) == ["a", "b", "b.c"]


def test_other_files_are_refused(tmp_path):
    (tmp_path / "rows.parquet").write_bytes(b"no parquet at all")
    with pytest.raises(UsageError, match="Parquet"):
        read_table(tmp_path / "rows.parquet")
    with pytest.raises(UsageError, match=r"--data .*none\.jsonl: no such file"):
        read_table(tmp_path / "none.jsonl", flag="--data")
    with pytest.raises(UsageError, match=r"must end in \.parquet or \.jsonl"):
        write_table(pa.table({}), tmp_path / "rows.csv")


def test_a_missing_column_names_file_flag_columns_and_remedy(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": ["a"], "prompt": ["b"]}), path)
    with pytest.raises(UsageError) as error:
        read_table(path, {"cluster": "--data.cluster_key"})
    message = str(error.value)
    assert str(path) in message and "only id, prompt" in message
    assert "`openrlhf-ebpo data topics` makes it" in message and "--data.cluster_key names another" in message
    with pytest.raises(UsageError, match=r"no column 'x', only id$"):
        check_columns(["id"], ["x"], path)


def test_an_empty_file_is_named(tmp_path):
    (tmp_path / "rows.jsonl").touch()
    with pytest.raises(UsageError, match="the file is empty"):
        read_table(tmp_path / "rows.jsonl")
