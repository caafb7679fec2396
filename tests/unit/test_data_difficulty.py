"""Bookkeeping of `data difficulty`: what is kept, what is measured again, what people see. No engine starts here."""

import argparse
import contextlib
import json
import multiprocessing
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import tiny_tokenizers
from commands import write_rows
from safetensors.numpy import save_file

from openrlhf_ebpo import progress
from openrlhf_ebpo.data import difficulty, difficulty_report
from openrlhf_ebpo.data.difficulty import DifficultySettings
from openrlhf_ebpo.engines import engines
from openrlhf_ebpo.engines.engines import Sample
from openrlhf_ebpo.errors import ReportedError, UsageError, without_traceback
from openrlhf_ebpo.progress import model_identity, progress_file
from openrlhf_ebpo.rewards.reward_settings import BUILT_IN
from openrlhf_ebpo.upstream.engine_errors import EngineError
from openrlhf_ebpo.upstream.rendering import Prompt

ROWS = [
    {"id": f"p{i}", "prompt": f"{i} + {i}", "label": str(2 * i), "question": "q", "datasource": "d"} for i in range(4)
]


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    save_file({"w": np.zeros(1)}, tmp_path / "model" / "model.safetensors")
    (tmp_path / "reward.py").write_text("def reward_func(queries, prompts, labels, **kwargs): ...\n")
    write_rows(tmp_path / "in.jsonl", ROWS)
    return tmp_path


FLAGS = {
    "model": "actor.model_name_or_path",
    "reward": "reward.remote_url",
    "agent": "train.agent_func_path",
    "n": "rollout.n_samples_per_prompt",
    **{name: f"rollout.{name}" for name in ("top_p", "max_new_tokens")},
    **{name: f"data.{name}" for name in ("max_len", "input_template")},
}


def arguments(folder: Path, **changes) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    difficulty.add_flags(parser)
    given = {"input": "in.jsonl", "output": "out.parquet", FLAGS["model"]: "model", FLAGS["reward"]: "reward.py"}
    argv = [part for name, file in given.items() for part in (f"--{name}", str(folder / file))]
    args = parser.parse_args([*argv, "--rollout.n_samples_per_prompt", "4"])
    for name, value in changes.items():
        setattr(args, FLAGS.get(name, name), value)
    return args


def record(row: dict, rewards: list[float | None]) -> dict:
    samples = [
        Sample([1] * (i + 1), i == 0, reward, None if reward is not None else "boom")
        for i, reward in enumerate(rewards)
    ]
    return difficulty.to_record(Prompt(row["id"], row["prompt"]), samples, difficulty.prompt_fingerprint(row))


def begin(folder: Path, rewards: list[list[float | None]], **changes) -> argparse.Namespace:
    """A progress file with these rewards for the first prompts, as a killed run leaves it."""
    args = arguments(folder, **changes)
    settings = DifficultySettings.from_args(args)
    settings.check()
    with progress_file(folder / "out.progress.jsonl", settings.identity()) as (_, append):
        for row, values in zip(ROWS, rewards, strict=False):
            append(record(row, values))
    return args


@pytest.fixture
def asked_for(monkeypatch) -> list[str]:
    """In place of the engines: notes which prompts would be generated, and stops."""
    ids: list[str] = []

    def measure(args, rows, records, append):
        ids.extend(row["id"] for row in rows)
        raise KeyboardInterrupt

    monkeypatch.setattr(difficulty, "measure", measure)
    return ids


# prompts


def test_a_training_set_of_other_columns_needs_no_ids(folder, asked_for):
    rows = [{"question": row["prompt"], "gold": row["label"]} for row in ROWS]
    write_rows(folder / "in.jsonl", rows)
    with pytest.raises(UsageError, match=r"no column 'prompt'.*--data.input_key names another"):
        difficulty.run(arguments(folder))
    with pytest.raises(KeyboardInterrupt):
        difficulty.run(arguments(folder, **{"data.input_key": "question", "data.label_key": "gold"}))
    assert len(set(asked_for)) == len({row["question"] for row in rows}) == len(asked_for)


def test_labels_that_math_cannot_read_are_named(folder, asked_for, grader):
    write_rows(folder / "in.jsonl", [{"id": str(i), "prompt": f"q{i}", "label": "proof"} for i in range(3)])
    with pytest.raises(UsageError, match=r"3 of 3 labels .* cannot be read as gold answers.*--data.label_key"):
        difficulty.run(arguments(folder, reward="math"))
    assert not asked_for


