"""Each mistake on disk is found before anything heavy starts, and all of them at once."""

import json
from pathlib import Path

import numpy as np
import pytest
from commands import write_rows
from safetensors.numpy import save_file

from openrlhf_ebpo.command import nested
from openrlhf_ebpo.data import preflight
from openrlhf_ebpo.data.preflight import InputFiles
from openrlhf_ebpo.data.training_tables import column_names
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.run.batches import BatchSettings

ROWS = [{"prompt": "1+1", "label": "2"}, {"prompt": "1+2", "label": "3"}]


@pytest.fixture
def good(tmp_path) -> dict:
    write_rows(tmp_path / "data.jsonl", ROWS)
    (tmp_path / "reward.py").write_text("def reward_func(queries, prompts, labels):\n    return {'rewards': 1.0}\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    save_file({"w": np.zeros(1)}, tmp_path / "model" / "model.safetensors")
    return {
        "data.prompt_dataset": str(tmp_path / "data.jsonl"),
        "data.input_key": "prompt",
        "data.label_key": "label",
        "actor.model_name_or_path": str(tmp_path / "model"),
        "reward.remote_url": str(tmp_path / "reward.py"),
    }


def check_files(values: dict) -> None:
    InputFiles.from_args(nested(values)).check()


def refused(args: dict) -> list[str]:
    with pytest.raises(UsageError) as error:
        check_files(args)
    return str(error.value).splitlines()


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"data.prompt_dataset": "me/dataset"},
        {"data.prompt_dataset": "me/dataset@train"},
        {"actor.model_name_or_path": "Qwen/Qwen3-8B"},
        {"reward.remote_url": "http://host:5000/r"},
        {"reward.remote_url": "https://one/r,https://two/r"},
        {"reward.remote_url": None, "reward.model_name_or_path": "me/reward"},
        {"data.label_key": None},
        {"eval.dataset": None, "algo.advantage.ebpo.init_prior": None},
    ],
    ids=str,
)
def test_what_is_right_passes(good, change):
    check_files({**good, **change})


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(ROWS, indent=2),
        "".join(json.dumps(row) + "\n" for row in ROWS),
        json.dumps(ROWS[0], indent=1),
        '{"prompt": "the first row lacks a label"}\n{"prompt": "1 + 1 =", "label": "2"}\n',
    ],
)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_json_may_be_a_list_or_lines_or_one_object(tmp_path, text, mark, suffix):
    path = tmp_path / f"data{suffix}"
    path.write_text(mark + text)
    assert column_names(path) == ["prompt", "label"]


def test_a_csv_file_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "data.csv").write_text("\ufeffprompt,label\r\n1 + 1 =,2\r\n")
    assert column_names(tmp_path / "data.csv") == ["prompt", "label"]


def test_a_nested_label_is_sent_to_data_prepare(tmp_path):
    (tmp_path / "data.jsonl").write_text('{"prompt": "1 + 1 =", "reward_model": {"ground_truth": "2"}}\n')
    columns = {"--data.label_key": "reward_model.ground_truth"}
    problem = preflight.dataset_problems(str(tmp_path / "data.jsonl"), columns)[0]
    assert "reads no column inside another: openrlhf-ebpo data prepare" in problem


