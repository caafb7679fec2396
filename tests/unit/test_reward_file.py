"""Evaluation by a reward file: what it may do to its process, what is right, what votes, and which results a changed
file grades again."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from evaluated import record, write_model

from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.eval import jobs, protocols, reward_file, run, tasks
from openrlhf_ebpo.eval.models import Model
from openrlhf_ebpo.eval.prompts import PromptForm
from openrlhf_ebpo.eval.reward_file import Asked, grade_all, publishable, reward_identity
from openrlhf_ebpo.eval.tasks import Benchmark, Question, Task
from openrlhf_ebpo.rewards.reward_settings import RewardSettings
from openrlhf_ebpo.run.votes import majority_at_k

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "benchmark" / "sentences.py"
REWARD = """
import os

ANSWERS = {
    "exit": lambda: os._exit(0), "sys.exit": lambda: exit(3), "raise": lambda: 1 / 0, "nan": lambda: float("nan"),
    "number": lambda: {"rewards": 1.0, "extracted": 5}, "long": lambda: {"rewards": 1.0, "extracted": "a" * 10_001},
    "secret": lambda: int("hf_" + "a" * 34), "half": lambda: 0.5, "full": lambda: [1.0], "more": lambda: 3,
    "said": lambda: {"rewards": 1.0, "extracted": " x\\ud800 "}, "none": lambda: {"rewards": 1.0, "extracted": None},
    "list": lambda: {"rewards": [0.0], "extracted": ["7"]},
}

def reward_func(queries, prompts, labels):
    (query,), (prompt,), (label,) = queries, prompts, labels
    assert query.startswith(prompt)
    word = query[len(prompt):]
    return ANSWERS[word]() if word in ANSWERS else {"rewards": float(label in word), "extracted": word or None}
"""
GRADED = {  # response -> correct, extracted
    "half": (False, None),
    "full": (True, None),
    "more": (True, None),
    "said": (True, "x?"),
    "none": (True, None),
    "list": (False, "7"),
    "the gold": (True, "the gold"),
    "other": (False, "other"),
}
FAILED = {  # response -> beginning of its error
    "exit": "reward: reward_func ended its process (exit code 0)",
    "sys.exit": "reward: SystemExit: 3 (",
    "raise": "reward: ZeroDivisionError: division by zero (mine.py:",
    "nan": "reward: reward_func gave float nan",
    "number": "reward: reward_func gave 'extracted' as int 5; a text, or None for no answer, is needed",
    "long": "reward: 'extracted' has 10,001 characters; an answer has up to 10,000",
    "secret": "reward: ValueError: invalid literal",
}


def write(folder: Path, code: str = REWARD) -> RewardSettings:
    (folder / "mine.py").write_text(code)
    return RewardSettings((str(folder / "mine.py"),), workers=1)


def test_a_response_is_right_from_a_reward_of_1_and_a_reward_that_fails_is_a_wrong_response_with_its_cause(tmp_path):
    settings = write(tmp_path)
    asked = [Asked("Q: ", "gold", response) for response in (*GRADED, *FAILED)]
    found = grade_all(settings, reward_identity(settings.sources[0], "--reward"), asked)
    graded = {each.response: (row["correct"], row["extracted"]) for each, row in zip(asked, found, strict=True)}
    errors = {each.response: row["error"] for each, row in zip(asked, found, strict=True)}
    assert {name: graded[name] for name in GRADED} == GRADED
    assert not any(errors[name] for name in GRADED)
    for name, beginning in FAILED.items():
        assert graded[name] == (False, None) and errors[name].startswith(beginning), errors[name]
        assert errors[name].isprintable() and "hf_aaaa" not in errors[name] and str(tmp_path) not in errors[name]


def test_without_extracted_votes_are_by_what_math_reads_and_cut_off_thoughts_hold_no_answer(tmp_path):
    settings = write(tmp_path, "def reward_func(queries, prompts, labels): return 1.0")
    answers = [Asked("Q", "", "so \\boxed{7}"), Asked("Q<think>\n", "", "so \\boxed{7}"), Asked("Q", "", "seven")]
    found = grade_all(settings, reward_identity(settings.sources[0], "--reward"), answers)
    assert [row["extracted"] for row in found] == ["7", None, None] and all(row["correct"] for row in found)


def test_errors_lose_folders_and_line_breaks():
    assert publishable("X: no\n\x1b (/a/b c/d.py:3 in f)") == "X: no (d.py:3 in f)"
    assert len(publishable("x" * 1000)) == reward_file.MAX_ERROR


@pytest.mark.parametrize(
    ("code", "message"),
    [("1 / 0", "mine.py fails when imported: ZeroDivisionError"), ("x = 1", "reward_func is not callable, or not")],
)
def test_a_file_that_cannot_be_imported_ends_the_command(tmp_path, code, message):
    settings = write(tmp_path, code)
    with pytest.raises(ReportedError, match=message):
        grade_all(settings, reward_identity(settings.sources[0], "--reward"), [])


def test_a_file_that_is_not_there_or_was_edited_meanwhile_grades_nothing(tmp_path):
    settings = write(tmp_path)
    identity = reward_identity(settings.sources[0], "--reward")
    (tmp_path / "mine.py").write_text(REWARD + "# edited\n")
    with pytest.raises(ReportedError, match=r"mine.py has changed since the command began: repeat the command"):
        grade_all(settings, identity, [])
    with pytest.raises(UsageError, match=r"--reward nowhere.py: cannot be read \(No such file"):
        reward_identity("nowhere.py", "--reward")


# Jobs: the protocol, the vote


def job(folder: Path, responses: list[str], gold: str = "even") -> jobs.Job:
    task = Task("numbers", (Question("q", "Say a number", gold),), "made", reward=str(folder / "mine.py"))
    protocol = protocols.override(protocols.PROTOCOLS["default"], n=len(responses))
    (found,) = jobs.plan(Model("owner/name"), [task], protocol, PromptForm("{question}"), folder / "out")
    found.records["q"] = record(responses)
    return found


EVEN = """
def reward_func(queries, prompts, labels):
    number = queries[0][len(prompts[0]):]
    return {"rewards": float(int(number) % 2 == 0), "extracted": number}
