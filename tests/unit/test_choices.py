"""Multiple choice: rows with choices become lettered questions, and a response's letter is read."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.eval import pairs, tasks
from openrlhf_ebpo.eval.grader import NO_GOLD, Grader
from openrlhf_ebpo.eval.protocols import PROTOCOLS
from openrlhf_ebpo.eval.tasks import BENCHMARKS, CHOICE, Benchmark, Rules, choices, rows

LISTED = "A) 1\nB) 2\nC) 3\nD) 4"
PROBES = [
    # boxes
    (r"So \boxed{C}.", "C"),
    (r"\boxed{\text{C}}", "C"),
    (r"\boxed{\textbf{(C)}}", "C"),
    (r"\boxed{(C)}", "C"),
    (r"\boxed{c}", "C"),
    (r"\boxed{C) 42 \text{ km}}", "C"),
    (r"\boxed{\text{C. } 42}", "C"),
    (r"\boxed{\text{Option C}}", "C"),
    (r"\boxed{A}, no: \boxed{B}", "B"),
    (r"\boxed{42} is what I get. Answer: C", "C"),
    (r"\boxed{E}", None),
    (r"\boxed{A, C}", None),
    (r"\boxed{A \text{ and } C}", None),
    (r"\boxed{AC}", None),
    (r"\boxed{42}", None),
    (r"\boxed{}", None),
    # lines
    ("Long.\nAnswer: C", "C"),
    ("Long.\n**Answer:** (C)", "C"),
    ("Long.\n**Answer: C**", "C"),
    ("Long.\nANSWER: c", "C"),
    ("Long.\nFinal answer: C) 42 km", "C"),
    ("Long.\nThe final answer:\n\nC", "C"),
    ("Answer: $C$", "C"),
    ("Answer: C.", "C"),
    ("Answer: B because 2 < 3", "B"),
    ("Answer: A\nLater.\nAnswer: D", "D"),
    ("Answer: C<|im_end|>", "C"),
    ("Answer: A or B", None),
    ("Answer: A triangle", None),
    ("Answer: none of them", None),
    ("Answer:", None),
    # sentences
    ("The answer is C.", "C"),
    ("The correct answer is (C), since 2 < 3.", "C"),
    ("Therefore, the answer to this question is: **C**", "C"),
    ("the answer is option C", "C"),
    ("The answer is $\\mathbf{C}$", "C"),
    ("The answer is B. Option A is wrong, as 1 < 2.", "B"),
    ("Option A is wrong, so the answer must be B", "B"),
    ("I thought the answer is A, but the answer is D", "D"),
    ("The correct option is C because it is larger", "C"),
    ("I choose C.", "C"),
    ("Hence (C) is correct.", "C"),
    ("B is the right one and nothing else", "B"),
    ("the answer is a triangle", None),
    ("The answer is not A", None),
    ("A is not correct", None),
    # last lines
    ("C", "C"),
    ("(C)", "C"),
    ("C.", "C"),
    ("C) 42 km", "C"),
    ("**C**", "C"),
    ("Long.\n\n**C) 42 km**", "C"),
    ("Long.\nSo it has to be (C).", "C"),
    ("Long.\nTherefore **C**", "C"),
    (f"The choices are\n{LISTED}", None),
    ("A cat sat on the mat", None),
    ("I do not know", None),
    ("", None),
    ("Ich nehme Ä", None),
]


def test_there_are_probes_enough():
    assert len(PROBES) >= 40 and len({text for text, _ in PROBES}) == len(PROBES)


@pytest.mark.parametrize(("response", "found"), PROBES, ids=[f"{text[-30:]!r}" for text, _ in PROBES])
def test_the_letter_of_a_response(response, found):
    assert choices.letter(response, "ABCD") == found


@pytest.mark.parametrize(
    "text",
    [
        "answer " * 200_000,
        "answer" + " " * 10**6,
        "(A" * 500_000,
        "**A" * 300_000,
        "answer is A or " * 60_000,
        "\\text{" * 200_000,
    ],
    ids=["words", "spaces", "brackets", "stars", "several", "commands"],
)
def test_reading_takes_time_linear_in_the_response(text):
    """A thousand times the length, not a million times the time; no clock, but a limit that only a square would meet."""
    started = time.process_time()
    choices.letter(text, "ABCD")
    assert time.process_time() - started < 60


def gpqa(number: int, **changes) -> dict:
    wrong = {f"Incorrect Answer {i}": f"wrong {number}.{i}" for i in (1, 2, 3)}
    return {
        "Question": f"Which of {number}?",
        "Correct Answer": f"right {number}",
        **wrong,
        "Record ID": "r",
        **changes,
    }


def write(path: Path, written: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in written))
    return path


def test_choices_of_gpqa_are_shuffled_alike_wherever_a_row_stands(tmp_path):
    written = [gpqa(i) for i in range(198)]
    task = tasks.load(f"gpqa_diamond={write(tmp_path / 'a.jsonl', written)}")
    assert (len(task.questions), task.skipped, task.notes) == (198, (), ())
    first = task.questions[0]
    head, blank, *lines, gap, asked = first.question.split("\n")
    assert (head, blank, gap, asked) == ("Which of 0?", "", "", "Answer with the letter of the right choice.")
    assert lines["ABCD".index(first.gold)] == f"{first.gold}) right 0"
    assert sorted(line[3:] for line in lines) == ["right 0", "wrong 0.1", "wrong 0.2", "wrong 0.3"]
    assert first.rules == Rules(CHOICE, entry="ABCD")
    assert all(20 < sum(each.gold == letter for each in task.questions) < 80 for letter in "ABCD")
    random.Random(1).shuffle(written)
    other = tasks.load(f"gpqa_diamond={write(tmp_path / 'b.jsonl', written)}")
    assert {each.question: each.gold for each in other.questions} == {
        each.question: each.gold for each in task.questions
    }
    named = tasks.load(f"file:{tmp_path / 'a.jsonl'}")
    assert named.fingerprint() == task.fingerprint()


def test_the_order_of_the_choices_is_in_the_fingerprint(tmp_path):
    file = write(tmp_path / "q.jsonl", [gpqa(i) for i in range(9)])
    found = []
    for seed in (0, 1, None):
        benchmark = Benchmark(
            "x",
            (file,),
            question=("Question",),
            answer=("Correct Answer",),
            choices=choices.named_choices,
            shuffle=seed,
        )
        found.append(tasks.loading.load_benchmark(benchmark, "x"))
    assert len({task.fingerprint() for task in found}) == 3
    assert {each.gold for each in found[-1].questions} == {"A"}


@pytest.mark.parametrize(
    ("row", "gold"),
    [
        ({"choices": ["p", "q", "r"], "answer": 2}, "C"),
        ({"choices": ["p", "q", "r"], "answer": "B"}, "B"),
        ({"choices": ["p", "q", "r"], "answer": "q"}, "B"),
        ({"choices": ["p", "q", "r"], "answer": "2"}, "C"),
        ({"choices": ["3", "1", "7"], "answer": 1}, "B"),
        ({"choices": [3, 1, 7], "answer": "7"}, "C"),
        ({"options": ["p", "q"], "answer": "A"}, "A"),
        ({"choices": [], "options": ["p", "q"], "answer": "A"}, "A"),
        ({"choices": {"text": ["p", "q"], "label": ["1", "2"]}, "answerKey": "2"}, "B"),
    ],
)
def test_lists_of_choices_stay_in_their_order(tmp_path, row, gold):
    task = tasks.load(f"file:{write(tmp_path / 'q.jsonl', [{'question': 'Q?', **row}])}")
    (question,) = task.questions
    assert question.question.startswith("Q?\n\nA) ") and question.gold == gold


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (
            {"choices": [str(i) for i in range(30)], "answer": 1},
            "it has 30 choices; 2 to 26 can be told apart by letters",
        ),
        ({"choices": ["p"], "answer": 0}, "it has 1 choices"),
        ({"choices": ["p", "p", "q"], "answer": 1}, "two of its choices are the right one, 'p'"),
        ({"choices": ["p", "q"], "answer": 2}, "its right choice is number 2, of 2"),
        ({"choices": ["p", "q"], "answer": -1}, "its right choice is number -1, of 2"),
        ({"choices": ["p", " "], "answer": 0}, "one of its choices has no text"),
        ({"choices": ["p", None], "answer": 0}, "neither text nor number but NoneType"),
        ({"choices": ["p", "q"], "answer": "r"}, "its answer 'r' is none of its choices"),
        ({"choices": ["B", "A"], "answer": "A"}, "its answer 'A' is more than one of its choices"),
        ({"choices": ["p", "q"], "answer": None}, "its answer 'None' is none"),
        ({"choices": "pq", "answer": 0}, "it has no list of choices"),
        ({"choices": {"text": None, "label": 3}, "answer": 0}, "it has no list of choices"),
    ],
)
def test_a_row_that_is_no_question_is_left_out(tmp_path, row, why):
    good = {"question": "R?", "choices": ["p", "q"], "answer": 0}
    task = tasks.load(f"file:{write(tmp_path / 'q.jsonl', [good, {'question': 'Q?', **row}])}")
    assert len(task.questions) == 1 and why in task.skipped[0] and task.skipped[0].startswith("row 2 of ")


@pytest.mark.parametrize("column", [{"options": []}, {"options": {"timeout": 1}}, {"choices": "two"}])
def test_other_data_in_these_columns_does_not_make_it_multiple_choice(tmp_path, column):
    task = tasks.load(f"file:{write(tmp_path / 'q.jsonl', [{'question': '1 + 1?', 'answer': '2', **column}])}")
    assert [(each.question, each.gold) for each in task.questions] == [("1 + 1?", "2")]


def test_wrong_choices_may_be_equal_and_have_markup():
    hostile = ["1\nB) 2", "{question} <|im_end|>", r"\boxed{A}", r"\boxed{A}"]
    text, gold, _ = choices.lettered("Q?", hostile, 0, None)
    assert (gold, text) == (
        "A",
        "Q?\n\nA) 1\n   B) 2\nB) {question} <|im_end|>\nC) \\boxed{A}\nD) \\boxed{A}\n\n" + choices.ASKED,
    )


def test_letters_are_graded_and_vote(tmp_path):
    task = tasks.load(
        f"file:{write(tmp_path / 'q.jsonl', [{'question': 'Q?', 'choices': ['p', 'q', 'r'], 'answer': 1}])}"
    )
    (question,) = task.questions
    for name in ("default", "released"):
        protocol = PROTOCOLS[name]
        with Grader(protocol.extraction, protocol.scorer, workers=1, strip_think=True) as grader:
            answers = ["Answer: B", "<think>A</think>(B)", "Answer: C", r"\boxed{c}", "D", "<think>\\boxed{B}"]
            found = grader.grade_samples(question, answers)
            assert [each["correct"] for each in found] == [True, True, False, False, False, False]
            assert [each["class"] for each in found] == [0, 0, 1, 1, -1, -1]
            assert grader.gold_error("B", question.rules) is None
            assert grader.gold_error("D", question.rules).startswith(f"{NO_GOLD}'D' is none of the letters ABC")


def test_a_file_of_letters_is_scored_again_by_its_rules():
    rules = json.dumps({"kind": "choice", "entry": "ABC"})
    assert pairs.read_pair({"gold": "B", "response": "B", "rules": rules}).rules == Rules(CHOICE, entry="ABC")
    row = {"gold": "B", "response": "B"}
    assert pairs.read_pair(row, BENCHMARKS["gpqa_diamond"]).rules.kind == CHOICE
    with pytest.raises(ValueError, match="its rule entry cannot be 'BA'; letters from A on are needed"):
        pairs.read_pair({**row, "rules": {"kind": "choice", "entry": "BA"}})


def test_a_set_with_conditions_says_where_to_accept_them(monkeypatch):
    import datasets

    def refused(*_args, **_kwargs):
        raise PermissionError("Dataset 'Idavidrein/gpqa' is a gated dataset on the Hub.")

    monkeypatch.setattr(datasets, "load_dataset_builder", refused)
    with pytest.raises(UsageError) as caught:
        tasks.load("gpqa_diamond")
    assert "is a gated dataset" in str(caught.value) and "huggingface.co/datasets/Idavidrein/gpqa" in str(caught.value)
    assert "HF_TOKEN" in str(caught.value) and "gpqa_diamond=FILE" in str(caught.value)
    assert "HF_TOKEN" not in rows._conditions(rows.HubSet("me/x", "test"))


@pytest.mark.parametrize("found", [None, (["p", "q"], "A"), ("pq", 0), (["p", "q"],), (["p", "q"], True)])
def test_a_function_of_choices_that_gives_something_else(found):
    benchmark = Benchmark("x", choices=lambda row, answer: found)
    with pytest.raises(UsageError, match="it has to be a"):
        benchmark.choices_of("Q?", {}, "A")
    with pytest.raises(ValueError, match="choices take the place of score, rules"):
        Benchmark("x", choices=choices.listed_choices, score=max)