@pytest.mark.parametrize(
    ("name", "content", "shown"),
    [
        ("none.jsonl", None, "no such file"),
        ("empty.jsonl", "", "the file is empty"),
        ("header.csv", "prompt,label\n", "cannot be read (ValueError"),
        ("data.tsv", "prompt\tlabel\n1\t2\n", "cannot be read (FileNotFoundError: Couldn't find any data file"),
        ("later.jsonl", '{"prompt": 1, "label": 2}\n{"prompt": ', "cannot be read (ArrowInvalid: JSON parse error"),
        ("broken.parquet", "no parquet", "cannot be read (ArrowInvalid: Parquet magic bytes"),
        ("other.jsonl", '{"question": 1, "answer": 2}', "has no column 'prompt' (--data.input_key)"),
        ("other.jsonl", '{"prompt": 1, "answer": 2}', "has no column 'label' (--data.label_key)"),
        ("other.csv", "question,answer\n1,2\n", "its columns are question, answer"),
        ("rows.jsonl", "[1]", "'prompt'"),
    ],
)
@pytest.mark.parametrize("flag", ["data.prompt_dataset", "eval.dataset"])
def test_a_data_file_that_cannot_serve_is_named(good, tmp_path, flag, name, content, shown):
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    problems = refused({**good, flag: str(tmp_path / name)})
    assert all(problem.startswith(f"--{flag} {tmp_path / name}: ") for problem in problems)
    assert any(shown in problem for problem in problems)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"data.prompt_dataset": None}, "--data.prompt_dataset is missing"),
        ({"data.prompt_dataset": "data.jsonl"}, "--data.prompt_dataset data.jsonl: no such file"),
        ({"actor.model_name_or_path": None}, "--actor.model_name_or_path is missing"),
        ({"actor.model_name_or_path": "./none"}, "--actor.model_name_or_path ./none: no such folder"),
        ({"critic.model_name_or_path": "/none/at/all"}, "--critic.model_name_or_path /none/at/all: no such folder"),
        ({"reward.remote_url": None}, "no reward: give --reward.remote_url"),
        (
            {"reward.remote_url": "host:5000"},
            "--reward.remote_url host:5000: neither math, nor a .py file or an http(s) address",
        ),
        ({"reward.remote_url": "http://"}, "--reward.remote_url http://: names no server"),
        ({"reward.remote_url": "http://one/r,https://host:port/r"}, "https://host:port/r: names no server"),
        ({"reward.remote_url": "http://one/r,reward"}, "--reward.remote_url reward: neither math"),
        (
            {"reward.remote_url": "ftp://host/r"},
            "neither math, nor a .py file or an http(s) address",
        ),
        ({"reward.remote_url": "/none/reward.py"}, "--reward.remote_url /none/reward.py: no such file"),
        ({"train.agent_func_path": "/none/agent.py"}, "--train.agent_func_path /none/agent.py: no such file"),
        ({"algo.advantage.ebpo.init_prior": "/none.json"}, "--algo.advantage.ebpo.init_prior /none.json: no such file"),
    ],
    ids=str,
)
def test_a_flag_that_names_nothing_is_named(good, change, shown):
    (problem,) = refused({**good, **change})
    assert shown in problem


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("def reward(queries): pass\n", "defines no `reward_func`; upstream calls `def reward_func("),
        ("x = 1\ndef reward_func(:\n    pass\n", "line 2 is not Python"),
        (b"# \xff\xfe\ndef reward_func(): pass\n", "reward.py"),
        ("class Judge:\n    def reward_func(self): pass\n", "defines no `reward_func`"),
    ],
    ids=["missing", "syntax", "encoding", "method"],
)
def test_a_reward_file_that_cannot_serve_is_named(good, source, shown):
    Path(good["reward.remote_url"]).write_bytes(source if isinstance(source, bytes) else source.encode())
    (problem,) = refused(good)
    assert problem.startswith(f"--reward.remote_url {good['reward.remote_url']}: ")
    assert shown in problem


@pytest.mark.parametrize(
    "source",
    [
        "async def reward_func(): pass",
        "from mine import reward_func",
        "from mine import score as reward_func",
        "reward_func = lambda *a: 1",
        "try:\n    from fast import reward_func\nexcept ImportError:\n    from slow import reward_func",
        "if True:\n    def reward_func(): pass",
    ],
)
def test_every_way_to_define_the_reward_function_is_seen(good, source):
    Path(good["reward.remote_url"]).write_text(source)
    check_files(good)


def test_all_problems_are_reported_together(good, tmp_path):
    (tmp_path / "model" / "config.json").unlink()
    (tmp_path / "reward.py").write_text("def f(:")
    problems = refused(
        {**good, "data.prompt_dataset": f"{tmp_path}/a.jsonl,{tmp_path}/b.jsonl", "data.label_key": None}
    )
    assert [problem.split()[0] for problem in problems] == [
        "--data.prompt_dataset",
        "--data.prompt_dataset",
        "--actor.model_name_or_path",
        "--reward.remote_url",
    ]


