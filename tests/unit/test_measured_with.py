"""Pass rates and the model that they were measured with: carried into the order, warned of for another model."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openrlhf_ebpo.checks import measured_with
from openrlhf_ebpo.cli.data import main
from openrlhf_ebpo.data.table import read_table, write_table

ROWS = [{"id": f"{i:016x}", "prompt": "p", "label": "l", "cluster": str(i % 2), "pass_rate": i / 4} for i in range(4)]


@pytest.fixture
def measured(tmp_path) -> Path:
    """difficulty.parquet as `data difficulty` writes it."""
    mark = measured_with.model_mark("/models/Qwen3-8B")
    write_table(measured_with.marked(pa.Table.from_pylist(ROWS), pass_rates=mark), tmp_path / "difficulty.parquet")
    return tmp_path / "difficulty.parquet"


def order(source: Path, name: str, by: str = "difficulty") -> Path:
    target = source.with_name(name)
    main(["order", "--input", str(source), "--by", by, "--output", str(target)])
    return target


def values(dataset: object, name: object, **changes) -> dict:
    return {
        "data.prompt_dataset": str(dataset),
        "actor.model_name_or_path": str(name),
        "data.order": "as_is",
        **changes,
    }


def test_order_carries_the_model_on_and_says_by_what_it_ordered(measured, capsys):
    marks = measured_with.marks_of(order(measured, "ordered.parquet"))
    assert marks == {"order": "difficulty", "pass_rates": {"name": "Qwen3-8B"}}
    assert "warning" not in capsys.readouterr().out
    again = order(measured, "ordered.parquet")  # nothing new
    assert "is there already" in capsys.readouterr().out
    by_topic = order(again, "topic.parquet", "topic")
    assert measured_with.marks_of(by_topic) == marks | {"order": "topic"}


def test_a_file_ordered_before_there_were_marks_gets_them(measured, tmp_path, capsys):
    ordered = order(measured, "ordered.parquet")
    pq.write_table(read_table(ordered).replace_schema_metadata(None), ordered)
    order(measured, "ordered.parquet")
    assert measured_with.marks_of(ordered)["order"] == "difficulty"


def test_lines_of_json_cannot_carry_it_and_order_says_so(measured, capsys):
    order(measured, "ordered.jsonl")
    assert "does not say which model these pass rates were measured with" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "/models/Qwen3-8B", "copies/Qwen3-8B/"])
def test_the_models_own_order_is_trained_on(name, measured):
    assert measured_with.order_warnings(values(order(measured, "ordered.parquet"), name)) == []


def test_another_models_order_is_warned_of_and_both_are_named(measured, tmp_path):
    ordered = order(measured, "ordered.parquet")
    other = "Qwen/Qwen3-8B-Base"
    (line,) = measured_with.order_warnings(values(f"{tmp_path}/none.parquet, {ordered}", other))
    assert line.startswith(f"warning: --data.prompt_dataset {ordered}: ")
    assert "was measured with Qwen3-8B, and --actor.model_name_or_path is Qwen3-8B-Base" in line
    assert "data difficulty" in line
    assert measured_with.order_warnings(values(ordered, other, **{"data.order": "shuffle"})) == []
    assert measured_with.order_warnings(values(order(measured, "topic.parquet", "topic"), other)) == []


def test_another_files_metadata_reaches_no_terminal_as_it_is(measured, tmp_path):
    marks = {"pass_rates": {"name": "a\x1b[2Jb"}, "order": "difficulty"}
    write_table(measured_with.marked(read_table(measured), **marks), tmp_path / "odd.parquet")
    (line,) = measured_with.order_warnings(values(tmp_path / "odd.parquet", "m"))
    assert line.isprintable()


def test_files_that_do_not_say_it_and_data_sets_elsewhere_pass(measured, tmp_path):
    old = tmp_path / "old.parquet"
    pq.write_table(read_table(measured).replace_schema_metadata(None), old)
    write_table(read_table(measured), tmp_path / "old.jsonl")
    for name in (old, tmp_path / "old.jsonl", tmp_path / "none.parquet", "owner/name"):
        assert measured_with.order_warnings(values(name, "m")) == []


@pytest.mark.parametrize(
    "content",
    ["[]", "{", '{"pass_rates": 7, "order": "difficulty"}', '{"pass_rates": {"name": 1}, "order": "difficulty"}'],
)
def test_hostile_metadata_says_nothing(content, measured, tmp_path):
    table = read_table(measured).replace_schema_metadata({measured_with.KEY: content})
    write_table(table, tmp_path / "odd.parquet")
    assert measured_with.order_warnings(values(tmp_path / "odd.parquet", "m")) == []
