"""The reward `dapo`: what it takes for right beside what `math` does, and its way into a training."""

import pytest

from openrlhf_ebpo.checks import preflight
from openrlhf_ebpo.rewards import dapo
from openrlhf_ebpo.rewards.answers import DAPO, READINGS, packaged
from openrlhf_ebpo.rewards.grading import GoldError
from openrlhf_ebpo.rewards.guard import RewardError, check_reward

LONG = "z" * 300
ONLY_MATH = [  # gold, response: right to `math`, wrong to `dapo`
    ("5", r"So it is \boxed{5}."),
    ("5", "Answer: 4\n" + r"\boxed{5}"),  # the box comes last, the answer line is wrong
    ("5", r"\boxed{5}" + "\nAnswer: 6"),  # the right box and a wrong line
    ("5", "**Answer:** 5"),
    ("5", "**Answer:** **5**"),
    ("5", "Answer: **5**"),
    ("5", "*Answer:* 5"),
    ("5", "Answer: 5."),
    ("5", "Answer: 10/2"),
    ("5", r"Answer: \frac{10}{2}"),
    ("5", "Answer: 5.0"),
    ("5", "Answer: 5\n" + LONG),  # too early
    ("5", r"Answer: \boxed{5}." + "\n"),
    ("5", r"Answer: \(5\)"),
    ("5", r"Answer: \[5\]"),
    ("5", "Answer: +5"),
    ("5", "Answer: 05"),
    ("5", r"Answer: \sqrt{25}"),
    ("5", "Answer: 2+3"),
    ("5", "Answer: 5 apples"),
    ("5", "Answer: 5%"),
    ("5", "Answer: $5.00$"),
    ("5", r"\fbox{5}"),
    ("5", r"\boxed 5"),
    ("0.5", "Answer: 1/2"),
    ("0.5", "Answer: .5"),
    ("1/2", "Answer: 0.5"),
    (r"\frac{1}{2}", "Answer: 1/2"),
    (r"\frac{1}{2}", r"Answer: \dfrac{1}{2}"),
    (r"\frac{1}{2}", "Answer: 0.5"),
    (r"\frac{1}{2}", "Answer: ½"),
    (r"\sqrt{2}", "Answer: √2"),
    (r"2\sqrt{2}", r"Answer: \sqrt{8}"),
    ("-5", "Answer: −5"),
    ("1000", r"Answer: 1\,000"),
    ("3", "Answer: 5\n" + r"Wait, \boxed{3}"),
    ("x^2-1", "Answer: (x-1)(x+1)"),
    (r"\pi", "Answer: π"),
    ("1,2", "Answer: 2,1"),
    ("{1,2}", r"Answer: \{2,1\}"),
    ("12", "the final answer: 12."),
    ("12", r"Thus $\boxed{12}$."),
    ("12", "Answer: twelve\n\n" + r"\boxed{12}"),
    ("12", r"\boxed{12}" + "<|im_end|>"),
]
ONLY_DAPO = [  # right to `dapo`, wrong to `math`
    ("5", "Answer: 5\n" + r"\boxed{6}"),  # the right line and another box behind it
    ("5", r"\boxed{6}" + "\nAnswer: 5"),
    ("5", "I say my answer : 5"),
    ("5", "so the Answer:5"),
    ("5", "Answer: it is $5$ and no more"),
    ("5", "Answer: the sum is $5$."),
    ("5", r"Answer: 7 \text{and} = 5"),
    ("5", "Answer: a 5"),
    ("10", "Answer: 10 points square"),
    ("12", r"Answer: \overline{12}"),
]
BOTH_RIGHT = [
    *[
        (gold, f"Step by step.\nAnswer: {gold}")
        for gold in ("0", "5", "-7", "42", "204", "1000", "2023", "x+1", "3.14")
    ],
    *[(gold, f"Answer: ${gold}$") for gold in ("5", r"\frac{1}{2}", r"\sqrt{3}", "(1,2)", "[0,1)")],
    *[("5", text) for text in ("Answer: 5\n", "answer: 5", "ANSWER: 5", "Answer:5", "Answer:\n5", "Answer :  5 ")],
    *[
        ("5", text)
        for text in (r"Answer: \boxed{5}", r"Answer: $\boxed{5}$", "Answer: 4\nAnswer: 5", "Final Answer: 5")
    ],
    ("5", "Answer: 5<|im_end|>"),
    ("5", "<think>6</think>\nAnswer: 5"),
    ("1000", "Answer: 1,000"),
    (r"\frac{1}{2}", r"Answer: \frac12"),
    (r"\sqrt{3}", r"Answer: \sqrt3"),
]
BOTH_WRONG = [
    *[("5", text) for text in ("", "5", "The answer is 5.", "so 5", "Answer:", "Answer: ", "Answer: 6", "Answer: 55")],
    *[("5", text) for text in (r"\boxed{6}", r"\boxed{5", "Answer: 5 6", "Answer: 5\nAnswer: 6", "Answer: -5")],
    *[("5", text) for text in ("Answer: five", "Answer: None", LONG, "Answer: $6$", "Answer: 6 degrees")],
    (r"\frac{1}{2}", r"Answer: \frac{1}{3}"),
    ("x+1", "Answer: x-1"),
]


