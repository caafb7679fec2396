"""Multiple choice: rows with choices become lettered questions, and a response's letter is read."""

import json
import random
import time

import pytest
from commands import write_rows

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.eval import score, tasks
from openrlhf_ebpo.eval.grader import NO_GOLD, Grader
from openrlhf_ebpo.eval.protocols import PROTOCOLS
from openrlhf_ebpo.eval.tasks import BENCHMARKS, CHOICE, Benchmark, Rules, choice_letters, choices

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
TWO = [  # letters are no answer
    "Both (A) and (C).",
    "The answer is **A** and **C**.",
    "The answer is either (A) or (B).",
    "Answer: (A), (C)",
    "Answer: **A** or **C**",
    "Answer: (A)(C)",
    "Answer: A as well as C",
    "Answer: A, or maybe B",
    "Answer: A/B",
    "Answer: A - C",
    "Answer: A plus C",
    "Answer: A\nC",
    "Answer: A, II",
    "答案：A、C",
    "(A) or (B)",
    "A & B",
    r"\boxed{A \quad B}",
    '{"answer": ["A", "C"]}',
    "Both A and C are correct.",
    "C\n\nD",
]
LISTS = [  # of the choices
    "The answer choices are A) 1 B) 2 C) 3 D) 4",
    "Answer choices:\nA) 1\nB) 2",
    "Answer:\nA) 1\nB) 2",
    "Choose the correct option: A) 1 B) 2 C) 3",
    "(a) 1\n(b) 2",
    "A) 1\nB) 2\nC",
    "A\nB\nC\nD",
    "A) 42 is a lot.\n\nB) 3 is little.\n\nC) fits",
    "**Option A**: falls.\n**Option B**: fits well\n**Option D**: grows faster.",
]
DENIED = [
    "We eliminate (C)",
    "So we can rule out **C**",
    "I would not choose A.",
    "An incorrect answer is B.",
    "Wrong answer: B",
    "Suppose A is correct. Then 1 = 2, a contradiction.",
    "If the answer is A, then 1 = 2.",
    "The answer is A if x > 0.",
    "Let us assume that the answer is A.",
    "Let the answer be A.",
    "I don't think the answer is A.",
    "I don’t think the answer is A.",
    "Some might say the answer is A.",
    "The answer cannot be C.",
    "It cannot be (C)",
    "It isn't (C).",
    "Neither A nor C is correct.",
    "A is correct only if x > 0",
    "D) 4 is wrong.",
    "C) is incorrect because it is 42",
    "B) 2 ❌",
    "答案不是C",
]
OTHERWISE_NONE = [
    "Vitamin C is correct.",
    "A: 42",
    "Answer: A?",
    "Answers: A and C",
    "The answer is A's length",
    "the answer is\na triangle",
    "Answer: I, II and III",
    r"\boxed{A triangle}",
]
LAST_SAID = [
    ("Answer choice A is wrong. Answer choice C is right. Answer choice D is wrong.", "C"),
    ("First guess: the answer is A.\n\nSo the correct option is C.", "C"),
    ("I first thought the answer is A. On reflection I choose D.", "D"),
    ("Answer: A\n\nNo, the answer is C.", "C"),
    ("The answer is C.\n\nA is wrong as it is 1.", "C"),
    ("The answer is C, not A.", "C"),
    ("The answer is A. But C is correct.", "C"),
    ("A is correct. B is correct.", "B"),
    ("A is wrong, B is wrong, so (C).", "C"),
    ("Answer: C\n\nWhy not A: it is too small.\nWhy not B: it is not whole.", "C"),
    ("The answer is C, because (A) and (B) are too small.", "C"),
    ("Answer: C) Both A and B", "C"),
]
C = [
    # first lines
    "C\n\nExplanation: it is 42.",
    "**C) 42 km**\n\nBecause 6 times 7 is 42.",
    "C) 42 km\n\nThe reason is that 6 times 7 is 42.",
    "C) 42 km\n\nA) is small\nB) is small\nC) fits",
    # last lines
    f"{LISTED}\n\nIt is 3.\n\n**C) 3**",
    "The only one that fits is (C).",
    "The force is 12 N, which corresponds to option C.",
    "The force is 12 N, which matches choice (C).",
    "It does not end, so C.",
    "So C.",
    "C) It does not change if x is 0",
    # a letter before its choice's text
    "Answer: C (42 km)",
    "The correct answer is C (42 km).",
    "The correct answer is:\n\nC. 42 km\n\nBecause it is.",
    "Final Answer: **C.** 42 km",
    "Answer: (c)",
    "Answer: c) 42",
    "c) 42 km",
    r"\boxed{C (42 km)}",
    r"\boxed{\text{C} \quad 42}",
    r"\boxed{\bf C}",
    r"\boxed{c) 42}",
    # sentences
    "C is the answer.",
    "Option C is the answer.",
    "Therefore, C is the correct answer.",
    "The answer is therefore C.",
    "The answer must therefore be C.",
    "I would go with option C.",
    "The correct choice here is C",
    "This gives us the answer (C). It is 42.",
    # spelling
    "The answer is “C”.",
    "Answer: C ✅",
    "Answer：C",
    "（C）",
    "**Answer**\n\nC",
    "<answer>C</answer>",
    '{"answer": "C"}',
    # other languages
    "答案：C",
    "正确答案是C。",
    "故选C。",
    "Antwort: C",
    "Die richtige Antwort ist C.",
    "Réponse : C",
    "Respuesta: C",
]
PROBES += [(text, None) for text in TWO + LISTS + DENIED + OTHERWISE_NONE] + LAST_SAID + [(text, "C") for text in C]