@pytest.mark.parametrize("template", [None, "<bos>{}"])
def test_the_prompts_are_those_of_the_training_to_come_and_what_does_not_fit_is_said(
    folder, template, monkeypatch, capsys
):
    """No engine starts: what it would be given is caught where it is started."""
    asked: dict = {}

    def started(settings):
        asked["room"] = settings.max_len
        raise EngineError("caught")

    def generate(*_):
        raise AssertionError

    model = tiny_tokenizers.save(folder / "tokenizer")
    settings = DifficultySettings.from_args(
        arguments(folder, model=model, input_template=template, max_new_tokens=8, max_len=13)
    )
    monkeypatch.setattr(engines, "started", started)
    with pytest.raises(ReportedError, match="caught"):
        difficulty.measure(settings, [*ROWS, {"id": "long", "prompt": "1 + 1 + 1", "label": "3"}], {}, generate)
    out = capsys.readouterr().out
    assert asked == {"room": 13}
    assert ("5 of 5 prompts lack it" in out and "or of --data.input_template" in out) == (not template)
    assert f"{5 if template else 1} of 5 prompts are longer than the 5 tokens that --data.max_len leaves" in out


def test_the_progress_bar_begins_with_what_is_not_measured_again(folder, monkeypatch):
    model = tiny_tokenizers.save(folder / "tokenizer")
    settings = DifficultySettings.from_args(arguments(folder, model=model, max_new_tokens=8, max_len=99))
    records = {row["id"]: record(row, [reward] * 4) for row, reward in zip(ROWS, (1.0, None), strict=False)}
    bars: list[tuple] = []
    monkeypatch.setattr(engines, "started", lambda settings: contextlib.nullcontext([]))
    monkeypatch.setattr(engines, "generate", lambda *_: [])
    monkeypatch.setattr(difficulty_report, "ProgressBar", lambda *bar: bars.append(bar) or contextlib.nullcontext())
    difficulty.measure(settings, ROWS[1:], records, print)
    assert bars == [(4, 1)]


# rewards


def test_engines_get_the_limits_of_rewards(folder):
    settings = DifficultySettings.from_args(arguments(folder, **{"reward.timeout": 2.5}))
    assert settings.rewards.timeout == 2.5
    assert settings.engine.rewards == settings.rewards


# progress file


def test_a_progress_file_gives_back_what_was_appended_and_survives_a_torn_line(tmp_path):
    path = tmp_path / "deep" / "p.jsonl"
    with progress_file(path, {"n": 4}) as (records, append):
        assert records == []
        append({"id": 1})
    with open(path, "a") as file:
        file.write('{"id": 2, "rew')
    with progress_file(path, {"n": 4}) as (records, append):
        assert records == [{"id": 1}]
        append({"id": 3})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"settings": {"n": 4}},
        {"id": 1},
        {"id": 3},
    ]


