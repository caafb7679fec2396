"""A reward is asked for what it should know before anybody is trained, and the labels of `math` are read."""

import asyncio
import contextlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from openrlhf_ebpo.data import labels
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.rewards.reward_settings import RewardSettings
from openrlhf_ebpo.train import reward_probe
from openrlhf_ebpo.train.reward_check import MATH, report
from openrlhf_ebpo.train.reward_probe import SERVER_CALLS, Row, answer_of, forms, probe_reward

BOX = '"\\\\boxed{%s}" % l in q[len(p):]'
ALL_PAID = "reward: 20 of 20 labels earn 1 as their own answer, 0 of 20 wrong ones do, an empty response earns 0"


def shares(line: str) -> list[str]:
    """Of the labels, and of the wrong answers, how many are paid."""
    return re.findall(r"\d+ of \d+", line)


def rows(*values, prompt="What is it? "):
    return [Row(f"row {i}", prompt, value, answer_of(value)) for i, value in enumerate(values, 1)]


def lines(reward, asked, end="", timeout=20.0) -> list[str]:
    settings = RewardSettings((str(reward),), None, timeout, 512, 4)
    found = asyncio.run(probe_reward(settings, asked, 1.0, end))
    return report(found, "--reward.remote_url R", "label", str(reward) == MATH)


@pytest.fixture
def reward(tmp_path):
    """The body of reward_func, which returns the reward of q, p and l -> a real file."""

    def write(body: str):
        path = tmp_path / "reward.py"
        text = (
            "import os, time\ndef reward_func(queries, prompts, labels):\n    q, p, l = queries[0], prompts[0], "
            "labels[0]\n"
        )
        path.write_text(f"{text}    {body}\n")
        return path

    return write


def test_math_pays_its_labels_as_the_prompt_asks_for_them(grader):
    asked = [
        "What is it?",
        "Put it in \\boxed{}.",
        'End with "Answer: $Answer".',
        "写出答案：",
        "<think> first, <answer> then",
    ]
    labels = [7, "\\frac{1}{2}", ["3"], "So 2 + 2 = 4.\n#### 4"]
    found = [lines(MATH, rows(*labels, prompt=prompt)) for prompt in asked]
    assert found == [[ALL_PAID.replace("20", "4")]] * len(asked)


def test_math_that_pays_none_of_its_labels_is_an_error(grader):
    asked = [Row(f"row {i}", "p", str(i), str(i + 1)) for i in range(4)]
    with pytest.raises(UsageError, match=r"0 of 4 .*row 0[\s\S]*--data\.label_key"):
        lines(MATH, asked)


def test_a_file_pays_its_labels(reward):
    assert lines(reward(f"return [float({BOX})]"), rows(*map(str, range(20)))) == [ALL_PAID]


def test_the_first_label_that_is_not_paid_is_named(reward):
    (found,) = lines(reward(f'return float(l != "7" and {BOX})'), rows(*map(str, range(20))))
    assert shares(found) == ["19 of 20", "0 of 20"] and "row 8)" in found


def test_a_reward_that_pays_everything_or_nothing_is_warned_of(reward):
    said, *warnings = lines(reward("return 1"), rows("1", "2"))
    assert shares(said) == ["2 of 2", "2 of 2"] and said.endswith(" earns 1")
    assert [line.startswith("warning: --reward.remote_url R ") for line in warnings] == [True, True]
    said, warning = lines(reward("return 0"), rows("1", "2"))
    assert shares(said) == ["0 of 2", "0 of 2"] and "--data.label_key" in warning


def test_a_reward_that_pays_thoughts_that_do_not_end_is_warned_of(reward, grader):
    asked = rows("1", "2", prompt="Put it in \\boxed{}.\n<think>\n")
    said, warning = lines(reward(f"return float({BOX})"), asked)
    assert shares(said) == ["2 of 2", "0 of 2"] and "thoughts that do not end" in warning
    assert len(lines(reward(f"q = q.partition('</think>')[2]; p = ''; return float({BOX})"), asked)) == 1
    assert len(lines(MATH, asked)) == 1


