"""The maths reward: labelled pairs, where the answer stands, and where the prompt ends."""

import asyncio
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from openrlhf_ebpo.quickstart.tiny_model import build_tokenizer
from openrlhf_ebpo.rewards.math.bounds import digits
from openrlhf_ebpo.rewards.math.extraction import extract_answer
from openrlhf_ebpo.rewards.math.grading import GoldError
from openrlhf_ebpo.rewards.math.math import response_of, reward_func
from openrlhf_ebpo.rewards.math.reading import clean
from openrlhf_ebpo.rewards.math.units import name_of
from openrlhf_ebpo.rewards.processes.reward_values import RewardError, check_reward
from openrlhf_ebpo.rewards.reward_settings import BUILT_IN

PAIRS = [
    json.loads(line) for line in (Path(__file__).parents[1] / "data" / "math_pairs.jsonl").read_text().splitlines()
]
pytestmark = pytest.mark.usefixtures("grader")
DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\nAnswer: 7 is in \\boxed{7}. What "
    "is 6*7?\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
QWEN = f"<|im_start|>user\n{DAPO}<|im_end|>\n<|im_start|>assistant\n"
LLAMA = f"<|start_header_id|>user<|end_header_id|>\n\n{DAPO}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"


def test_labelled_pairs(grader):
    assert len(PAIRS) >= 160
    with ThreadPoolExecutor(8) as threads:
        verdicts = list(threads.map(lambda pair: grader.grade(pair["gold"], pair["response"]), PAIRS))
    wrong = [
        (pair["trap"], pair["gold"], pair["response"][-80:], verdict.outcome)
        for pair, verdict in zip(PAIRS, verdicts, strict=True)
        if verdict.correct != pair["correct"]
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("", None),
        ("wait, maybe 42", None),
        ("The answer is 42.", None),
        ("the boxed answer is 42", None),
        (r"\boxed{42", None),
        (r"\boxed{}", ""),
        (r"\boxed{41} \boxed{42}", "42"),
        (r"\boxed{\boxed{42}}", r"\boxed{42}"),
        (r"\boxed{\frac{1}{2}} }", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\left\{1,2\right.}", r"\left\{1,2\right."),
        (r"\\boxed{42}", "42"),
        (r"\fbox{42}", "42"),
        (r"\boxed 42", "42"),
        (r"put it in \boxed or so", None),
        ("Answer: 41\nAnswer: 42", "42"),
        ("**Final Answer:** $42$", "$42$"),
        ("Answer:\r\n\r\n42\r\n", "42"),
        ("Answer: 42<|im_end|>", "42"),
        ("Answer: 42<｜end▁of▁sentence｜>", "42"),
        ("Answer:", ""),
        ("my Answer: 42", None),
        (r"Answer: 41 \boxed{42}", "42"),
        ("\\boxed{41\nAnswer: 42", "42"),
    ],
)
def test_where_the_answer_is(response, answer):
    assert extract_answer(response) == answer


@pytest.mark.parametrize(
    "text",
    ["\\", "{", "}", "\\boxed{", "\\boxed ", "Answer:", "Answer:\n", " ", "\n", "<|", "$", "\x00", "*", "a", "9"],
)
def test_a_megabyte_of_anything_is_read_and_graded(grader, text):
    response = text * (1_000_000 // len(text))
    assert not grader.grade("42", response).correct
    assert grader.grade("42", f"{response}\n}}\nAnswer: 1\n\\boxed{{42}}").correct


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        (" $42$. ", "42"),
        (r"\$1{,}234", "1234"),
        (r"1\,234\,567", "1234567"),
        (r"(1,\ 234)", r"(1,\ 234)"),
        ("٤٢", "42"),
        ("x²⁰ − ½", "x^{20} - \\frac{1}{2}"),
        ("2√40", r"2\sqrt{40}"),
        (r"\(x\)", "x"),
    ],
)
def test_different_spellings_of_one_answer(text, cleaned):
    assert clean(text) == cleaned


def test_digits_bounds_what_would_be_written_out():
    from sympy import Integer, Pow, factorial

    assert digits(Integer(999)) < 5
    assert 3010 < digits(Pow(2, Integer(10_000), evaluate=False)) < 20_000
    assert digits(Pow(10, Pow(10, 10, evaluate=False), evaluate=False)) > 1e10
    assert digits(factorial(10**8, evaluate=False)) > 1e8
    assert digits(factorial(Pow(10, 10**6, evaluate=False), evaluate=False)) > 1e100


@pytest.mark.parametrize("answer", [r"\sum_{k=1}^{9} k - 3", r"\int_0^1 84x\,dx", r"\prod_{k=1}^{1} 42"])
def test_the_problem_restated_is_no_answer(grader, answer):
    assert not grader.grade("42", f"\\boxed{{{answer}}}").correct