def test_the_letter_of_a_response():
    assert len(PROBES) >= 100 and len({text for text, _ in PROBES}) == len(PROBES)
    read = [(text, found, choice_letters.letter(text, "ABCD")) for text, found in PROBES]
    assert [each for each in read if each[1] != each[2]] == []


def processor_time(text: str) -> float:
    started = time.process_time()
    choice_letters.letter(text, "ABCD")
    return time.process_time() - started


@pytest.mark.parametrize(
    "piece",
    [
        "answer ",
        "answer is A or ",
        "answer: A, ",
        "the answer is a b c d e f ",
        "the correct option ",
        "I choose ",
        "so A is correct ",
        "A) ",
        "A) 1\n",
        "(A",
        "(A)\n",
        "**A",
        "**A** or ",
        "A, ",
        "not ",
        "\\text{",
        "\\boxed{A",
        "<answer>",
        "答案",
        " ",
        "\n",
        ".",
    ],
)
# heads are nightly; daily: without one, in unit/test_choices.py itself
@pytest.mark.parametrize("head", ["", *(pytest.param(head, marks=pytest.mark.nightly) for head in ("answer", "C\n"))])
def test_reading_takes_time_linear_in_the_response(head, piece):
    """Eight times the length: 8 times the time, 64 where it were a square."""
    short, long = (head + piece * (length // len(piece)) for length in (6_250, 50_000))
    least = max(min(processor_time(short) for _ in range(3)), 0.001)
    assert min(processor_time(long) for _ in range(2)) < 30 * least


def gpqa(number: int, **changes) -> dict:
    wrong = {f"Incorrect Answer {i}": f"wrong {number}.{i}" for i in (1, 2, 3)}
    return {
        "Question": f"Which of {number}?",
        "Correct Answer": f"right {number}",
        **wrong,
        "Record ID": "r",
        **changes,
    }


def test_choices_of_gpqa_are_shuffled_alike_wherever_a_row_stands(tmp_path):
    written = [gpqa(i) for i in range(198)]
    task = tasks.load(f"gpqa_diamond={write_rows(tmp_path / 'a.jsonl', written)}")
    assert (len(task.questions), task.skipped, task.notes) == (198, (), ())
    first = task.questions[0]
    head, blank, *lines, gap, asked = first.question.split("\n")
    assert (head, blank, gap, asked) == ("Which of 0?", "", "", "Answer with the letter of the right choice.")
    assert lines["ABCD".index(first.gold)] == f"{first.gold}) right 0"
    assert sorted(line[3:] for line in lines) == ["right 0", "wrong 0.1", "wrong 0.2", "wrong 0.3"]
    assert first.rules == Rules(CHOICE, entry="ABCD")
    assert all(20 < sum(each.gold == letter for each in task.questions) < 80 for letter in "ABCD")
    random.Random(1).shuffle(written)
    other = tasks.load(f"gpqa_diamond={write_rows(tmp_path / 'b.jsonl', written)}")
    assert {each.question: each.gold for each in other.questions} == {
        each.question: each.gold for each in task.questions
    }
    named = tasks.load(f"file:{tmp_path / 'a.jsonl'}")
    assert named.fingerprint() == task.fingerprint()


def test_the_order_of_the_choices_is_in_the_fingerprint(tmp_path):
    file = write_rows(tmp_path / "q.jsonl", [gpqa(i) for i in range(9)])
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
    ],
)
def test_lists_of_choices_stay_in_their_order(tmp_path, row, gold):
    task = tasks.load(f"file:{write_rows(tmp_path / 'q.jsonl', [{'question': 'Q?', **row}])}")
    (question,) = task.questions
    assert question.question.startswith("Q?\n\nA) ") and question.gold == gold
    assert (
        question.question.find("A) p") + len("A) p\n") == question.question.find("B) q")
        or ") q" not in question.question
    )