def test_a_first_line_torn_by_a_crash_is_begun_again(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"settings": {"n"')
    with progress_file(path, {"n": 4}) as (records, append):
        append({"id": 1})
    assert records == [] and len(path.read_text().splitlines()) == 2


def test_other_settings_are_refused_with_their_names_and_force_keeps_the_old_file(tmp_path):
    path = tmp_path / "p.jsonl"
    with progress_file(path, {"n": 4, "model": "a", "top_p": 1.0}) as (_, append):
        append({"id": 1})
    with pytest.raises(UsageError) as error, progress_file(path, {"n": 8, "model": "b", "top_p": 1.0}):
        pass
    assert "n: 4 there, 8 now" in str(error.value) and "'a' there" in str(error.value)
    assert "top_p" not in str(error.value) and "--force" in str(error.value)
    with progress_file(path, {"n": 8}, force=True) as (records, _):
        assert records == []
    (old,) = (other for other in tmp_path.iterdir() if other != path)
    assert '{"id": 1}' in old.read_text()


@pytest.mark.parametrize("content", ["[1, 2]\n", "not json\n", '{"id": 1}\n', "3\n", '{"settings": null}\n'])
def test_a_file_that_is_no_progress_file_is_not_written_to(tmp_path, content):
    path = tmp_path / "p.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match="not a progress file"), progress_file(path, {"n": 4}):
        pass
    assert path.read_text() == content


def _try_to_open(path, answers) -> None:
    try:
        with progress.progress_file(path, {}):
            answers.put("opened")
    except UsageError as error:
        answers.put(str(error))


def test_two_processes_do_not_write_to_one_file(tmp_path):
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    with progress_file(tmp_path / "p.jsonl", {}):
        other = context.Process(target=_try_to_open, args=(tmp_path / "p.jsonl", answers))
        other.start()
        assert "another process" in answers.get()
        other.join()


def test_a_model_is_known_by_its_weights_not_by_where_it_lies(folder):
    before = model_identity(str(folder / "model"))
    (folder / "elsewhere").mkdir()
    moved = (folder / "model").rename(folder / "elsewhere" / "model")
    assert model_identity(str(moved)) == before and before.startswith("model@")
    save_file({"w": np.ones(1)}, moved / "model.safetensors")
    assert model_identity(str(moved)) != before
    assert model_identity("Qwen/Qwen3-8B") == "Qwen/Qwen3-8B"


# mistakes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "/no/such/model"}, "--actor.model_name_or_path /no/such/model: no such folder"),
        ({"reward": None}, "give --reward.remote_url"),
        ({"agent": "agent.py"}, "or --train.agent_func_path, not both"),
        ({"reward": "missing.py"}, "--reward.remote_url missing.py: no such file"),
        ({"reward": None, "agent": "missing.py", "max_len": 9000}, "--train.agent_func_path missing.py: no such file"),
        ({"reward": "host:5000"}, "--reward.remote_url host:5000: neither"),
        ({"n": 0}, "--rollout.n_samples_per_prompt 0"),
        ({"top_p": 0.0}, "--rollout.top_p 0.0"),
        ({"max_len": 8192}, "--data.max_len 8192 leaves no room"),
        ({"input_template": "no place"}, "needs a {}"),
        ({"output": "out.csv"}, "--output out.csv"),
        ({"input": "missing.parquet"}, "missing.parquet: no such file"),
    ],
    ids=str,
)
def test_a_mistake_is_named_before_anything_starts(folder, change, message):
    with pytest.raises(UsageError) as error:
        difficulty.run(arguments(folder, **change))
    assert message in str(error.value)
    assert not (folder / "out.progress.jsonl").exists()


def test_short_names_and_relative_paths_are_made_absolute_for_rays_workers(folder, monkeypatch):
    monkeypatch.chdir(folder)
    settings = DifficultySettings.from_args(arguments(folder, model="model", reward="math"))
    assert settings.engine.model == str(folder / "model")
    assert settings.rewards.sources == (BUILT_IN["math"],)
    settings = DifficultySettings.from_args(arguments(folder, reward=None, agent="reward.py"))
    assert settings.rewards.agent == str(folder / "reward.py")


def test_a_reward_file_without_reward_func_is_named(folder):
    (folder / "reward.py").write_text("def score(): ...\n")
    with pytest.raises(UsageError, match="`reward_func`"):
        difficulty.run(arguments(folder))


def test_the_input_is_never_the_output(folder):
    with pytest.raises(UsageError, match="is the input"):
        difficulty.run(arguments(folder, output=str(folder / "in.jsonl")))


def test_an_output_from_elsewhere_is_not_replaced(folder, asked_for):
    (folder / "out.parquet").write_text("something else")
    with pytest.raises(UsageError, match="exists and is not from this command"):
        difficulty.run(arguments(folder))
    with pytest.raises(KeyboardInterrupt):
        difficulty.run(arguments(folder, force=True))
    assert (folder / "out.parquet").read_text() == "something else"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"id": "a", "prompt": "a"}], "no column 'label'"),
        ([ROWS[0], {**ROWS[0], "prompt": "another"}], "'p0' stands for two different prompts"),
        ([{**ROWS[0], "prompt": [{"role": "user", "content": "hi"}]}], "--data.apply_chat_template"),
    ],
    ids=["column", "id", "chat"],
)
def test_rows_that_cannot_be_measured_are_named(folder, rows, message):
    write_rows(folder / "in.jsonl", rows)
    with pytest.raises(UsageError, match=message):
        difficulty.run(arguments(folder))


# going on


def test_only_what_is_missing_without_reward_or_changed_is_measured_again(folder, asked_for):
    args = begin(folder, [[1.0, 0.0, 0.0, 1.0], [None] * 4, [0.0] * 4])
    write_rows(folder / "in.jsonl", [*ROWS[:2], {**ROWS[2], "label": "corrected"}, ROWS[3], ROWS[3]])
    with pytest.raises(KeyboardInterrupt):
        difficulty.run(args)
    assert asked_for == ["p1", "p2", "p3"]


def test_of_a_prompt_that_was_measured_twice_the_last_record_counts():
    lines = [record(ROWS[0], rewards) for rewards in ([None] * 4, [1.0] * 4)]
    assert difficulty.usable_records(lines, {"p0": ROWS[0]}) == {"p0": lines[1]}


