"""The labels of the reasoning-gym reward are looked at before anything heavy starts."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openrlhf_ebpo.checks import gym_check
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.rewards import gym


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def rows(name: str, count: int = 2) -> list[dict]:
    data = gym.create(name, {"seed": 1})
    entries = [data[index] for index in range(count)]
    return [{"prompt": entry["question"], "entry": gym.encode(name, {"seed": 1}, entry)} for entry in entries]


def write(path: Path, rows: list[dict]) -> str:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text(json.dumps(rows) if path.suffix == ".json" else "".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def check(train: str, held_out: str | None = None, reward: str | None = gym_check.FILE) -> None:
    gym_check.check_labels(reward, {"--data.prompt_dataset": train, "--eval.dataset": held_out}, "entry")


def refused(*files: str) -> list[str]:
    with pytest.raises(UsageError) as error:
        check(*files)
    return str(error.value).splitlines()


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet", ".csv"])
def test_a_mixture_in_files_of_any_format_passes(tmp_path, suffix):
    path = write(tmp_path / f"train{suffix}", rows("arc_agi") + rows("graph_color") + rows("countdown"))
    check(f"{path},me/on_the_hub", path)


def test_plain_answers_are_named_with_file_column_row_and_what_to_write(tmp_path):
    path = write(tmp_path / "plain.jsonl", [*rows("chain_sum", 1), *[{"prompt": "p", "entry": "32"}] * 9])
    problems = refused(write(tmp_path / "good.jsonl", rows("chain_sum")), path)
    assert problems[0].startswith(f"--eval.dataset {path}, column 'entry', row 2: '32' is no entry of reasoning-gym, ")
    assert '{"name": "chain_sum", "settings"' in problems[0]
    assert problems[5:] == ["and 4 more rows like these", "docs/data.md says how rows for this reward are made"]


def test_numbers_instead_of_texts_are_named_too(tmp_path):
    problems = refused(write(tmp_path / "numbers.jsonl", [{"prompt": "p", "entry": 32}]))
    assert "row 1: 32 is no entry of reasoning-gym" in problems[0]


def test_a_kind_whose_own_answer_gets_no_full_marks_is_refused_by_name(tmp_path):
    path = write(tmp_path / "train.jsonl", rows("chain_sum", 5) + rows("boxnet", 1))
    (problem, _) = refused(path)
    assert f"{path}, column 'entry', row 6: boxnet: reasoning-gym gives no right answer" in problem


def test_other_rewards_are_left_alone(tmp_path):
    path = write(tmp_path / "plain.jsonl", [{"prompt": "p", "entry": "32"}])
    for reward in (None, "reward.py", "http://host/r"):
        check(path, reward=reward)