"""


def test_different_right_answers_are_not_one_vote(tmp_path):
    settings = write(tmp_path, EVEN)
    found = job(tmp_path, ["2", "4", "7", "9", "11", "13"])
    (grades,) = jobs.graded_by_file(found, settings)
    correct, classes = ([[each[name] for each in grades]] for name in ("correct", "class"))
    assert classes == [[0, 1, 2, 3, 4, 5]]
    import numpy as np

    assert majority_at_k(np.array(correct), np.array(classes), 6)[0] == pytest.approx(1 / 3)


def test_the_protocol_names_the_reward_and_its_hash_and_a_changed_file_is_another_protocol(tmp_path):
    write(tmp_path)
    first = job(tmp_path, ["1"]).protocol
    assert (first.name, first.scorer, first.reward) == (
        "default+n=1,reward=mine.py",
        "mine.py",
        reward_identity(str(tmp_path / "mine.py"), "--reward"),
    )
    assert "math-verify" not in json.dumps(first.record())
    write(tmp_path, REWARD + "# other\n")
    second = job(tmp_path, ["1"])
    assert second.protocol.name == first.name and second.protocol.fingerprint() != first.fingerprint()
    asked = second.response_settings["protocol"]
    default = protocols.override(protocols.PROTOCOLS["default"], n=1)
    assert asked == jobs.name_and_version(default), "responses do not depend on it"


def test_the_fingerprints_of_protocols_and_tasks_are_pinned():
    assert [protocols.PROTOCOLS[name].fingerprint() for name in ("default", "greedy")] == [
        "8192b69284f6",
        "51907294af9e",
    ]
    rules = tasks.Rules(unit="km", tolerance=0.5, source_gold="x")
    task = Task("x", (Question("a", "q", "1"), Question("b", "q2", "2", rules)), "s")
    assert task.fingerprint() == "df5a11c58847" and rules.text().startswith('{"unit": "km", "tolerance": 0.5')


def test_the_report_is_told_why_responses_got_no_reward(tmp_path):
    write(tmp_path)
    graded = {"correct": False, "class": -1, "length": 1, "finish_reason": "stop", "seed": 1}
    rows = [{"error": each, **graded} for each in ("reward: a", "reward: b", "reward: b", None)]
    found, form = job(tmp_path, ["1"] * 4), PromptForm("{question}")
    assert jobs.summary(found, form, rows)["task"]["notes"] == [
        "2 of 4 responses got no reward and count as wrong: reward: b",
        "1 of 4 responses got no reward and count as wrong: reward: a",
    ]
    found.protocol = protocols.override(protocols.PROTOCOLS["default"], n=4)
    assert jobs.summary(found, form, rows)["task"]["notes"] == []


# The example


@pytest.fixture
def example(tmp_path, monkeypatch):
    shutil.copy(EXAMPLE, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("sentences", None)


def test_the_example_is_questions_prompt_and_reward_in_one_file(example):
    task = tasks.load_task("sentences:TASK")
    assert (task.name, len(task.questions), task.skipped, task.notes) == ("sentences", 4, (), ())
    sea = task.questions[0]
    assert sea.question.startswith("Say something about the sea. Write one sentence of exactly 5 words, one of them")
    assert json.loads(sea.gold) == {"words": 5, "with": "blue"} and task.reward == str(example / "sentences.py")
    answers = ["Well.\nThe deep sea is blue.", "the deep sea is blue.", "Blue.", ""]
    settings = RewardSettings((task.reward,), workers=1)
    found = grade_all(settings, reward_identity(task.reward, ""), [Asked("Q", sea.gold, each) for each in answers])
    assert [row["correct"] for row in found] == [True, True, False, False]
    assert [row["extracted"] for row in found] == ["the deep sea is blue.", "the deep sea is blue.", "blue.", None]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data": ({},), "copies": (Path("x"),)}, "data takes the place of copies"),
        ({"data": [{}]}, "data must be a tuple of dict"),
        ({"prompt": "abc"}, "prompt must be a function, not 'abc'"),
        ({"reward": "mine.py"}, "reward must be the Path of a .py file, not 'mine.py'"),
    ],
)
def test_what_does_not_go_together(fields, message):
    with pytest.raises(ValueError, match=f"x: {message}"):
        Benchmark("x", **fields)


# A reward with a mistake: said before anything is generated, corrected without generating again.


def count_words(wrong: str = "") -> str:
    return f"""
