"""Scoring: labelled pairs through the command and the library, rules, hostile answers, bad input, kill and resume."""

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from commands import write_rows

from openrlhf_ebpo.data.training_tables import read_table
from openrlhf_ebpo.eval import score
from openrlhf_ebpo.eval.answer_match import without_unit
from openrlhf_ebpo.eval.grader import NO_GOLD, Grader, SameAnswer
from openrlhf_ebpo.eval.score import Pair, read_pair
from openrlhf_ebpo.eval.tasks import BENCHMARKS, Question, Rules
from openrlhf_ebpo.rewards.math.grading import GoldError
from openrlhf_ebpo.run.votes import classes

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
MATH_PAIRS, RULE_PAIRS = (
    [json.loads(line) for line in (DATA / name).read_text().splitlines()]
    for name in ("math_pairs.jsonl", "eval_rules.jsonl")
)
ENDLESS = r"\binom{10^{9}}{999999}"  # worked out while parsing: minutes


@pytest.fixture(scope="module")
def grader():
    with Grader(workers=2, seconds=0.5) as grader:
        yield grader


@pytest.fixture
def scored(tmp_path, capsys, monkeypatch, grader):
    """Runs the command on rows; returns the output's rows and what it printed. All share the grading processes."""
    monkeypatch.setattr(score, "Grader", lambda: nullcontext(grader))

    def run(rows: list[dict], *flags: str, output: str = "out.jsonl"):
        source = write_rows(tmp_path / "in.jsonl", rows)
        score.main(["--input", str(source), "--output", str(tmp_path / output), *flags])
        return rows_of(tmp_path / output), capsys.readouterr().out

    return run


def rows_of(path: Path) -> list[dict]:
    if path.suffix == ".parquet":
        return read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_text().splitlines()]


def given(row):
    """The row without what `datasets` adds: every row has the columns, and the fields of objects, of all."""
    return {key: given(value) for key, value in row.items() if value is not None} if isinstance(row, dict) else row


def test_labelled_pairs_through_the_command(scored):
    rows = MATH_PAIRS[::25] + RULE_PAIRS  # without rules it is the grader of test_math_reward.py, which takes all
    assert len(RULE_PAIRS) >= 100
    renamed = [{**row, "label": row["correct"]} for row in rows]
    found, printed = scored(renamed)
    graded = {"correct": None, "extracted": None, "error": None}
    assert [{**row, **graded} for row in renamed] == [{**given(row), **graded} for row in found], "same rows, in order"
    assert not [(row["trap"], row["gold"], row["response"][-80:]) for row in found if row["correct"] != row["label"]]
    assert f"{sum(row['correct'] for row in rows)} of {len(rows)} correct" in printed


def test_a_reward_file_grades_rows_as_in_training_with_golds_and_prompts_as_they_are(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "def reward_func(queries, prompts, labels):\n"
        "    (query,), (prompt,), (label,) = queries, prompts, labels\n"
        "    if query.endswith('broken'): raise KeyError(label)\n"
        "    return {'rewards': float(prompt + query[len(prompt):] == 'Q: ' + label), 'extracted': label}\n"
    )
    rows = [
        {"gold": "$7$", "response": "$7$", "prompt": "Q: "},
        {"gold": {"a": 1}, "response": '{"a": 1}', "prompt": "Q: "},
        {"gold": "7", "response": "8"},
        {"gold": "7", "response": "broken"},
        {"gold": None, "response": "7"},
    ]
    argv = ["--input", str(write_rows(tmp_path / "in.jsonl", rows)), "--output", str(tmp_path / "out.jsonl")]
    score.main([*argv, "--reward", str(tmp_path / "mine.py"), "--reward.workers", "1"])
    found = rows_of(tmp_path / "out.jsonl")
    assert [row["correct"] for row in found] == [True, True, False, False, False]
    assert [row["extracted"] for row in found] == ["$7$", '{"a": 1}', "7", None, None]
    assert found[3]["error"] == "reward: KeyError: '7' (mine.py:3 in reward_func)"
    assert found[4]["error"] == "gold: it has no label"
    printed = capsys.readouterr().out
    assert "2 of 4 correct" in printed and "1 got no reward and count as wrong: reward: KeyError" in printed