def test_local_paths_become_absolute_and_hub_names_stay(good, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    args = nested(
        {
            "data.prompt_dataset": "data.jsonl, me/hub",
            "actor.model_name_or_path": "model",
            "critic.model_name_or_path": "me/model",
            "reward.remote_url": "reward.py",
            "ckpt.path": "ckpt",
            "ckpt.output_dir": None,
        }
    )
    preflight.absolute_paths(args)
    assert args == nested(
        {
            "data.prompt_dataset": f"{tmp_path}/data.jsonl,me/hub",
            "actor.model_name_or_path": f"{tmp_path}/model",
            "critic.model_name_or_path": "me/model",
            "reward.remote_url": f"{tmp_path}/reward.py",
            "ckpt.path": f"{tmp_path}/ckpt",
            "ckpt.output_dir": None,
        }
    )


def test_the_packaged_reward_has_a_short_name(good):
    args = nested({**good, "reward.remote_url": "math"})
    preflight.absolute_paths(args)
    path = Path(args.reward.remote_url)
    assert path.is_file() and path.name == "math.py"
    check_files({**good, "reward.remote_url": str(path)})
    problems = refused({**good, "reward.remote_url": str(path), "data.label_key": None})
    assert problems[0].startswith("--data.label_key is missing")


def test_a_package_that_a_reward_needs_is_named(good, monkeypatch):
    args = {**good, "reward.remote_url": preflight.BUILT_IN["math"]}
    monkeypatch.setattr(
        preflight, "BUILT_IN_NEEDS", {preflight.BUILT_IN["math"]: ("no_such_package", "'openrlhf_ebpo[math]'")}
    )
    (problem,) = refused(args)
    assert problem.startswith("--reward.remote_url: no_such_package ") and "'openrlhf_ebpo[math]'" in problem


def test_a_cluster_column_that_was_asked_for_must_be_there(good):
    check_files({**good, "data.cluster_key": "label"})
    (problem,) = refused({**good, "data.cluster_key": "topic"})
    assert "'topic' (--data.cluster_key)" in problem


@pytest.mark.parametrize(
    ("train_batch", "gpus", "dynamic", "said"),
    [
        (32, 1, False, None),
        (64, 8, True, None),
        (48, 1, False, "OpenRLHF mixes what is left into the next step"),
        (128, 1, False, "mixes"),  # one rank carries the responses on
        (48, 8, False, "16 of them are left out of every step"),
        (48, 1, True, "16 of them"),
    ],
)
def test_a_rollout_batch_that_is_no_whole_number_of_optimizer_steps_is_told(train_batch, gpus, dynamic, said):
    notices = BatchSettings(16, 4, train_batch, ranks=gpus, dynamic=dynamic).notices()
    assert [said in notice for notice in notices] == [True] * bool(said)


def test_images_need_their_column(good):
    check_files(good | {"data.max_images_per_prompt": 0, "data.image_key": "images"})
    with pytest.raises(UsageError, match=r"has no column 'images' \(--data\.image_key\)"):
        check_files(good | {"data.max_images_per_prompt": 8, "data.image_key": "images"})


def test_what_train_sft_cannot_read_is_named_before_anything_starts(good, tmp_path):
    (tmp_path / "pairs.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    args = {
        "data.dataset": str(tmp_path / "pairs.jsonl"),
        "data.input_key": "question",
        "data.output_key": "answer",
        "eval.dataset": None,
        "model.model_name_or_path": good["actor.model_name_or_path"],
    }
    check_files(args)
    wrong = {"data.output_key": "anwser", "eval.dataset": "./none.jsonl", "model.model_name_or_path": "./none"}
    with pytest.raises(UsageError) as caught:
        check_files(args | wrong)
    column, file, model = str(caught.value).splitlines()
    assert "has no column 'anwser' (--data.output_key); its columns are question, answer" in column
    assert "--eval.dataset ./none.jsonl: no such file" in file
    assert "--model.model_name_or_path ./none: no such folder" in model
    with pytest.raises(UsageError, match=r"--data.dataset is missing(.|\n)*--model.model_name_or_path is missing"):
        check_files(args | {"data.dataset": None, "model.model_name_or_path": None})