@pytest.mark.parametrize("prompt", [DAPO, QWEN, LLAMA])
@pytest.mark.parametrize("before", ["", "<|begin_of_text|>", "<s> ", "<bos>"])
def test_the_response_is_what_follows_the_prompt(prompt, before):
    response = "6*7\nAnswer: 42<|im_end|>"
    assert response_of(before + prompt + response, prompt) == response
    assert response_of(before + prompt, prompt) == ""
    assert response_of(before + prompt + prompt + response, prompt) == prompt + response


def test_the_prompt_is_found_after_a_tokenizer_changed_it_or_upstream_cut_it():
    prompt = "Cafe\u0301 : how  many ?\n" + QWEN
    for decoded in (
        prompt.replace("e\u0301", "\u00e9"),
        prompt.replace(" ?", "?"),
        prompt.replace("  ", " "),
        prompt[9:],
    ):
        assert response_of(decoded + "It is 42.", prompt).strip() == "It is 42."
    assert response_of(prompt[9:] + QWEN + "42", prompt).strip() == QWEN + "42"


@pytest.mark.parametrize(
    "query", ["", "42", QWEN[:-5], "<unk>" + QWEN.replace("Solve", "<unk>") + "42", "hm" + QWEN + "42"]
)
def test_a_prompt_that_is_not_there_is_an_error(query):
    with pytest.raises(RewardError, match=r"--train\.agent_func_path"):
        response_of(query, QWEN)


def test_the_prompts_own_answer_earns_nothing():
    returned = reward_func([QWEN + "I do not know.<|im_end|>"], [QWEN], ["7"])
    assert returned["rewards"].tolist() == [0.0]
    assert returned["extra_logs"]["math_no_answer"].tolist() == [1.0]


def test_rewards_and_logs():
    responses = ["Answer: 42", r"\boxed{43}", "hm", r"\boxed{\binom{10^{9}}{999999}}"]
    returned = reward_func([QWEN + r for r in responses], [QWEN] * 4, ["42", "42", 42, 42.0], images=None)
    assert returned["rewards"].tolist() == returned["scores"].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert returned["rewards"].dtype == torch.float32
    assert returned["extra_logs"]["math_no_answer"].tolist() == [0.0, 0.0, 1.0, 0.0]
    assert returned["extra_logs"]["math_timeout"].tolist() == [0.0, 0.0, 0.0, 1.0]
    assert check_reward(reward_func([QWEN + "Answer: 42"], [QWEN], ["42"]))["rewards"] == 1.0


@pytest.mark.parametrize("label", ["", r"\frac{1", None, True, [[42]]])
def test_a_label_that_cannot_be_read_fails_the_reward(label):
    with pytest.raises(GoldError, match="gold answer"):
        reward_func([QWEN + "Answer: 42"], [QWEN], [label])


class Engine:
    """Stands for vLLM: says the same thing every time."""

    def __init__(self, tokens):
        self.tokens = tokens

    async def generate(self, *_args, **_kwargs):
        output = SimpleNamespace(token_ids=self.tokens, finish_reason="stop", logprobs=None)
        return SimpleNamespace(outputs=[output])


def respond(executor, tokenizer, prompt, response, label):
    engine = Engine(tokenizer(response, add_special_tokens=False)["input_ids"])
    params = SimpleNamespace(max_tokens=64, logprobs=None)
    return asyncio.run(executor.execute(prompt, label, params, 1024, tokenizer, engine))


def test_upstream_loads_the_reward_file_and_the_standard_library_keeps_its_math():
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    executor = SingleTurnAgentExecutor(BUILT_IN["math"])
    tokenizer = build_tokenizer([*QWEN.split("\n"), *QWEN, "Answer: ", *"42"])
    assert tokenizer.decode(tokenizer(QWEN)["input_ids"]) == QWEN
    # a tensor, or a number where a command before this test has installed the replacements
    assert float(respond(executor, tokenizer, QWEN, "Answer: 42", "42")["reward"]) == 1.0
    assert float(respond(executor, tokenizer, QWEN, "Answer: 24", "42")["reward"]) == 0.0
    assert math.isclose(math.pi, 3.14159265, rel_tol=1e-6)
    assert Path(getattr(math, "__file__", "built in")).parent != Path(BUILT_IN["math"]).parent


@pytest.mark.parametrize(
    ("name", "spellings"),
    [
        ("cm^2", ("square centimeters", r"\mathrm{~cm}^{2}")),
        ("cm^3", ("cubic centimeters", "立方厘米")),
        ("km^2", ("sq km",)),
        ("km/h", ("km per hour",)),
    ],
)
def test_a_unit_has_one_name_and_an_area_is_no_volume(name, spellings):
    assert {name_of(spelling) for spelling in spellings} == {name}