def test_an_answer_that_never_ends_is_wrong_and_holds_up_nothing(scored):
    rows = [{"gold": "42", "response": f"\\boxed{{{answer}}}"} for answer in (ENDLESS, "42", ENDLESS, "43")]
    found, printed = scored([*rows, {"gold": ENDLESS, "response": "\\boxed{1}"}])
    assert [row["correct"] for row in found] == [False, True, False, False, False]
    assert [row["error"] for row in found[:4]] == ["timeout", None, "timeout", None]
    assert found[4]["error"].startswith("gold: reading the gold answer")
    assert "1 of 4 correct (25.0%), 0 without an answer, 2 ended in a timeout" in printed


def test_rows_that_cannot_be_scored_are_named_and_the_others_are_scored(scored):
    rows = [
        {"gold": "1", "response": "\\boxed{1}"},
        {"gold": "\\frac{1", "response": "\\boxed{1}"},
        {"gold": None, "response": "\\boxed{1}"},
        {"gold": "1", "response": ["\\boxed{1}"]},
        {"gold": "1", "response": None},
        {"gold": "1", "response": "\\boxed{1}", "rules": {"tolerence": 1}},
        {"gold": "1", "response": "\\boxed{1}", "rules": "[" * 100_000},
        {"gold": "1", "response": "\\boxed{1.2}", "rules": '{"tolerance": 0.5}'},
        {"response": "\\boxed{1}"},
        {"gold": "1" * 5000 + "\\frac{1", "response": "\\boxed{1}"},
        {"gold": "1", "response": "\\boxed{1}", "rules": {"unit": 1}},
        {"gold": "1", "response": "\\boxed{1}", "rules": {"scorer": "trap:TASK"}},
    ]
    found, printed = scored(rows)
    assert [row["correct"] for row in found] == [True] + [False] * 6 + [True] + [False] * 4
    kinds = [row["error"] and row["error"].partition(":")[0] for row in found]
    assert kinds == [None, "gold", "gold", "row", None, "row", "row", None, "gold", "gold", "row", "row"]
    assert "2 of 3 correct (66.7%), 1 without an answer" in printed
    assert "9 rows cannot be scored" in printed and max(map(len, printed.splitlines())) < 300
    assert "row 2: gold: math-verify cannot read the gold answer '\\\\frac{1'" in printed
    assert "row 6: row: its rules have 'tolerence'; there are answer_type" in printed


def test_the_rules_of_olympiadbench_and_its_output_scored_again(scored, tmp_path):
    rows = [
        {"gold": ["2", "$3$"], "response": "\\boxed{3, 2}", "is_multiple_answer": True, "unit": None, "error": None},
        {"gold": ["2", "3"], "response": "\\boxed{2}", "is_multiple_answer": True, "unit": None, "error": None},
        {"gold": ["0.5"], "response": "\\boxed{0.52 m}", "is_multiple_answer": False, "unit": "m", "error": "0.05"},
    ]
    found, _ = scored(rows, "--task", "olympiadbench", output="out.parquet")
    assert [row["correct"] for row in found] == [True, False, True]
    assert [row["error"] for row in found] == [None] * 3
    assert json.loads(found[2]["rules"]) == {"unit": "m", "tolerance": 0.05}
    again = tmp_path / "again.jsonl"
    score.main(["--input", str(tmp_path / "out.parquet"), "--output", str(again)])
    assert [row["correct"] for row in rows_of(again)] == [True, False, True]


def test_golds_of_aime_must_be_integers():
    for gold in ("025", "25.0", "\\boxed{25}", 25):
        assert read_pair({"gold": gold, "response": ""}, BENCHMARKS["aime24"]) == Pair("25", Rules(), "")
    with pytest.raises(GoldError, match="its gold answer 'x' is not an integer"):
        read_pair({"gold": "x", "response": ""}, BENCHMARKS["aime24"])
    assert read_pair({"gold": "025", "response": ""}).gold == "025"


