"""Pass rates and the model that they were measured with: known by its weights, carried into the order, refused for another."""

import contextlib
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from openrlhf_ebpo.checks import measured_with
from openrlhf_ebpo.cli.data import main
from openrlhf_ebpo.data.table import read_table, write_table
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.models.identity import weights_identity

WEIGHTS = {f"layer.{i}": np.full((4, 300), i, np.float32) for i in range(3)}


def model(folder: Path, weights: dict = WEIGHTS, files: int = 1, **config) -> Path:
    """A model in so many files, with an index where there are several."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(f'{{"model_type": "qwen3", "extra": "{config}"}}')
    names = list(weights)
    parts = {f"model-{i}.safetensors": names[i::files] for i in range(files)}
    for file, part in parts.items():
        save_file({name: weights[name] for name in part}, folder / file)
    if files > 1:
        weight_map = {name: file for file, part in parts.items() for name in part}
        (folder / "model.safetensors.index.json").write_text(f'{{"weight_map": {weight_map}}}'.replace("'", '"'))
    return folder


def trained(weights: dict) -> dict:
    """One weight of one tensor has moved."""
    changed = {name: tensor.copy() for name, tensor in weights.items()}
    changed["layer.1"][0, 5] += 0.01
    return changed


# --- a model is known by its weights


def test_copies_and_other_files_of_the_same_weights_are_the_same_model(tmp_path):
    first = weights_identity(model(tmp_path / "a"))
    assert first == weights_identity(model(tmp_path / "b", files=3, saved_again=True))
    shutil.copytree(tmp_path / "a", tmp_path / "c")
    (tmp_path / "c" / "tokenizer.json").write_text("{}")
    assert weights_identity(tmp_path / "c") == first and len(first) == 16


@pytest.mark.parametrize(
    "other",
    [
        trained(WEIGHTS),
        {name: tensor.astype(np.float16) for name, tensor in WEIGHTS.items()},
        {name: tensor.reshape(300, 4) for name, tensor in WEIGHTS.items()},
        {f"{name}.weight": tensor for name, tensor in WEIGHTS.items()},
        {"layer.0": WEIGHTS["layer.0"]},
    ],
    ids=["trained", "another type", "another shape", "other names", "fewer tensors"],
)
def test_other_weights_are_another_model(other, tmp_path):
    assert weights_identity(model(tmp_path / "a")) != weights_identity(model(tmp_path / "b", other))


def test_what_is_not_there_is_not_known(tmp_path):
    assert weights_identity(tmp_path) is None
    whole = model(tmp_path / "a", files=3)
    (whole / "model-1.safetensors").unlink()
    assert weights_identity(whole) is None
    (whole / "model.safetensors.index.json").write_text("[]")
    assert weights_identity(whole) is None
    cut = model(tmp_path / "b") / "model-0.safetensors"
    cut.write_bytes(cut.read_bytes()[:-8])
    assert weights_identity(tmp_path / "b") is None


# --- it goes with the pass rates


@pytest.fixture
def measured(tmp_path) -> Path:
    """difficulty.parquet as `data difficulty` writes it, with the model in m/."""
    import pyarrow as pa

    rows = [
        {"id": f"{i:016x}", "prompt": "p", "label": "l", "cluster": str(i % 2), "pass_rate": i / 4} for i in range(4)
    ]
    mark = measured_with.model_mark(str(model(tmp_path / "m")))
    write_table(measured_with.marked(pa.Table.from_pylist(rows), pass_rates=mark), tmp_path / "difficulty.parquet")
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
        "data.order_any_model": False,
        **changes,
    }


def test_order_carries_the_model_on_and_says_by_what_it_ordered(measured, capsys):
    marks = measured_with.marks_of(order(measured, "ordered.parquet"))
    assert (
        marks["order"] == "difficulty"
        and marks["pass_rates"]["name"] == "m"
        and len(marks["pass_rates"]["weights"]) == 16
    )
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


def test_the_models_own_order_is_trained_on(measured, tmp_path):
    ordered = order(measured, "ordered.parquet")
    copy = model(tmp_path / "elsewhere" / "copy", files=2)
    measured_with.check(values(ordered, tmp_path / "m"))
    measured_with.check(values(ordered, copy))


def test_another_models_order_is_refused_and_both_are_named(measured, tmp_path):
    ordered = order(measured, "ordered.parquet")
    other = model(tmp_path / "m-base", trained(WEIGHTS))
    with pytest.raises(UsageError) as error:
        measured_with.check(values(f"{tmp_path}/none.parquet, {ordered}", other))
    for text in (
        str(ordered),
        "measured with m (weights ",
        "is m-base (weights ",
        "data difficulty --model",
        "--data.order_any_model",
    ):
        assert text in str(error.value)
    measured_with.check(values(ordered, other, **{"data.order_any_model": True}))
    measured_with.check(values(ordered, other, **{"data.order": "shuffle"}))
    measured_with.check(values(order(measured, "topic.parquet", "topic"), other))


@pytest.mark.parametrize(
    ("was", "weights", "now", "refused"),
    [
        ("Qwen/Qwen3-8B", None, "Qwen/Qwen3-8B", False),
        ("Qwen/Qwen3-8B", None, "Qwen/Qwen3-8B-Base", True),
        ("Qwen3-8B", "0123456789abcdef", "Qwen/Qwen3-8B-Base", False),  # compared once the weights are fetched
        ("Qwen3-8B", None, "Qwen/Qwen3-8B-Base", False),
    ],
)
def test_names_decide_where_the_weights_are_not_on_this_machine(was, weights, now, refused, measured, monkeypatch):
    monkeypatch.setattr(measured_with, "model_folder", lambda name: None)
    write_table(measured_with.marked(read_table(measured), pass_rates={"name": was, "weights": weights}), measured)
    ordered = order(measured, "ordered.parquet")
    with pytest.raises(UsageError, match=f"{was} .*{now} ") if refused else contextlib.nullcontext():
        measured_with.check(values(ordered, now))


def test_two_folders_of_one_name_are_not_compared_by_it(measured, tmp_path):
    """Such as model/, which every training calls its own: without weights, nothing is known."""
    other = tmp_path / "other" / "m"
    other.mkdir(parents=True)
    (other / "config.json").write_text("{}")
    (other / "pytorch_model.bin").write_bytes(b"?")
    measured_with.check(values(order(measured, "ordered.parquet"), other))


def test_another_files_metadata_reaches_no_terminal_as_it_is(measured, tmp_path):
    marks = {"pass_rates": {"name": "a\x1b[2Jb", "weights": "\x1b]0;x\x07"}, "order": "difficulty"}
    write_table(measured_with.marked(read_table(measured), **marks), tmp_path / "odd.parquet")
    with pytest.raises(UsageError) as error:
        measured_with.check(values(tmp_path / "odd.parquet", tmp_path / "m"))
    assert "\x1b" not in str(error.value) and "\x07" not in str(error.value)


def test_files_that_do_not_say_it_and_data_sets_elsewhere_pass(measured, tmp_path):
    old = tmp_path / "old.parquet"
    pq.write_table(read_table(measured).replace_schema_metadata(None), old)
    write_table(read_table(measured), tmp_path / "old.jsonl")
    for name in (old, tmp_path / "old.jsonl", tmp_path / "none.parquet", "owner/name"):
        measured_with.check(values(name, tmp_path / "m"))


@pytest.mark.parametrize(
    "content",
    ["[]", "{", '{"pass_rates": 7, "order": "difficulty"}', '{"pass_rates": {"name": 1}, "order": "difficulty"}'],
)
def test_hostile_metadata_says_nothing(content, measured, tmp_path):
    table = read_table(measured).replace_schema_metadata({measured_with.KEY: content})
    write_table(table, tmp_path / "odd.parquet")
    measured_with.check(values(tmp_path / "odd.parquet", tmp_path / "m"))
