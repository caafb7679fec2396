"""A benchmark's own scorer: what it may do to its process, what counts as a score, and which results it may
continue."""

import contextlib
import json
import shutil
import sys
import time
from pathlib import Path

import psutil
import pytest
from evaluated import record, write_model
from patience import seconds, wait_until

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.eval import custom_scorer, jobs, run, tasks
from openrlhf_ebpo.eval.grader import MAX_TIMEOUTS, Grader
from openrlhf_ebpo.eval.score import read_pair
from openrlhf_ebpo.eval.tasks import OWN, Benchmark, Question, Rules, Task

EXAMPLE = Path(__file__).parents[2] / "examples" / "benchmark" / "sentences.py"
MODULE = """
import os, signal, subprocess, sys, time
from openrlhf_ebpo.eval.tasks import Benchmark

def sleep():
    time.sleep(3600)

def sleep_without_alarm():
    for name in ("SIGALRM", "SIGPROF"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    subprocess.Popen(["sleep", "3600"])
    sleep()

def fork():
    return bool(os.fork()) or True

def extract(response):
    if response == "no answer":
        return None
    return {"extract 5": 5, "half a sign": "x\\ud800", "long": "a" * 10_001}.get(response, response)

def score(response, gold, row):
    print("printed", flush=True)
    os.write(1, b"written\\n")
    sys.stdin.read()
    return eval(row["code"].get(response, "True"), globals(), {"row": row, "gold": gold})

CODE = {
    "exit": "os._exit(0)", "sys.exit": "sys.exit(3)", "raise": "1 / 0", "memory": "bytearray(1 << 40)",
    "fork": "fork()",
    "crash": "os.abort()", "loop": "[i for i in iter(int, 1)]", "sleep": "sleep()", "no alarm": "sleep_without_alarm()",
    "nothing": "None", "text": "'1'", "nan": "float('nan')", "list": "[1, 2]", "half": "0.5", "full": "1.0",
    "more": "3",
    "numpy": "__import__('numpy').float64(1)", "gold": "gold == ''", "secret": "int('hf_" + "a" * 34 + "')",
    "screen": "exec('raise ValueError(chr(27) + chr(0xd800) + chr(10) + gold)')",
}
TASK = Benchmark("hostile", data=({"question": "Q?", "code": CODE},), answer=(), score=score, extract=extract,
seconds=LIMIT)
""".replace("LIMIT", str(seconds(0.1)))
WELL = {"half": False, "full": True, "more": True, "numpy": True, "gold": True, "other": True, "fork": True}
FAILED = {
    "exit": "crash",
    "crash": "crash",
    "loop": "timeout",
    "sys.exit": "score: SystemExit: 3 (",
    "raise": "score: ZeroDivisionError: division by zero (",
    "memory": "score: MemoryError",
    "nothing": "score: score gave NoneType None; True, False or a number is needed",
    "text": "score: score gave str '1'; True, False or a number",
    "nan": "score: score gave float nan",
    "list": "score: score gave list [1, 2]",
    "extract 5": "score: extract gave int 5; a text, or None for no answer",
    "long": "score: extract gave 10,001 characters; an answer has up to 10,000",
    "secret": "score: ValueError: invalid literal",
    "screen": "score: ValueError: (",
}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """The task of MODULE, and a grader of one process."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "hostile_scorer.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])
        task = tasks.load("hostile_scorer:TASK")
        with Grader(workers=1) as grader:
            yield task, grader
        del sys.modules["hostile_scorer"]


def grade(hostile, response: str) -> dict:
    task, grader = hostile
    (question,) = task.questions
    return grader.grade(question.gold, question.rules, response)


@pytest.mark.parametrize("response", WELL)
def test_a_score_is_true_or_full_marks(hostile, response):
    assert grade(hostile, response) == {"correct": WELL[response], "extracted": response, "error": None}


@pytest.mark.parametrize("response", FAILED)
def test_a_scorer_that_fails_is_a_failed_response_with_its_cause(hostile, response):
    found = grade(hostile, response)
    assert (found["correct"], found["extracted"]) == (False, None)
    assert found["error"].startswith(FAILED[response]) and "hf_aaaa" not in found["error"] and "/" not in found["error"]
    assert found["error"].isprintable()
    assert grade(hostile, "other")["correct"]


def test_a_scorer_cannot_take_its_limits_off(hostile):
    """Processes that it has started end with it."""
    assert grade(hostile, "no alarm")["error"] == "timeout"
    wait_until(lambda: not any(command[:1] == ["sleep"] for command in commands()))


def commands() -> list[list[str]]:
    """Of the processes below this one."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(process.cmdline())
    return found