PAIR = {"gold": "1", "response": "\\boxed{1}"}


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        ([{"gold": "1", "answer": "1"}], [], "no column 'response', only gold, answer"),
        ([], [], "the file is empty"),
        (None, [], "no such file"),
        ("{", [], "in.jsonl: cannot be read ("),
        ("[" * 100_000, [], "in.jsonl: cannot be read ("),
        ([PAIR], ["--task", "aime"], "--task aime: no such task"),
        ([PAIR], ["--reward", "https://host/"], "--reward https://host/: give a .py file with reward_func, or math"),
        ([PAIR], ["--reward", "nowhere.py"], "--reward nowhere.py: cannot be read (No such file or directory)"),
        ([PAIR], ["--reward.timeout", "-1"], "--reward.timeout is -1.0; give a number of seconds above 0"),
        ([PAIR], ["--output", "out.csv"], "--output out.csv: the name must end in .parquet or .jsonl"),
    ],
)
def test_mistakes_are_named_before_anything_is_graded(tmp_path, content, flags, message):
    source = tmp_path / "in.jsonl"
    if isinstance(content, str):
        source.write_text(content)
    elif content is not None:
        write_rows(source, content)
    with pytest.raises(SystemExit) as error:
        score.main(["--input", str(source), "--output", str(tmp_path / "out.jsonl"), *flags])
    assert message in str(error.value)
    assert not (tmp_path / "out.jsonl").exists()


def test_a_file_that_is_there_is_not_replaced_unless_asked(scored, tmp_path):
    (tmp_path / "out.jsonl").write_text("precious")
    with pytest.raises(SystemExit, match="exists and is not from this command"):
        scored([PAIR])
    assert (tmp_path / "out.jsonl").read_text() == "precious"
    found, printed = scored([PAIR, PAIR], "--force")
    assert len(found) == 2 and "2 of 2 correct" in printed


FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
from openrlhf_ebpo.eval import score
score.main(sys.argv[1:])
"""


def test_what_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path):
    source, output = write_rows(tmp_path / "in.jsonl", [PAIR | {"text": "." * 4000}]), tmp_path / "out.jsonl"
    flags = ["--input", str(source), "--output", str(output)]
    assert len(read_table(source)) == 1  # is in the cache of `datasets` from here on
    full = subprocess.run([sys.executable, "-c", FULL, *flags], cwd=ROOT, capture_output=True, text=True)
    assert full.returncode == 1
    assert f"error: --output {output}: " in full.stderr and "File too large" in full.stderr
    assert "Traceback" not in full.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_prompt_that_opens_thoughts_leaves_cut_ones_without_an_answer(grader):
    opened, cut = {**PAIR, "prompt": "Q\n<think>\n"}, {"response": "so \\boxed{1}? wait", "gold": "1"}
    rows = [{**opened, **cut}, {**cut, "prompt": "Q"}, {**cut, "prompt": [{"role": "user", "content": "<think>"}]}, cut]
    found = [grader.grade(*score.read_pair(row)) for row in rows]
    assert [each["correct"] for each in found] == [False, True, True, True] and found[0]["extracted"] is None
    graded = grader.grade_samples(Question("q", "?", "1"), [cut["response"], "x</think>\\boxed{1}"], opened["prompt"])
    assert [each["correct"] for each in graded] == [False, True]


def test_a_gold_that_cannot_be_read_is_an_error_whatever_the_answer(grader):
    errors = [grader.gold_error(gold, Rules()) for gold in ("1", "\\frac{1", "}", "2, 3")]
    assert [bool(error) for error in errors] == [False, True, True, False]
    for each in grader.grade_samples(Question("q", "?", "\\frac{1"), ["\\boxed{1}", "\\boxed{\\frac{1}", "hm"]):
        assert each["error"] == errors[1]
        assert not each["correct"]


def test_equal_answers_share_a_class(grader):
    answers = [
        "2/3",
        "0.5",
        "\\frac{4}{6}",
        None,
        "\\frac12",
        "7",
        "$7$",
        "7.0",
        "07",
        "x+1",
        "1+x",
        "dne",
        "DNE",
        "end",
    ]
    responses = ["hm" if answer is None else f"\\boxed{{{answer}}}" for answer in answers]
    graded = grader.grade_samples(Question("q", "?", "\\frac{1}{2}"), responses)
    assert [each["class"] for each in graded] == [0, 1, 0, -1, 1, 2, 2, 2, 2, 3, 3, 4, 4, 5]
    assert [each["correct"] for each in graded].count(True) == 2


def test_classes_of_several_answers_and_of_hostile_ones(grader):
    rules = Rules(is_multiple_answer=True)
    endless = f"{ENDLESS}, 1"
    answers = ["3, 2", "2, 3, 3", "4, 5", "5, 4", endless, endless, "4", "\\sum_{k=1}^{10^{1149}} k^k"]
    graded = grader.grade_samples(Question("q", "?", "2, 3", rules), [f"\\boxed{{{answer}}}" for answer in answers])
    assert [each["class"] for each in graded] == [0, 1, 2, 2, 3, 3, 4, 5]
    assert [each["error"] for each in graded].count("timeout") == 2


def test_classes_never_overlap_even_where_equality_is_not_transitive():
    def near(first: str, answer: str) -> bool:
        return abs(float(first) - float(answer)) <= 1

    def found(answers, correct=None):
        return classes(answers, correct or [False] * len(answers), str.strip, near)

    assert found(["1", "2", "3", "2 "]) == [0, 0, 1, 0]
    assert found(["2", "1", "3"]) == [0, 0, 0]
    assert found(["1", "3", "2", None]) == [0, 1, 0, -1], "2 is near both: the first of them takes it"
    assert found(["1", "9", "0"], [True, True, False]) == [0, 0, 1], "right ones equal the gold, wrong ones do not"
    assert found([None, None]) == [-1, -1]
    assert found([]) == []


@pytest.mark.parametrize(
    ("answer", "unit", "left"),
    [
        ("5 km", "km", "5"),
        ("5\\text{ km}", "\\mathrm{~km}", "5"),
        ("5\\text{ meters}", "km", None),
        ("5\\text{ apples}", "km", "5\\text{ apples}"),
        ("12\\text{ square centimeters}", "cm^2", "12"),
        ("12\\text{ cm}^3", "cm^{2}", None),
        ("60^\\circ", "degrees", "60"),
        ("7", "km", "7"),
        ("m", "m", "m"),
        ("50\\text{ kilometers per hour}", "km/h", "50"),
    ],
)
def test_units(answer, unit, left):
    found = without_unit(answer, unit)
    assert (found and found.strip()) == left


def test_a_pair_without_rules_has_the_rules_of_its_gold():
    assert read_pair({"gold": ["1", "2"], "response": "x"}).rules.is_multiple_answer
    assert read_pair({"gold": 27.0, "response": None}).gold == "27"
    assert read_pair({"gold": 27.0, "response": None}).response == ""


def test_only_so_many_wrong_answers_to_a_question_are_compared():
    asked = []
    same = SameAnswer(lambda gold, answer: (asked.append((gold, answer)) or True, None))
    found = [same("x", f"y_{i}") for i in range(67)]
    assert found == [True] * 64 + [False] * 3 and len(asked) == 64
    assert same("7", "07"), "integers are compared without a grader"


@pytest.mark.parametrize(("error", "ended", "other"), [("crash", "b", "a"), (NO_GOLD + "crash", "a", "b")])
def test_the_answer_that_ended_its_grader_is_compared_no_more_and_the_other_one_is(error, ended, other):
    asked = []

    def compare(gold, answer):
        asked.append((gold, answer))
        return False, error if (gold, answer) == ("a", "b") else None

    same = SameAnswer(compare)
    same("a", "b")
    for pair in (("c", ended), (ended, "c"), ("c", other), (other, "c")):
        same(*pair)
    assert asked == [("a", "b"), ("c", other), (other, "c")]