NO_QUESTIONS = [
    ({"choices": [str(i) for i in range(30)], "answer": 1}, "it has 30 choices; 2 to 26 can be told apart by letters"),
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
    ({"choices": {"A": "p", "B": "q"}, "answer": "A"}, "it has no list of choices"),
]


def test_rows_that_are_no_questions_are_left_out(tmp_path):
    good = {"question": "R?", "choices": ["p", "q"], "answer": 0}
    bad = [{"question": f"Q{i}?", **row} for i, (row, _) in enumerate(NO_QUESTIONS)]
    task = tasks.load(f"file:{write_rows(tmp_path / 'q.jsonl', [good, *bad])}")
    assert len(task.questions) == 1 and len(task.skipped) == len(bad)
    for number, (skipped, (_, why)) in enumerate(zip(task.skipped, NO_QUESTIONS, strict=True), 2):
        assert skipped.startswith(f"row {number} of ") and why in skipped


@pytest.mark.parametrize(
    "column",
    [
        {"options": []},
        {"options": {"timeout": 1}},
        {"options": "[]"},
        {"choices": "two"},
        {"choices": "[two]"},
        {"A": 1, "B": 1},
    ],
)
def test_other_data_in_these_columns_does_not_make_it_multiple_choice(tmp_path, column):
    task = tasks.load(f"file:{write_rows(tmp_path / 'q.jsonl', [{'question': '1 + 1?', 'answer': '2', **column}])}")
    assert [(each.question, each.gold) for each in task.questions] == [("1 + 1?", "2")]


@pytest.mark.parametrize(
    "row",
    [
        *({"options": options, "answer": "b"} for options in ("a ) 38 , b ) 27", "['p', 'q']", {"a": "p", "b": "q"})),
        {"choices": {"text": ["p", "q"], "label": ["1", "2"]}, "answerKey": "2"},
        {"A": "p", "B": "q", "C": "r", "D": "s", "answer": "C"},
    ],
)
def test_choices_in_another_form_are_refused(tmp_path, row):
    with pytest.raises(UsageError, match="is one of choices that are not a list in choices or options: write them so"):
        tasks.load(f"file:{write_rows(tmp_path / 'q.jsonl', [{'question': 'Q?', **row}])}")


@pytest.mark.parametrize(
    ("row", "fingerprint"),
    [
        (gpqa(1), "7ed6c347d187"),
        ({"question": "Q?", "choices": ["p", "q", "r"], "answer": 1}, "f741555c8ab2"),
        ({"question": "Q?", "options": ["p", "q", "r"], "answer": "q"}, "f741555c8ab2"),
        ({"question": "1 + 1?", "answer": "2", "options": {"timeout": 1}, "A": 1, "B": 2}, "164bf60859df"),
    ],
)
def test_results_of_before_are_continued(tmp_path, row, fingerprint):
    """Their fingerprints are of an earlier release."""
    assert tasks.load(f"file:{write_rows(tmp_path / 'q.jsonl', [row])}").fingerprint() == fingerprint


def test_wrong_choices_may_be_equal_and_have_markup():
    hostile = ["1\nB) 2", "{question} <|im_end|>", r"\boxed{A}", r"\boxed{A}"]
    text, gold, _ = choices.lettered("Q?", hostile, 0, None)
    assert (gold, text) == (
        "A",
        "Q?\n\nA) 1\n   B) 2\nB) {question} <|im_end|>\nC) \\boxed{A}\nD) \\boxed{A}\n\n" + choices.ASKED,
    )


def test_letters_are_graded_and_vote(tmp_path):
    task = tasks.load(
        f"file:{write_rows(tmp_path / 'q.jsonl', [{'question': 'Q?', 'choices': ['p', 'q', 'r'], 'answer': 1}])}"
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
    assert score.read_pair({"gold": "B", "response": "B", "rules": rules}).rules == Rules(CHOICE, entry="ABC")
    row = {"gold": "B", "response": "B"}
    assert score.read_pair(row, BENCHMARKS["gpqa_diamond"]).rules.kind == CHOICE
    with pytest.raises(ValueError, match="its rule entry cannot be 'BA'; letters from A on are needed"):
        score.read_pair({**row, "rules": {"kind": "choice", "entry": "BA"}})


@pytest.mark.parametrize("found", [None, (["p", "q"], "A"), ("pq", 0), (["p", "q"],), (["p", "q"], True)])
def test_a_function_of_choices_that_gives_something_else(found):
    benchmark = Benchmark("x", choices=lambda row, answer: found)
    with pytest.raises(UsageError, match="it has to be a"):
        benchmark.choices_of("Q?", {}, "A")
    with pytest.raises(ValueError, match="choices take the place of score, rules"):
        Benchmark("x", choices=choices.listed_choices, score=max)