def test_an_answer_can_be_written_to_a_file(hostile):
    assert grade(hostile, "half a sign") == {"correct": True, "extracted": "x?", "error": None}


def test_no_answer_is_not_scored(hostile):
    assert grade(hostile, "no answer") == {"correct": False, "extracted": None, "error": None}


def test_a_scorer_that_hangs_every_time_is_not_asked_for_ever(hostile):
    task, grader = hostile
    scorer = task.questions[0].rules.scorer
    grader._hung[scorer] = MAX_TIMEOUTS - 1
    started = time.monotonic()
    assert [grade(hostile, "loop")["error"] for _ in range(2)][1].startswith(
        "score: not called any more, since it took all"
    )
    grader._hung[scorer] = 0
    assert grade(hostile, "other")["correct"] and time.monotonic() - started < 600


def test_responses_vote_by_what_extract_gives(hostile):
    grades = hostile[1].grade_samples(hostile[0].questions[0], ["half", "half", "a", "b", "no answer", "raise"])
    assert [each["class"] for each in grades] == [0, 0, 1, 1, -1, -1]


def test_the_report_is_told_why_responses_have_no_score():
    rules = Rules(OWN, scorer="x:TASK@1")
    task = Task("x", (Question("a", "a", "", rules),), "x")
    rows = [{"error": each} for each in ("timeout", "score: b", "score: b", None)]
    assert jobs.failed_scores(task, rows) == [
        "2 of 4 responses could not be scored and count as wrong: score: b",
        "1 of 4 responses could not be scored and count as wrong: timeout",
    ]
    assert jobs.failed_scores(Task("x", (Question("a", "a", "1"),), "x"), rows) == []


# The example, and what continues its results.


@pytest.fixture
def example(tmp_path, monkeypatch):
    shutil.copy(EXAMPLE, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("sentences", None)


def test_the_example_is_questions_prompt_and_score_in_one_file(example):
    task = tasks.load("sentences:TASK")
    assert (task.name, len(task.questions), task.skipped, task.notes) == ("sentences", 4, (), ())
    sea = task.questions[0]
    assert sea.question.startswith("Say something about the sea. Write one sentence of exactly 5 words, one of them")
    assert (sea.gold, sea.rules.kind, json.loads(sea.rules.entry)["with"]) == ("", OWN, "blue")
    with Grader(workers=1) as grader:
        assert grader.gold_error(sea.gold, sea.rules) is None
        answers = ["Well.\nThe deep sea is blue.", "the deep sea is blue.", "Blue.", ""]
        found = grader.grade_samples(sea, answers)
    assert [row["correct"] for row in found] == [True, True, False, False]
    assert [row["class"] for row in found] == [0, 0, 1, -1]


def test_a_changed_scorer_is_another_task(example):
    before = tasks.load("sentences:TASK").fingerprint()
    (example / "sentences.py").write_text(EXAMPLE.read_text().replace("== row", ">= row"))
    assert tasks.load("sentences:TASK").fingerprint() != before


def test_a_scorer_that_a_file_names_is_not_imported(example):
    (example / "trap.py").write_text("raise SystemExit('imported')")
    rules = {"kind": "own", "entry": "{}", "scorer": "trap:TASK@1"}
    row = {"gold": "", "response": "The deep sea is blue.", "rules": rules}
    with pytest.raises(ValueError, match="it is scored by 'trap:TASK': name that with --task"):
        read_pair({**row, "gold": "1"})
    benchmark = tasks.find("sentences:TASK", "--task")
    pair = read_pair(row, benchmark, "sentences:TASK")
    assert (pair.gold, pair.rules.kind, pair.rules.entry) == ("", OWN, "{}")
    assert pair.rules.scorer.startswith("sentences:TASK@")


def test_the_text_of_rules_without_a_scorer_is_pinned():
    assert Rules(unit="km", tolerance=0.5).text() == '{"unit": "km", "tolerance": 0.5}'


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"extract": str}, "extract, seconds and answer=.. go with score"),
        ({"answer": ()}, "extract, seconds and answer=.. go with score"),
        ({"score": max, "rules": lambda row, answer: Rules()}, "score takes the place of rules"),
        ({"score": max, "seconds": 0}, "seconds must be above 0, not 0"),
        ({"score": max, "seconds": float("inf")}, "seconds must be above 0, not inf"),
        ({"data": ({},), "copies": (Path("x"),)}, "data takes the place of copies"),
        ({"data": [{}]}, "data must be a tuple of dict"),
        ({"score": "abc"}, "score must be a function, not 'abc'"),
        ({"score": max, "extract": 5}, "extract must be a function, not 5"),
    ],
)
def test_what_does_not_go_together(fields, message):
    with pytest.raises(ValueError, match=f"x: {message}"):
        Benchmark("x", **fields)