def test_a_finished_measurement_is_written_without_any_engine(folder, capsys):
    write_rows(folder / "in.jsonl", [*ROWS, ROWS[0]])
    args = begin(folder, [[0.0] * 4, [1.0, 0.0, 1.0, None], [1.0] * 4, [0.5, 0.0, 0.0, 1.0]])
    difficulty.run(args)
    table = pq.read_table(folder / "out.parquet")
    assert table.column_names[:5] == list(ROWS[0])
    rows = table.to_pylist()
    assert [row["pass_rate"] for row in rows] == [0, pytest.approx(2 / 3), 1, 0.25, 0]
    assert [row["n_rollouts"] for row in rows] == [4, 3, 4, 4, 4] and rows[1]["pass_count"] == 2
    assert rows[3]["mean_reward"] == 0.375
    assert rows[0]["mean_length"] == 2.5 and rows[0]["truncated_share"] == 0.25
    printed = capsys.readouterr().out
    for part in ("4 of them measured already", "all fail        25.0%", "1 of 16 responses got no reward", "1 x boom"):
        assert part in printed
    assert "openrlhf-ebpo data order --by difficulty" in printed


def test_another_pass_mark_changes_the_table_of_a_finished_measurement(folder):
    begin(folder, [[0.5, 0.0, 0.0, 0.0]] * 4)
    difficulty.run(arguments(folder, pass_reward=0.5))
    assert pq.read_table(folder / "out.parquet")["pass_rate"].to_pylist() == [0.25] * 4


def test_a_prompt_without_any_reward_is_empty_and_reported(folder, capsys):
    records = {
        row["id"]: record(row, rewards) for row, rewards in zip(ROWS, [[0.2], [None], [0.4], [0.0]], strict=True)
    }
    settings = DifficultySettings.from_args(arguments(folder))
    table = difficulty.read_table(settings.input)
    difficulty.finish(settings, table, records)
    assert pq.read_table(folder / "out.parquet")["pass_rate"].to_pylist() == [0, None, 0, 0]
    printed = capsys.readouterr().out
    assert "1 prompts have no reward at all and an empty pass_rate (p1)" in printed
    assert "no reward reached --pass_reward 1; the largest was 0.4" in printed


def test_when_no_reward_comes_the_run_stops_with_the_reason(folder):
    settings = DifficultySettings.from_args(arguments(folder))
    records = {}
    with pytest.raises(UsageError, match=r"8 prompts: 32 x boom"):
        for i in range(difficulty.GIVE_UP_AFTER):
            records[i] = record(ROWS[0], [None] * 4)
            difficulty.stop_if_nothing_works(records, settings)
    records[0] = record(ROWS[0], [None, None, 1.0, None])
    difficulty.stop_if_nothing_works(records, settings)


# histogram


@pytest.mark.parametrize(
    ("rates", "n", "counts"),
    [
        ([0, 0, 0.25, 0.5, 1], 4, [2, 1, 1, 0, 1]),
        ([0, 1 / 3, 2 / 3, 1], 4, [1, 1, 0, 1, 1]),
        ([0, 1, 1], 1, [1, 2]),
        ([1 / 64, 63 / 64, 0, 1], 64, [1, 1, *[0] * 13, 1, 1]),
    ],
    ids=str,
)
def test_the_ends_of_the_histogram_hold_only_all_fail_and_all_pass(rates, n, counts):
    assert difficulty_report.histogram(rates, n) == counts


# generation


def test_the_reason_is_what_was_raised_not_the_traceback():
    text = (
        'The actor died, ray::A()\n  File "a.py", line 1, in f\n    raise X\n    ^^^^\nValueError: too long\n  by far'
    )
    assert without_traceback(RuntimeError(text)) == "ValueError: too long by far"
    assert without_traceback(RuntimeError("the worker was killed")) == "the worker was killed"
    assert without_traceback(KeyError()) == "KeyError"


def test_numbers_are_prompts_where_a_template_makes_text_of_them():
    from openrlhf_ebpo.data.difficulty import distinct_rows
    from openrlhf_ebpo.errors import UsageError

    given = {"input": "f", "apply_chat_template": False}
    rows = [{"id": 1, "prompt": 5, "label": "5"}]
    assert list(distinct_rows(rows, argparse.Namespace(**given, input_template="{} ="))) == [1]
    with pytest.raises(UsageError, match="the prompts are chats"):
        distinct_rows(rows, argparse.Namespace(**given, input_template=None))
