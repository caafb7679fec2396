"""Right and wrong answers to every kind of gold are told apart, in every form that a response gives them."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from openrlhf_ebpo.rewards.math.extraction import extract_answer, opened_thoughts
from openrlhf_ebpo.rewards.math.golds import gold_text
from openrlhf_ebpo.rewards.math.grading import GoldError
from openrlhf_ebpo.rewards.math.math import reward_func

LINES = (Path(__file__).parents[1] / "data" / "math_readings.jsonl").read_text().splitlines()
ROWS = [json.loads(line) for line in LINES]
FORMS = ("So we get \\boxed{%s}.", "So.\nAnswer: %s", "Answer:\n$$\n%s\n$$", "**Answer:**\n\n\\[\n  %s\n\\]\n")
pytestmark = pytest.mark.usefixtures("grader")


def test_right_and_wrong_answers_of_every_kind(grader):
    cases = [(row, row["response"]) for row in ROWS if "response" in row]
    answered = [row for row in ROWS if "answer" in row]  # in one form each: the next test has all forms
    cases += [(row, FORMS[i % len(FORMS)] % row["answer"]) for i, row in enumerate(answered)]
    with ThreadPoolExecutor(8) as threads:
        verdicts = list(threads.map(lambda case: grader.grade(gold_text(case[0]["gold"]), case[1]), cases))
    failed = [
        (row["gold"], response, verdict.outcome)
        for (row, response), verdict in zip(cases, verdicts, strict=True)
        if verdict.correct != row["right"]
    ]
    assert len(cases) > 900 and not failed


@pytest.mark.parametrize(
    "response",
    [
        *("Answer:\n$$\n%s\n$$", "Answer: \\[\n%s\n\\]", "Answer:\n\n\\[\n  %s\n\\]\n", "Answer:\n\\(\n%s\n\\)"),
        *("Answer:\n```\n%s\n```", "Answer:\n```latex\n%s\n```\nDone.", "Answer:\n~~~\n%s\n~~~", "Answer: `%s`"),
        *("Answer:\n\\begin{align*}\n%s\n\\end{align*}", "Answer:\n\\[\\begin{aligned}\nx &= %s\n\\end{aligned}\\]"),
        *("Answer:\n\\begin{equation}\n%s\n\\end{equation}", "Answer:\n\\begin{align}\n%s \\tag{1}\n\\end{align}"),
        *("Answer:\n- %s", "Answer:\n* %s", "Answer:\n• %s", "Answer:\n1. %s", "Answer:\n> %s"),
        *(
            "Answer:\n> $$\n> %s\n> $$",
            "Answer:\n$\n%s\n$",
            "Answer:\r\n$$\r\n%s\r\n$$\r\n",
            "Answer:\n\\[\n\\boxed{%s}\n\\]",
        ),
        *(
            "**Answer:** $$%s$$",
            "**Answer: %s**",
            "Answer: **%s**",
            "Answer:\n\n%s",
            "Answer:\n**$%s$**",
            "Answer: $%s$.",
        ),
        *("### Answer\n\n%s", "### Answer:\n%s", "**Final Answer**\n\n\\[%s\\]", "- Answer: %s", "> Answer: %s"),
        *(
            "Answer：%s",
            "答案：%s",
            "**最终答案：** $%s$",
            "\\textbf{Answer:} %s",
            "$\\text{Answer: }%s$",
            "2. **Answer:** %s",
        ),
        *(
            "<answer>%s</answer>",
            "<answer>\n\\(%s\\)\n</answer>",
            "So.\n#### %s",
            "So.\n#### $%s$\n",
            "Answer:\n<answer>%s</answer>",
        ),
        "<think>\nmaybe \\boxed{3}\n</think>\n\nAnswer: %s",
        "it is \\boxed{3}</think>\n\n\\boxed{%s}",
        "<think>a</think>\\boxed{%s}<think>\\boxed{3}",
        "#### 3\nAnswer: %s",
        "<answer>3</answer> \\boxed{%s}",
        "<answer>3</answer> No: <answer>%s</answer>",
        "<answer>%s</answer> Is it <answer>3?",
        "<answer>%s</answer>\n#### 3",
    ],
)
def test_an_answer_in_display_form(grader, response):
    for gold, right, wrong in (("70", "70", "71"), (r"\frac{1}{2}", "0.5", "0.25")):
        assert grader.grade(gold, response % right).correct
        assert not grader.grade(gold, response % wrong).correct


@pytest.mark.parametrize(
    "response",
    [
        *(
            "Answer: $$",
            "Answer:\n$$\n$$",
            "Answer: \\[\n\\]",
            "Answer:\n```\n```",
            "Answer:\n```latex",
            "Answer: **",
            "Answer:\n> ",
        ),
        *(
            "\\boxed{\\text{}}",
            "\\boxed{$$}",
            "<answer></answer>",
            "Answer:\n- ",
            "Answer:\n\\begin{align*}\n\\end{align*}",
        ),
        *("<think>\\boxed{7}", "<think>\\boxed{7}</think>", "#### 7\nand so on", "Answer: 7</think>", "7"),
    ],
)
def test_markup_alone_and_thoughts_are_no_answer(grader, response):
    assert not extract_answer(response)
    assert grader.grade("7", response).outcome == "no_answer"
    assert reward_func(["Q" + response], ["Q"], ["7"])["extra_logs"]["math_no_answer"].tolist() == [1.0]


OPEN = [
    *("<|assistant|><think>\n", "<think>", "Q <think>a</think> Q\n<think>\n\n", "[|assistant|]<thought>\n"),
    *("<seed:think>", "<mm:think>\n", "<think:a>", "[THINK]", "◁think▷", "<thinking>\n"),
]
NOT_OPEN = [
    *("What is it? ", "Think between <think> and </think>. Q\n<|assistant|>\n", "Begin with <think>. Q"),
    *("<|assistant|>\n<think>\n\n</think>\n\n", "<think>a</think> Q", "[/THINK]", "x < think>", "<a", ""),
]


@pytest.mark.parametrize("prompt", OPEN)
@pytest.mark.parametrize(
    "response", ["so \\boxed{7}? wait, let me check", "Answer: 7", "<answer>7</answer>", "<think>\\boxed{7}", "#### 7"]
)
def test_thoughts_that_the_prompt_opens_and_the_response_does_not_end_hold_no_answer(grader, prompt, response):
    tag = opened_thoughts(prompt)
    assert tag and prompt.rstrip().endswith(tag)
    paid = f"so \\boxed{{3}}?\n{tag[0]}/{tag[1:]}\n\n\\boxed{{7}}"
    found = reward_func([prompt + response, prompt + paid], [prompt] * 2, ["7", "7"])
    assert found["rewards"].tolist() == [0, 1] and found["extra_logs"]["math_no_answer"].tolist() == [1, 0]


@pytest.mark.parametrize("prompt", NOT_OPEN)
def test_a_prompt_that_opens_no_thoughts_or_has_ended_them_leaves_the_response_an_answer(grader, prompt):
    assert not opened_thoughts(prompt)
    assert reward_func([f"{prompt}\\boxed{{7}}"], [prompt], ["7"])["rewards"].tolist() == [1]


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"\boxed{1} \text{ and } \boxed{2}", "1, 2"),
        (r"$x=\boxed{1}$, $x=\boxed{2}$ or $x = \boxed{3}$", "1, 2, 3"),
        (r"x=\boxed{1},\quad y=\boxed{2}", "x=1, y=2"),
        (r"\boxed{7}, and \boxed{7}", "7"),
        (r"\boxed{3}, so it is \boxed{2}", "2"),
        (r"\boxed{\boxed{4}}, \boxed 5", r"\boxed{4}, 5"),
    ],
)
def test_boxes_that_are_joined_are_one_list(response, answer):
    assert extract_answer(response) == answer == gold_text(response)


def test_rows_of_a_display_formula():
    assert extract_answer("Answer:\n\\[\\begin{aligned} x &= 1 \\\\ y &= 2 \\end{aligned}\\]") == "x = 1, y = 2"
    assert (
        extract_answer("Answer:\n\\begin{align*}\nx &= 35\\cdot 2 \\\\\n&= 70\n\\end{align*}") == "x = 35\\cdot 2= 70"
    )
    assert extract_answer("Answer:\n- 3\n- 5\n\nDone.") == "3, 5"
    assert extract_answer("Answer:\n-5") == "-5"


@pytest.mark.parametrize(
    "text",
    [
        "Answer:\n",
        "Answer:\n- ",
        "- \n",
        "```\n",
        "\\[",
        "**",
        "_",
        "<answer>",
        "<think>",
        "<a",
        "\\boxed{1}, x=",
        "\\boxed{1} ",
        "<a:",
        "</think>",
        "> \n>",
        "#",
        "1. ",
        "\\begin{align}",
    ],
)
def test_extraction_takes_linear_time(text):
    """Less than a second; in quadratic time it would not end before the limit of every test."""
    response = text * (200_000 // len(text))
    for before, after in (("", ""), ("Answer:\n", "\nz"), ("Answer: ", ""), ("\\boxed{", "}")):
        extract_answer(before + response + after)


@pytest.mark.parametrize(
    "label",
    ["Half of 48 is 24.\n48 + 24 = 72\n#### 72", '["7"]', '{"ground_truth": "7"}', "$$", "", "x^2+", r"\frac{1"],
)
def test_golds_that_are_not_compared_as_texts(grader, label):
    with pytest.raises(GoldError, match="gold answer"):
        grader.grade(label, r"\boxed{7}")