def judged(gold: str, response: str) -> bool:
    return dapo.is_right(gold, dapo.answer_of(response))


@pytest.mark.parametrize(
    ("probes", "by_math", "by_dapo"),
    [(ONLY_MATH, True, False), (ONLY_DAPO, False, True), (BOTH_RIGHT, True, True), (BOTH_WRONG, False, False)],
    ids=["only math", "only dapo", "both right", "both wrong"],
)
def test_math_and_dapo_differ_on_these(grader, probes, by_math, by_dapo):
    found = [(gold, text[-60:], grader.grade(gold, text).correct, judged(gold, text)) for gold, text in probes]
    assert [each for each in found if each[2:] != (by_math, by_dapo)] == []


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("", None),
        ("Answer 5", None),
        ("Answer: 4 Answer: 5", "4 Answer: 5"),  # a line has one
        ("Answer: 4\nANSWER :\t5\nbye", "5"),
        ("Answer:\n\n  5", "5"),
        ("Answer: 5" + 292 * "z", None),
        ("Answer: 5" + 291 * "z", "5" + 291 * "z"),
        ("Answer: 5" + 291 * "z" + "<|im_end|><|endoftext|>", "5" + 291 * "z"),  # special tokens are not read
    ],
)
def test_where_the_answer_stands(response, answer):
    assert dapo.answer_of(response) == answer


@pytest.mark.parametrize(
    ("answer", "left"),
    [
        ("x = 5", "5"),
        ("1,000", "1000"),
        ("1,000.5", "1,000.5"),
        (r"\$5.00", "5.00"),
        ("an apple", "apple"),
        (r"5,\!000", "5000"),
        (r"\frac12", r"\frac{1}{2}"),
        (r"\frac1x2", r"\frac{1}{x}2"),
        (r"\sqrt2x", r"\sqrt{2}x"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"90^\circ", "90"),
        (r"5\mbox{ cm}^2", "5"),
        ("100 square units", "100"),
    ],
)
def test_minervas_normalisation(answer, left):
    assert dapo.normalised(answer) == left


def test_rewards_are_one_and_minus_one_and_scores_one_and_zero():
    prompt = "What is 2+3? Answer: $Answer\n"
    said = ["Answer: 5", "Answer: 6", r"\boxed{5}"]
    found = dapo.reward_func([prompt + text for text in said], [prompt] * 3, ["5", 5, "5"])
    assert found["rewards"].tolist() == [1, -1, -1]
    assert found["scores"].tolist() == [1, 0, 0]
    assert found["extra_logs"]["dapo_no_answer"].tolist() == [0, 0, 1]
    assert check_reward(dapo.reward_func([prompt + said[0]], [prompt], ["5"]))["rewards"] == 1


def test_a_prompt_that_is_not_found_and_a_gold_that_is_no_text():
    with pytest.raises(RewardError, match="the prompt is not found"):
        dapo.reward_func(["another"], ["prompt"], ["5"])
    for label in (True, {"answer": "5"}):
        with pytest.raises(GoldError, match="its gold answer is neither text nor number but"):
            dapo.reward_func(["p Answer: 5"], ["p"], [label])


def test_its_name_is_a_reward_that_votes_and_fails_with_minus_one():
    values = {"reward.remote_url": "dapo", "data.label_key": None}
    preflight.absolute_paths(values)
    path = values["reward.remote_url"]
    assert preflight.reward_problems("--reward.remote_url", path) == []
    assert preflight.FAIL_REWARD[path] == -1.0
    assert packaged(path, None) == DAPO
    reading = READINGS[DAPO]
    assert reading.spelled(reading.extract("Answer: $1,000$")) == reading.spelled(reading.extract("Answer: 1000"))
    assert not reading.same(until=float("inf"))("1/2", "0.5")
