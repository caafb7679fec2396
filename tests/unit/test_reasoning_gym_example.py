"""examples/reasoning_gym: the tasks that make.py writes, and the marks that reward.py gives."""

import json
import subprocess
import sys

import pytest

from openrlhf_ebpo.quickstart.tasks import EXAMPLE
from openrlhf_ebpo.rewards.processes.sources import load

SETTINGS = '{"min_terms": 2, "max_terms": 2, "max_digits": 2}'


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    output = tmp_path_factory.mktemp("gym") / "a new folder" / "sums.jsonl"
    argv = ["chain_sum", "--settings", SETTINGS, "--size", "8", "--validation", "3", "--output", str(output)]
    subprocess.run([sys.executable, str(EXAMPLE / "make.py"), *argv], check=True)
    files = (output, output.with_suffix(".validation.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def test_questions_are_there_once_with_all_that_training_and_evaluation_read(rows):
    train, held_out = rows
    assert (len(train), len(held_out)) == (8, 3) and len({row["question"] for row in train + held_out}) == 11
    for row in train:
        assert row["prompt"].startswith(row["question"]) and "<answer>" in row["prompt"]
        assert json.loads(row["label"])["entry"]["answer"] == row["answer"] and row["datasource"] == "chain_sum"


def test_full_marks_or_nothing_for_the_answer_as_the_prompt_asks_for_it(rows):
    reward = load(str(EXAMPLE / "reward.py"), "os.getcwd", sys.path[:])
    row = rows[0][0]
    right = row["answer"]
    earned = {
        right: 1,
        f"<answer>{right}</answer>": 1,
        f"<think>{right}1</think> It is <answer> {right} </answer>": 1,
        f"1 + 1\nAnswer: {right}": 1,
        f"<answer>{right}1</answer>": 0,
        f"<answer>{right}</answer><answer>x</answer>": 0,
        "": 0,
    }
    for response, expected in earned.items():
        found = reward([f"{row['prompt']} {response}"], [row["prompt"]], [row["label"]])
        assert found["rewards"] == expected, response


def test_thoughts_that_do_not_end_earn_nothing(rows):
    reward = load(str(EXAMPLE / "reward.py"), "os.getcwd", sys.path[:])
    row = rows[0][0]
    for opened in ("<think>\n", "<thought>"):
        prompt, end = row["prompt"] + opened, opened.strip().replace("<", "</")
        for form in ("<answer>%s</answer>", "Answer: %s", "\\boxed{%s}", "%s"):
            answer = form % row["answer"]
            for response, expected in ((answer, 0), (f"so {end} {answer}", 1)):
                assert reward([prompt + response], [prompt], [row["label"]])["rewards"] == expected, response
                if not expected:  # without a chat template
                    asked = [row["prompt"] + opened + response], [row["prompt"]], [row["label"]]
                    assert reward(*asked)["rewards"] == 0, response


def test_too_few_different_questions_are_said_in_a_line(tmp_path):
    argv = ["chain_sum", "--settings", '{"min_terms": 2, "max_terms": 2, "max_digits": 1}', "--size", "900"]
    command = [sys.executable, str(EXAMPLE / "make.py"), *argv, "--output", str(tmp_path / "x.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("error: chain_sum gave ") and not list(tmp_path.iterdir())
