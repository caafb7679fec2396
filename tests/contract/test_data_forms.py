"""Each form of a data set that OpenRLHF's loader takes is read by the checks of a training, by `data` and by eval's
file:."""

import json
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.feather
import pytest
from commands import write_rows

from openrlhf_ebpo.command import nested
from openrlhf_ebpo.data import order, preflight, prepare, topics
from openrlhf_ebpo.data.preflight import InputFiles
from openrlhf_ebpo.data.training_tables import column_names, count_rows, identity, read_rows, read_table
from openrlhf_ebpo.errors import UsageError

ROWS = [{"id": f"{i}", "prompt": f"{i} + {i} =", "label": str(2 * i), "cluster": "sums"} for i in range(1, 21)]


def saved(folder, splits=None):
    from datasets import Dataset, DatasetDict

    data = Dataset.from_list(ROWS)
    (DatasetDict({"train": data, "spare": data.select([0])}) if splits else data).save_to_disk(folder)
    return folder


def arrow(folder, stream: bool):
    folder.mkdir()
    if not stream:
        pyarrow.feather.write_feather(pa.Table.from_pylist(ROWS), folder / "rows.arrow")
        return folder / "rows.arrow"
    saved(folder / "set")
    for other in (folder / "set").glob("*.json"):
        other.unlink()
    return next((folder / "set").glob("*.arrow")).rename(folder / "rows.arrow")


def typed(folder, suffix):
    (folder / "deeper").mkdir(parents=True)
    write_rows(folder / f"a.{suffix}", ROWS[:12])
    write_rows(folder / "deeper" / f"b.{suffix}", ROWS[12:])
    return folder


def csv(folder):
    from datasets import Dataset

    folder.mkdir()
    Dataset.from_list(ROWS).to_csv(folder / "rows.csv")
    return folder / "rows.csv"


def array(folder):
    folder.mkdir()
    (folder / "rows.json").write_text(json.dumps(ROWS, indent=1))
    return folder / "rows.json"


FORMS = {
    "FILE.arrow, a stream": lambda folder: arrow(folder, True),
    "FILE.arrow, with a footer": lambda folder: arrow(folder, False),
    "FILE.csv": csv,
    "FILE.json, an array": array,
    "FILE.jsonl": lambda folder: typed(folder, "jsonl") and write_rows(folder / "all.jsonl", ROWS),
    "FOLDER": lambda folder: typed(folder, "jsonl"),
    "FOLDER@SUBFOLDER": lambda folder: f"{typed(folder / 'sub', 'parquet').parent}@sub",
    "FOLDER, saved": saved,
    "FOLDER, saved with splits": lambda folder: saved(folder, splits=True),
    "json@FOLDER": lambda folder: f"json@{typed(folder, 'jsonl')}",
    "parquet@FOLDER": lambda folder: f"parquet@{typed(folder, 'parquet')}",
    "arrow@FOLDER": lambda folder: f"arrow@{arrow(folder, True).rename(folder / 'set' / 'a.arrow').parent}",
}


@pytest.fixture(params=FORMS)
def name(request, tmp_path, monkeypatch) -> str:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return str(FORMS[request.param](tmp_path / "data"))


def flags(name: str, **changes) -> dict:
    return {"data.prompt_dataset": name, "data.input_key": "prompt", "data.label_key": "label", **changes}


def check_files(values: dict) -> None:
    InputFiles.from_args(nested(values)).check()


def refused(args: dict) -> str:
    with pytest.raises(UsageError) as caught:
        check_files(args)
    return str(caught.value)


def as_text(rows) -> list[dict]:
    return [{key: str(value) for key, value in row.items()} for row in rows]


def test_training_and_this_package_read_the_same_rows(name):
    from openrlhf.datasets.utils import blending_datasets

    strategy = SimpleNamespace(print=lambda *_: None, is_rank_0=lambda: False, args=SimpleNamespace(use_ms=False))
    theirs = as_text(blending_datasets(name, None, strategy))
    assert theirs == as_text(ROWS)
    assert as_text(row for rows in read_rows(name, batch_size=7) for row in rows) == theirs
    assert as_text(read_table(name).to_pylist()) == theirs
    assert column_names(name) == list(ROWS[0]) and count_rows(name) == len(ROWS)
    assert identity(name) == identity(name)


def test_a_start_takes_it_and_names_a_missing_column(name):
    check_files(flags(name))
    message = refused(flags(name, **{"data.label_key": "gold"}))
    assert f"--data.prompt_dataset {name}: " in message
    assert "id, prompt, label, cluster" in message


def test_it_can_be_prepared_ordered_and_given_topics(name, tmp_path):
    prepare.main(["--input", name, "--output", str(tmp_path / "prepared"), "--validation", "0"])
    found = read_table(tmp_path / "prepared" / "train.parquet").to_pylist()
    assert [(row["prompt"], row["label"]) for row in found] == [(row["prompt"], row["label"]) for row in ROWS]
    prepare.main(["--input", name, "--output", str(tmp_path / "prepared"), "--validation", "0"])  # and is recognised
    order.main(["--input", name, "--output", str(tmp_path / "ordered.parquet"), "--by", "topic"])
    assert sorted(read_table(tmp_path / "ordered.parquet")["prompt"].to_pylist()) == sorted(r["prompt"] for r in ROWS)
    table = topics.read_table(name)
    assert topics.questions(table, name) == [row["prompt"] for row in ROWS]


def test_eval_asks_its_questions(name):
    from openrlhf_ebpo.eval.tasks import load_task

    task = load_task(f"file:{name}")
    assert [(question.question, question.gold) for question in task.questions] == [
        (r["prompt"], r["label"]) for r in ROWS
    ]


def test_paths_are_absolute_in_every_form(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    typed(tmp_path / "data", "jsonl")
    given = {"json@data": f"json@{tmp_path}/data", "data@deeper": f"{tmp_path}/data@deeper", "o/n@data": "o/n@data"}
    for name, expected in given.items():
        args = nested(flags(name))
        preflight.absolute_paths(args)
        assert args.data.prompt_dataset == expected


@pytest.mark.parametrize(
    ("name", "split", "shown"),
    [
        ("json@none", "train", "none doesn't contain any data files"),
        ("saved", "train", None),
        ("saved", "test", None),  # without splits: OpenRLHF takes all of it
        ("splits", "test", "has train, spare, and no split 'test'"),
        ("a.jsonl", "test", "has train, and no split 'test'"),
        ("a@b.jsonl", "train", "move the data set to a path without one"),
        ("script.py", "train", "the file is empty"),
        ("scripts", "train", "Dataset scripts are no longer supported"),
        ("empty", "train", "doesn't contain any data files"),
        ("json@mixed", "train", "cannot be read (ArrowInvalid"),
    ],
)
def test_what_the_loader_cannot_read_is_named(tmp_path, monkeypatch, name, split, shown):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "saved")
    saved(tmp_path / "splits", splits=True)
    for file in ("a.jsonl", "a@b.jsonl"):
        write_rows(tmp_path / file, ROWS)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "empty").mkdir()
    write_rows(tmp_path / "mixed" / "a.jsonl", ROWS)
    (tmp_path / "mixed" / "notes.txt").write_text("of a person")
    for file in ("script.py", "scripts/scripts.py"):
        (tmp_path / file).write_text("")
    args = flags(name, **{"data.prompt_split": split})
    if shown is None:
        check_files(args)
    else:
        assert shown in refused(args)
