"""Cleaning a data set: ids, duplicates, conflicting answers, templates, the validation split, and crashes."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import write_rows
from hub_repos import File
from properties import given, settings, st

from openrlhf_ebpo.cli.data import main
from openrlhf_ebpo.data.clean import held_out
from openrlhf_ebpo.data.questions import DAPO_TEMPLATE, answer_key, bare_question, question_id
from openrlhf_ebpo.data.training_tables import read_table

HARD = "In triangle $ABC$, $\\sin A = \\frac{4}{5}$ and {n} < 90°. 求 $\\{x\\}$?"


def row(question, answer, template=DAPO_TEMPLATE):
    """A row as DAPO-Math-17K has it."""
    return {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": template.replace("{question}", question)}],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": "0"},
    }


def prepare(path, *flags, output=None):
    output = output or path.with_name("out")
    main(["prepare", "--input", str(path), "--output", str(output), *map(str, flags)])
    return output


def sets(output, suffix="parquet"):
    return [read_table(output / f"{name}.{suffix}").to_pylist() for name in ("train", "validation")]


def report(output):
    return json.loads((output / "report.json").read_text())


# Questions and answers


@pytest.mark.parametrize(
    "prompt",
    [
        DAPO_TEMPLATE.replace("{question}", HARD),
        DAPO_TEMPLATE.replace("{question}", HARD).replace("\n\n", "\n"),
        DAPO_TEMPLATE.replace("{question}", HARD).replace("$Answer", "$ANSWER"),
        DAPO_TEMPLATE.replace("{question}", HARD).replace(
            "Answer: $Answer (without quotes)", "Answer: \\boxed{$Answer}"
        ),
        DAPO_TEMPLATE.replace("{question}", HARD)[:-1] + ", and you do not need to use a \\boxed command.",
        DAPO_TEMPLATE.replace("{question}", HARD).split("Remember")[0],
        f'{HARD}\n\nRemember to put your answer on its own line after "Answer:".\n',
        f"  {HARD}\n",
    ],
)
def test_the_question_is_found_whatever_the_template(prompt):
    assert bare_question(prompt) == HARD


def test_other_text_is_left_alone():
    for text in (
        "Solve the following math problem step by step.\n\nWhat is 1?",
        "Remember to put your answer down.",
        "",
    ):
        assert bare_question(text) == text


def test_ids_ignore_white_space_and_unicode_form_only():
    assert question_id("é  x\n= 1 ") == question_id("e\u0301 x = 1")
    assert len({question_id(text) for text in ("x²", "x2", "X2", "x 2")}) == 4
    assert question_id("What is 1 + 1?") == "72f8917549de2d6d"  # fixed: ids connect files made at different times


@pytest.mark.parametrize(
    "same",
    [
        ["34", "34.0", "$34$", "\\boxed{34}", " 34 ", "+34", "034", "34.", "\\text{34}", "\\(34\\)", "68/2"],
        ["0.5", ".5", "1/2", "\\frac{1}{2}", "\\frac12", "\\dfrac{2}{4}", "$\\tfrac{1}{2}$"],
        ["-1/2", "-0.5", "-\\frac{1}{2}", "\\frac{-1}{2}"],
        ["1234567", "1,234,567", "1{,}234{,}567".replace("{,}", ","), "1\\,234\\,567"],
        ["(1, 2)", "(1,2)", "\\left(1,\\, 2\\right)"],
    ],
)
def test_one_answer_in_several_spellings(same):
    assert len({answer_key(answer) for answer in same}) == 1


def test_different_answers_stay_different():
    answers = [
        "34",
        "35",
        "3.4",
        "1 1/2",
        "11/2",
        "\\sqrt{8}",
        "2\\sqrt{2}",
        "1/0",
        "\\frac{1}{0}",
        "A",
        "a",
        "",
        ".",
        "$$",
    ]
    assert len({answer_key(answer) for answer in answers}) == len(answers) - 1  # "" and $$
    assert answer_key("9" * 10_000) != answer_key("9" * 10_001)


# The command


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_a_file_like_dapos(tmp_path, capsys, suffix):
    rows = [row(HARD.replace("{n}", str(i % 20)), str(i % 20)) for i in range(60)]
    rows += [row("Half of 1?", "0.5"), row("Half  of 1?", "\\frac{1}{2}", template="{question}")]
    rows += [row("Who is right?", "1"), row("Who is right?", "2"), row("Who is right?", "1.0")]
    rows += [row("", "1"), row("No answer?", ""), row("No answer?", None)]
    rows += [{**row("x", "1"), "prompt": [{"role": "user", "content": "x"}, {"role": "user", "content": "y"}]}]
    output = prepare(write_rows(tmp_path / f"dapo.{suffix}", rows), "--validation", 5)
    train, validation = sets(output)
    assert len(train) == 16 and len(validation) == 5
    assert set(train[0]) == {"id", "prompt", "label", "question", "datasource"}
    assert len({r["id"] for r in train + validation}) == 21
    for kept in train + validation:
        assert kept["id"] == question_id(kept["question"]) and kept["datasource"] == "math_dapo"
        assert kept["prompt"] == DAPO_TEMPLATE.replace("{question}", kept["question"])
    found = report(output)
    assert found["rows"] == len(rows) == found["kept"] + sum(found["dropped"].values())
    assert sorted(found["dropped"].values()) == [1, 1, 2, 3, 41]
    assert found["conflicting_questions"] == 1
    assert "Who is right?" not in {r["question"] for r in train + validation}
    assert [r["label"] for r in train + validation if r["question"].startswith("Half")] == ["0.5"], "the first spelling"
    printed = capsys.readouterr().out
    assert "answer 'reward_model.ground_truth'" in printed and "different answers (questions: 1)" in printed
    assert f"--data.prompt_dataset {output}/train.parquet --data.input_key prompt --data.label_key label" in printed
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"dapo.{suffix}", "out"]
    assert sorted(p.name for p in output.iterdir()) == ["report.json", "train.parquet", "validation.parquet"]


def test_columns_are_found_or_named(tmp_path, capsys):
    rows = [{"problem": f"q{i}", "answer": i, "solution": "long", "meta": {"gold": f"{i + 1}"}} for i in range(4)]
    path = write_rows(tmp_path / "own set.jsonl", rows)
    train = read_table(prepare(path, "--validation", 0) / "train.parquet").to_pylist()
    assert [(r["prompt"], r["label"], r["datasource"]) for r in train] == [
        (f"q{i}", str(i), "own set") for i in range(4)
    ]
    assert "--template dapo" in capsys.readouterr().out  # nothing tells the model how to answer
    flags = ("--validation", 0, "--answer_column", "meta.gold")
    train = read_table(prepare(path, *flags, output=tmp_path / "other") / "train.parquet").to_pylist()
    assert [(r["label"], r["datasource"]) for r in train] == [(str(i + 1), "own set") for i in range(4)]


def test_a_list_of_texts_is_not_a_prompt(tmp_path):
    rows = [{"prompt": ["q"], "answer": "1"}, {"prompt": [{"role": "user", "content": "q"}], "answer": "1"}]
    output = prepare(write_rows(tmp_path / "set.jsonl", rows), "--validation", 0)
    assert [*report(output)["dropped"].values()] == [1] and report(output)["kept"] == 1


def chat(*turns: str) -> list[dict]:
    """Messages: chat("s: Think.", "u: 1?")."""
    roles = {"s": "system", "u": "user", "a": "assistant"}
    return [{"role": roles[turn[0]], "content": turn[3:]} for turn in turns]


@pytest.mark.parametrize("template", ["own", "chat"])
@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_chats_stay_chats(tmp_path, capsys, template, suffix):
    chats = [
        chat("s: In French.", "u: 1?"),
        chat("s: In German.", "u: 1?"),  # another question, with the same answer
        chat("u: 1?"),
        chat("u: 1?", "a: Which?", "u: 2?"),
        chat("u: 3?", "a: Which?", "u: 2?"),
    ]
    rows = [{"prompt": each, "answer": "1"} for each in [*chats, *chats]]
    output = prepare(write_rows(tmp_path / f"set.{suffix}", rows), "--validation", 0, "--template", template)
    found = read_table(output / "train.parquet").to_pylist()
    assert [each["prompt"] for each in found] == chats and len({each["id"] for each in found}) == len(chats)
    assert [each["question"] for each in found] == ["1?", "1?", "1?", "2?", "2?"]
    assert found[2]["id"] == question_id("1?")
    assert report(output)["dropped"] == {"repeats an earlier question and its answer": len(chats)}
    assert "--data.apply_chat_template" in capsys.readouterr().out


def test_chats_of_one_message_are_texts_and_a_bare_question_has_no_chat(tmp_path, capsys):
    rows = [{"prompt": chat("u: 1?"), "answer": "1"}, {"prompt": chat("s: Think.", "u: 1?"), "answer": "1"}]
    plain = prepare(write_rows(tmp_path / "plain.jsonl", rows[:1]), "--validation", 0, output=tmp_path / "plain")
    assert read_table(plain / "train.parquet")["prompt"].to_pylist() == ["1?"]
    assert "--data.apply_chat_template" not in capsys.readouterr().out
    path = write_rows(tmp_path / "set.jsonl", rows)
    dapo = prepare(path, "--validation", 0, "--template", "dapo", output=tmp_path / "dapo")
    assert read_table(dapo / "train.parquet")["prompt"].to_pylist() == [DAPO_TEMPLATE.replace("{question}", "1?")]
    other = prepare(path, "--validation", 0, "--template", "chat", "--system", "Sum.", output=tmp_path / "other")
    assert read_table(other / "train.parquet")["prompt"].to_pylist() == [chat("s: Sum.", "u: 1?")]


@pytest.mark.parametrize(
    "bad",
    [
        chat("u: 1?", "a: 1."),
        chat("s: Think.", "u: 1?", "u: 2?"),
        chat("s: Think."),
        chat("a: Ask.", "u: 1?"),
        [{"role": "tool", "content": "3"}, *chat("u: 1?")],
        [{"role": "user", "content": "1?", "images": ["a.png"]}, *chat("a: 1", "u: 2?")],
        [{"role": "user", "content": None}],
    ],
)
def test_a_chat_that_is_no_prompt_is_left_out_by_its_row(tmp_path, capsys, bad):
    rows = [{"prompt": chat(f"s: {i}", "u: 1?"), "answer": "1"} for i in range(2)] + [{"prompt": bad, "answer": "1"}]
    output = prepare(write_rows(tmp_path / "set.jsonl", rows), "--validation", 0)
    assert len(read_table(output / "train.parquet")) == 2
    ((reason, count),) = report(output)["dropped"].items()
    assert count == 1 and report(output)["first_rows"] == {reason: 3}
    printed = capsys.readouterr().out
    assert f"dropped: {reason} (the first: row 3)" in printed
    assert ("ends with the assistant's turn" in printed) == (bad[-1]["role"] == "assistant")


def test_a_column_of_worked_solutions_is_warned_about(tmp_path, capsys):
    rows = [{"question": f"q{i}", "answer": f"First\nthen {i}"} for i in range(4)]
    prepare(write_rows(tmp_path / "set.jsonl", rows), "--validation", 0)
    assert "100% of the answers" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags, prompt",
    [
        (["--template", "own"], "What is {1}?"),
        (["--template", "dapo"], DAPO_TEMPLATE.replace("{question}", "What is {1}?")),
        (["--template", "Q: {question}\n{A}:"], "Q: What is {1}?\n{A}:"),
        (["--template", "chat"], [{"role": "user", "content": "What is {1}?"}]),
        (
            ["--template", "chat", "--system", "Think."],
            [{"role": "system", "content": "Think."}, {"role": "user", "content": "What is {1}?"}],
        ),
    ],
)
def test_templates(tmp_path, flags, prompt):
    path = write_rows(tmp_path / "set.jsonl", [{"prompt": "What is {1}?", "answer": "1"}])
    output = prepare(path, "--validation", 0, *flags)
    (only,) = read_table(output / "train.parquet").to_pylist()
    assert only["prompt"] == prompt and only["question"] == "What is {1}?"
    assert not (output / "validation.parquet").exists()


def test_a_folder_with_a_card_is_read_like_a_data_set_of_the_hub(tmp_path):
    folder = tmp_path / "set"
    for name in ("all", "en"):
        (folder / name).mkdir(parents=True)
        write_rows(folder / name / "train-0.parquet", [{"prompt": name, "solution": "1"}])
        write_rows(folder / name / "train-1.parquet", [{"prompt": name + " too", "solution": "1"}])
    configs = "".join(f"- config_name: {n}\n  data_files:\n  - split: train\n    path: {n}/*\n" for n in ("all", "en"))
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    with pytest.raises(SystemExit, match=r"(?s)available configs: \['all', 'en'\].*--subset of .* names one"):
        prepare(folder)
    with pytest.raises(SystemExit, match=r"has train, and no split 'test'"):
        prepare(folder, "--subset", "en", "--split", "test")
    output = prepare(folder, "--subset", "en", "--validation", 0)
    assert [r["prompt"] for r in read_table(output / "train.parquet").to_pylist()] == ["en", "en too"]
    assert len(report(output)["files"]) == 5


def test_text_of_a_data_set_cannot_write_to_the_terminal(tmp_path, capsys):
    hostile = "red \x1b[31m \x1b]0;title\x07 \u202eback\u2028next"
    rows = [{"prompt": hostile, "answer": f"{i} \x1b[2J", "source": hostile, "cluster": hostile} for i in range(2)]
    path = write_rows(tmp_path / "set.jsonl", [*rows, {"prompt": "fine", "answer": hostile}])
    prepare(path, "--validation", 0)
    ordered = write_rows(tmp_path / "ordered.jsonl", [{"id": "a", **rows[0]}])
    main(["order", "--input", str(ordered), "--by", "topic", "--output", str(tmp_path / "o.jsonl")])
    printed = capsys.readouterr().out
    assert "1 clusters: red" in printed
    assert not {sign for sign in printed if not sign.isprintable()} - {"\n"}
    named = write_rows(tmp_path / "named.jsonl", [{hostile: 1}])
    with pytest.raises(SystemExit, match="has none of prompt") as error:
        prepare(named, output=tmp_path / "other")
    assert str(error.value).isprintable()


# The validation split

numbers = st.lists(st.integers(0, 2**64 - 1), unique=True, min_size=2, max_size=80)


@settings(max_examples=50)
@given(numbers, numbers, st.one_of(st.integers(0, 20), st.floats(0, 0.99)), st.integers(0, 3))
def test_a_growing_set_never_moves_a_question_from_training_to_validation(old, new, validation, seed):
    old = np.array(old, dtype=np.uint64)
    both = np.unique(np.concatenate([np.array(new, dtype=np.uint64), old]))
    chosen, later = set(old[held_out(old, validation, seed)]), set(both[held_out(both, validation, seed)])
    assert later & set(old) <= chosen
    if isinstance(validation, float):
        assert later & set(old) == chosen
    else:
        assert len(later) == min(validation, len(both))


def test_the_split_depends_on_ids_and_seed_only(tmp_path):
    rows = [row(f"question {i}", str(i)) for i in range(200)]
    flags = ("--validation", 0.2)
    first = sets(prepare(write_rows(tmp_path / "a.jsonl", rows), *flags, output=tmp_path / "1"))
    second = sets(prepare(write_rows(tmp_path / "b.parquet", rows[::-1]), *flags, output=tmp_path / "2"))
    other = sets(prepare(write_rows(tmp_path / "c.jsonl", rows), *flags, "--seed", 1, output=tmp_path / "3"))
    held = [{r["id"] for r in validation} for _, validation in (first, second, other)]
    assert held[0] == held[1] != held[2]
    assert 20 < len(held[0]) < 60
    assert len(first[0]) + len(first[1]) == 200 and not held[0] & {r["id"] for r in first[0]}


# Repeating, overwriting, crashing


@pytest.fixture
def source(tmp_path):
    return write_rows(tmp_path / "set.jsonl", [{"prompt": f"q{i}", "answer": i} for i in range(20)])


def test_the_same_command_again_is_done(source, capsys):
    output = prepare(source, "--validation", 5)
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in output.iterdir()}
    capsys.readouterr()
    prepare(source, "--validation", 5)
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in output.iterdir()} == before
    printed = capsys.readouterr().out
    assert "is complete" in printed and "kept: 15 to train, 5 for validation" in printed


def test_another_result_is_not_overwritten(source, tmp_path):
    output = prepare(source, "--validation", 5)
    with pytest.raises(SystemExit, match=r"validation: 5 there.*--force"):
        prepare(source, "--validation", 6)
    with source.open("a") as file:
        file.write('{"prompt": "new", "answer": 1}\n')
    with pytest.raises(SystemExit, match="the input has changed since"):
        prepare(source, "--validation", 5)
    assert report(output)["rows"] == 20
    prepare(source, "--validation", 5, "--force")
    assert report(output)["rows"] == 21
    aside = [p for p in tmp_path.iterdir() if p.name.startswith("out.")]
    assert len(aside) == 1 and report(aside[0])["rows"] == 20


def test_a_foreign_folder_is_not_touched_and_an_empty_one_is_used(source, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").touch()
    with pytest.raises(SystemExit, match="the folder holds no result of this command"):
        prepare(source, output=foreign)
    assert [p.name for p in foreign.iterdir()] == ["thesis.tex"]
    (tmp_path / "empty").mkdir()
    assert report(prepare(source, "--validation", 5, output=tmp_path / "empty"))["kept"] == 20


def test_a_failure_keeps_the_old_result_also_with_force(source, tmp_path):
    output = prepare(source, "--validation", 5)
    with pytest.raises(SystemExit, match="20 usable questions, --validation 20 leaves none to train on"):
        prepare(source, "--validation", 20, "--force")
    assert report(output)["validation"] == 5
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "set.jsonl"]


def test_a_killed_run_leaves_nothing_and_its_rest_goes_with_the_next(tmp_path):
    path = write_rows(tmp_path / "set.jsonl", [{"prompt": f"q{i}" * 20, "answer": i} for i in range(30_000)])
    output = tmp_path / "out"
    command = ["prepare", "--input", str(path), "--output", str(output)]
    process = subprocess.Popen(
        [sys.executable, "-m", "openrlhf_ebpo.cli.data", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not list(tmp_path.glob(".out.tmp/questions.parquet")):
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not output.exists() and list(tmp_path.glob(".out.tmp"))
    main(command)
    assert report(output)["kept"] == 30_000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "set.jsonl"]


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--template", "question"], "--template 'question': write own, dapo, chat, or a text with {question}"),
        (["--system", "x"], "--system goes with --template chat"),
        (["--prompt_column", "text"], "--prompt_column text: .* no such column, only prompt, answer: name one"),
        (["--answer_column", "gold"], "--answer_column gold"),
    ],
)
def test_mistakes_are_named(source, flags, message):
    with pytest.raises(SystemExit, match=message):
        prepare(source, *flags)
    assert not source.with_name("out").exists()


@pytest.mark.parametrize("validation", ["-1", "1.5", "many", "nan"])
def test_a_senseless_validation_size_is_a_usage_error(source, validation, capsys):
    with pytest.raises(SystemExit):
        prepare(source, "--validation", validation)
    assert "--validation" in capsys.readouterr().err


def test_inputs_that_are_no_data_set(tmp_path):
    for name, message in (
        (tmp_path / "none.parquet", "none.parquet: no such file"),
        (tmp_path / "set.txt", "set.txt: no such file"),
    ):
        with pytest.raises(SystemExit, match=message):
            prepare(name)
    path = write_rows(tmp_path / "set.jsonl", [{"text": "a", "answer": 1}])
    with pytest.raises(
        SystemExit, match=r"has none of prompt, question, .*only text, answer: name one with --prompt_column"
    ):
        prepare(path)


# From the Hub: the real client against the test server


def prepared_from_the_hub(folder, environment):
    command = [sys.executable, "-m", "openrlhf_ebpo.cli.data", "prepare", "--input", "owner/set", "--subset", "en"]
    command += ["--validation", "0", "--output", str(folder / "out")]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_a_data_set_is_downloaded_and_its_commit_recorded(hub, hub_environment, tmp_path):
    config = "configs:\n- config_name: en\n  data_files:\n  - split: train\n    path: en/train-*\n"
    files = {"README.md": File(f"---\n{config}---\n".encode(), lfs=False)}
    for part in (0, 1):
        pq.write_table(pa.table({"prompt": [f"question {part}"], "solution": ["34"]}), tmp_path / "part")
        files[f"en/train-{part}.parquet"] = File((tmp_path / "part").read_bytes(), lfs=False)
    commit = hub.create("owner/set", "dataset").commit("main", files, "data").id
    done = prepared_from_the_hub(tmp_path, hub_environment)
    assert done.returncode == 0, done.stderr
    train = read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert [(r["question"], r["label"], r["datasource"]) for r in train] == [
        ("question 0", "34", "set"),
        ("question 1", "34", "set"),
    ]
    assert report(tmp_path / "out")["files"] == [{"path": f"owner/set@{commit}"}]
    again = prepared_from_the_hub(tmp_path, {**hub_environment, "HF_HUB_OFFLINE": "1"})
    assert again.returncode == 0 and "is complete" in again.stdout


def test_an_unreachable_hub_says_what_to_do(hub_environment, tmp_path):
    done = prepared_from_the_hub(tmp_path, {**hub_environment, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "--input owner/set: cannot be read (ConnectionError: Couldn't reach" in done.stderr
    assert "name them as FILE or FOLDER" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_set_of_many_batches_is_split_as_one_of_a_single_batch(tmp_path, monkeypatch):
    path = write_rows(tmp_path / "in.jsonl", [row(f"What is {n}?", str(n)) for n in range(20)])
    whole = sets(prepare(path, "--validation", 5))
    monkeypatch.setattr("openrlhf_ebpo.data.clean.ROW_BATCH_SIZE", 3)
    assert sets(prepare(path, "--validation", 5, output=tmp_path / "again")) == whole
    assert [len(each) for each in whole] == [15, 5]