def test_a_column_that_a_scorer_cannot_be_given_leaves_the_row_out(example):
    code = (
        "from openrlhf_ebpo.eval.tasks import Benchmark\nTASK = Benchmark('x', data=({'question': 'Q', 'b': b''}, "
        "{'question': 'R', 'b': 1}), answer=(), score=max)"
    )
    (example / "mine_of_bytes.py").write_text(code)
    task = tasks.load("mine_of_bytes:TASK")
    assert len(task.questions) == 1 and "its column 'b' is bytes, which its scorer cannot be given" in task.skipped[0]
    with pytest.raises(UsageError, match="gold answer"):
        (example / "no_gold.py").write_text(code.replace("answer=(), ", ""))
        tasks.load("no_gold:TASK")


# A scorer with a mistake: said before anything is generated, fixed without generating again.


def count_words(wrong: str = "") -> str:
    return f"""
from openrlhf_ebpo.eval.tasks import Benchmark
rows = tuple({{"question": f"Say {{n}} words.", "words": n}} for n in (1, 2, 3))
TASK = Benchmark("count", data=rows, answer=(), score=lambda response, gold,
row: len(response.split()) == row["words{wrong}"])
"""


def counted(folder: Path) -> None:
    argv = ["--model", str(folder / "model"), "--tasks", "counting:TASK", "--output_dir", str(folder / "out")]
    run.main([*argv, "--n", "2", "--template", "raw", "--no-chat_template", "--max_new_tokens", "8"])


def test_a_corrected_scorer_scores_the_responses_that_are_there(tmp_path, monkeypatch, caplog, capsys):
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
        counted(tmp_path)
        (path,) = tmp_path.glob("out/default*/count/step-000000/summary.json")
        return json.loads(path.read_text())

    evaluated("_")
    assert "tried with the response '42', its scorer fails: score: KeyError: 'words_' (counting.py" in caplog.text
    output = capsys.readouterr().out
    assert "warning: count, step 0: 6 of 6 responses could not be scored and count as wrong: score: KeyError" in output
    assert "correct it and repeat the command" in output and "hardly a response" not in output

    caplog.clear()
    after = evaluated("")
    assert after["metrics"]["pass@1"]["value"] == pytest.approx(1 / 3) and after["counts"]["errors"] == 0
    assert len(asked) == 3 and "its scorer fails" not in caplog.text
    assert "count, step 0: its scorer has changed, the responses are re-scored" in capsys.readouterr().out
    (kept,) = tmp_path.glob("out/superseded/*/default*/count/step-000000/summary.json")
    assert json.loads(kept.read_text())["metrics"]["pass@1"]["value"] == 0
    assert not list(tmp_path.glob("out/default*/count/*/progress.jsonl"))

    capsys.readouterr()
    evaluated("")
    assert "finished already" in capsys.readouterr().out
    sys.modules.pop("counting", None)


def test_a_scorer_that_was_edited_meanwhile_scores_nothing(example):
    task = tasks.load("sentences:TASK")
    rules = task.questions[0].rules
    custom_scorer.warm_up(rules.scorer)
    with (example / "sentences.py").open("a") as file:
        file.write("# edited\n")
    with pytest.raises(UsageError, match=r"sentences:TASK@\w+ has changed"):
        custom_scorer.warm_up(rules.scorer)


def test_a_file_of_the_working_directory_does_not_stand_for_pythons_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "random.py").write_text("raise SystemExit('not this one')")
    with Grader(workers=1) as grader:
        assert grader.grade("2", Rules(), r"\boxed{2}")["correct"]