import json
from pathlib import Path
from openrlhf_ebpo.eval.tasks import Benchmark
rows = tuple({{"question": f"Say {{n}} words.", "answer": {{"words": n}}}} for n in (1, 2, 3))
TASK = Benchmark("count", data=rows, reward=Path(__file__))
def reward_func(queries, prompts, labels):
    answer = queries[0][len(prompts[0]):]
    return {{"rewards": len(answer.split()) == json.loads(labels[0])["words{wrong}"], "extracted": answer}}
"""


def test_a_corrected_reward_grades_the_responses_that_are_there(tmp_path, monkeypatch, caplog, capsys):
    write_model(tmp_path / "model")
    asked = []

    def respond(todo, *_):
        for job in todo:
            for question in job.missing:
                asked.append(question.question)
                job.add(question.id, record(["two words"] * 2))

    monkeypatch.setattr(run.generate, "respond", respond)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def evaluated(wrong: str) -> dict:
        (tmp_path / "counting.py").write_text(count_words(wrong))
        sys.modules.pop("counting", None)
        argv = ["--model", str(tmp_path / "model"), "--tasks", "counting:TASK", "--output_dir", str(tmp_path / "out")]
        argv += ["--n", "2", "--template", "raw", "--no-chat_template", "--max_new_tokens", "8"]
        run.main([*argv, "--reward.workers", "1"])
        (path,) = tmp_path.glob("out/default*/count/step-000000/summary.json")
        return json.loads(path.read_text())

    before = evaluated("_")
    assert "count: its reward fails" in caplog.text and "KeyError: 'words_' (counting.py:" in caplog.text
    output = capsys.readouterr().out
    assert "warning: count, step 0: 6 of 6 responses got no reward and count as wrong: reward: KeyError" in output
    assert "correct it and repeat the command" in output and "hardly a response" not in output

    caplog.clear()
    after = evaluated("")
    assert after["metrics"]["pass@1"]["value"] == pytest.approx(1 / 3) and after["counts"]["errors"] == 0
    assert after["protocol"]["fingerprint"] != before["protocol"]["fingerprint"]
    assert after["protocol"]["scorer"] == "counting.py"
    assert len(asked) == 3 and "its reward fails" not in caplog.text
    assert "count, step 0: its reward has changed, responses are graded again" in capsys.readouterr().out
    (kept,) = tmp_path.glob("out/superseded/*/default*/count/step-000000/summary.json")
    assert json.loads(kept.read_text())["metrics"]["pass@1"]["value"] == 0
    assert not list(tmp_path.glob("out/default*/count/*/progress.jsonl"))
    report = next(tmp_path.glob("out/default*/report.md")).read_text()
    assert "counting.py" in report and after["protocol"]["scorer_version"] in report and "`'math-verify'`" not in report

    capsys.readouterr()
    evaluated("")
    assert "finished already" in capsys.readouterr().out
    sys.modules.pop("counting", None)