def test_a_reward_that_forgets_the_end_token_is_warned_of(reward):
    body = 'return float(q[len(p):] == "\\\\boxed{%s}" % l)'
    said, warning = lines(reward(body), rows("1", "2"), end="<|im_end|>")
    assert shares(said) == ["2 of 2", "0 of 2"] and warning.startswith("warning: ") and "'<|im_end|>'" in warning


def test_a_call_that_fails_is_counted_and_the_others_are_paid(reward):
    body = f"assert len(q) > len(p), 'nothing to read'; return float({BOX})"
    said, warning = lines(reward(body), rows(*map(str, range(20))))
    assert shares(said) == ["20 of 20", "0 of 20"]
    assert shares(warning) == ["1 of 41"] and "row 1: AssertionError: nothing to read (" in warning


def test_a_reward_that_always_fails_is_an_error(reward):
    with pytest.raises(UsageError, match=r"row 1.*KeyError: 'x'"):
        lines(reward("return {}['x']"), rows(*map(str, range(20))))


def test_a_reward_that_hangs_takes_a_limited_time_and_leaves_no_process(reward, monkeypatch):
    monkeypatch.setattr(reward_probe, "SECONDS", 2.0)
    assert "gave no reward in " in lines(reward("time.sleep(1000)"), rows("1", "2"), timeout=600)[0]


@contextlib.contextmanager
def server(pays):
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            text = json.dumps({"rewards": [float(pays(asked[-1]))]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}/get_reward", asked
        made.shutdown()


@pytest.mark.parametrize("word", ["\\boxed{%s}", "%s", "nothing %s"])
def test_a_server_is_asked_few_times(word):
    with server(lambda body: body["query"][0].endswith(word % body["labels"][0])) as (address, asked):
        found = lines(address, rows(*map(str, range(reward_probe.SERVER_ROWS))))
    paid = 0 if "nothing" in word else reward_probe.SERVER_ROWS
    assert shares(found[0])[0] == f"{paid} of {reward_probe.SERVER_ROWS}"
    assert 3 < len(asked) <= SERVER_CALLS


def test_a_server_that_is_not_there_is_a_warning():
    found = lines("http://127.0.0.1:9/", rows("1"))
    assert len(found) == 1 and found[0].startswith("warning: ") and "Cannot connect" in found[0]


def test_an_object_is_not_an_answer_and_a_prompt_may_have_opened_its_thoughts():
    assert [answer_of(label) for label in ('{"tests": []}', {"a": 1}, None, "", "{1,2}", True)] == [None] * 4 + [
        "{1,2}",
        "True",
    ]
    assert all(form.startswith("\n</think>") for form in forms("<|assistant|><think>\n"))
    assert all(form.startswith("\n</thought>") for form in forms("<thought>"))
    assert all(form.startswith("<think>\n\n</think>") for form in forms("Think in <think> tags.\n<|assistant|>"))
    assert forms("<think>\n\n</think>\n\n") == forms("")
    assert forms("Put it in \\boxed{}.") == ["\\boxed{ANSWER}"]


# --- the labels of math


def test_readable_labels_are_silent(grader):
    assert labels.label_notices("S", "label", [7, "7", 1e-5, ["7"], "so\n#### 7", "\\frac{1}{2}", "1, 2"]) == []


def test_some_unreadable_labels_are_a_warning_with_the_first_row(grader):
    (found,) = labels.label_notices("--data.prompt_dataset d", "label", ["1"] * 96 + ["", True, "\\frac{1}{", ""])
    assert found.startswith("warning: --data.prompt_dataset d: 4 of 100 ") and "row 97" in found


@pytest.mark.parametrize(
    "label", ["", True, "we add both numbers first and then we take the half of it, which is the area"]
)
def test_mostly_unreadable_labels_are_an_error(label, grader):
    with pytest.raises(UsageError, match=r"S: 3 of 5 labels .* row 2: .* --data\.label_key"):
        labels.label_notices("S", "solution", ["1", label, label, label, "2"])


def test_labels_for_which_the_time_is_too_short_are_counted(grader, monkeypatch):
    assert labels.read_labels(["1/2", "1/2", "1/3", "4"], seconds=-1).untried == 3
