"""A step that teaches nothing, or whose answers are not read, is said, with why, and not a thousand times."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from openrlhf_ebpo.command import nested
from openrlhf_ebpo.upstream.controller.step_notices import (
    SUMMARY,
    UNREAD,
    ZERO_ADVANTAGE,
    StepNotices,
    count_steps,
    is_unread,
    lasting_warning,
    step_metrics,
    unread_warning,
    zero_notice,
)


def result(rewards, advantages=None, valid=None):
    rewards = np.array(rewards, float)
    deviations = rewards - rewards.mean(-1, keepdims=True)
    return SimpleNamespace(
        rewards=rewards,
        advantages=deviations if advantages is None else np.array(advantages, float),
        valid=np.ones_like(rewards, bool) if valid is None else np.array(valid),
    )


@pytest.mark.parametrize(
    ("batch", "nothing"),
    [
        (result([[0, 0], [0, 0]]), True),
        (result([[0, 0], [0, 0]], advantages=[[-0.5, -0.5], [-0.5, -0.5]]), False),  # a baseline that expected more
        (result([[0, 0], [1, 1]]), True),  # to GRPO
        (result([[0, 0], [1, 1]], advantages=[[-1, -1], [1, 1]]), False),  # and to EBPO
        (result([[0.1, 0.1], [0.3, 0.3]], advantages=[[1e-9, -1e-9], [0, 0]]), True),
        (result([[0, 1], [0, 0]]), False),
        (result([[0, 1], [0, 0]], advantages=[[0, 9], [0, 0]], valid=[[True, False], [True, True]]), True),
    ],
)
def test_which_steps_have_only_zero_advantages(batch, nothing):
    assert step_metrics(batch, []) == {ZERO_ADVANTAGE: float(nothing)}


@pytest.mark.parametrize(
    ("rewards", "metrics", "words"),
    [
        (
            [[0, 0]],
            {"math_no_answer": 1.0, "rollout/truncated_rate": 1.0},
            "no response passed; 100 % without an answer; 100 % cut",
        ),
        ([[0, 0]], {"rollout/truncated_rate": 0.0, "math_no_answer": None}, "no response passed"),
        ([[0.25, 0.25]], {}, "no response passed, each earned 0.25"),
        ([[1, 1]], {"rollout/truncated_rate": 0.0}, "every response passed"),
        ([[0, 0], [1, 1]], {}, "in every group all responses earned the same"),
    ],
)
def test_reasons_for_zero_advantage(rewards, metrics, words):
    assert zero_notice(7, result(rewards), metrics, passes=1.0) == f"step 7: all advantages are zero, {words}"


def test_a_thousand_such_steps_are_ten_lines_of_each_kind(capsys):
    notices = StepNotices()
    for step in range(7, 1007):
        for kind in ("zero", "stale"):
            notices.print_if_due(kind, lambda kind=kind, step=step: f"step {step}: {kind}")
    printed = capsys.readouterr().out.splitlines()
    zero = [line for line in printed if "zero" in line]
    assert zero[:3] == ["step 7: zero", "step 8: zero (2 such steps so far)", "step 10: zero (4 such steps so far)"]
    assert len(zero) == 10 and len(printed) == 20


def test_the_end_of_a_run_counts_them():
    rows = [{"step": step, ZERO_ADVANTAGE: float(step <= 31)} for step in range(1, 41)]
    assert count_steps([*rows, {"step": 41}], ZERO_ADVANTAGE, SUMMARY).startswith(
        "31 of 40 steps had only zero advantages: "
    )
    assert [count_steps(few, ZERO_ADVANTAGE, "") for few in (rows[31:], [], [{"step": 1}])] == [None] * 3


def rows_of(zero: int, others: int, **metrics) -> list[dict]:
    metrics = {name.replace("__", "/"): value for name, value in metrics.items()}
    return [{ZERO_ADVANTAGE: 1.0, **metrics} for _ in range(zero)] + [{ZERO_ADVANTAGE: 0.0}] * others


@pytest.mark.parametrize(
    ("metrics", "first", "second"),
    [
        ({"ebpo__all_fail_fraction": 1.0}, "(1) no response passes in 100%", "(2) the responses of a prompt earn the"),
        (
            {"ebpo__all_fail_fraction": 1.0, "rollout__no_answer": 0.9},
            "(1) no response passes",
            "(2) the reward reads no",
        ),
        (
            {"ebpo__all_fail_fraction": 0.9, "rollout__truncated_rate": 1.0},
            "(1) 100% of the responses are cut",
            "(2) no r",
        ),
        ({"ebpo__all_pass_fraction": 1.0}, "(1) every response passes in 100%", "(2) the responses of a prompt"),
    ],
)
def test_a_run_that_mostly_taught_nothing_ends_with_its_likely_causes(metrics, first, second):
    found = lasting_warning(rows_of(40, 6, **metrics), "--data.input_template is 'Q: {}'", "I think\x1b[2J so")
    assert found.startswith("40 of 46 steps taught nothing: all advantages were zero. Most likely: ")
    assert first in found and second in found and "(3)" not in found and "\x1b" not in found
    if "no response passes" in first:
        assert "is this the template the model was trained with? --data.input_template is 'Q: {}'" in found
        assert "'I think [2J so'" in found


def test_a_run_that_mostly_learns_ends_without_it():
    assert lasting_warning(rows_of(20, 26), "", "") is None
    assert lasting_warning([], "", "") is None and lasting_warning([{"step": 1}], "", "") is None


def test_the_end_of_a_run_is_written_into_run_json_and_never_fails_it(tmp_path, capsys):
    from openrlhf_ebpo.train.driver import lasting_warning

    shutil.copytree(Path(__file__).parents[1] / "data" / "quickstart_run", tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    metrics.write_text("".join(json.dumps({"step": step, ZERO_ADVANTAGE: 1.0}) + "\n" for step in range(1, 9)))
    flags = {"data.apply_chat_template": True}
    settings = SimpleNamespace(run=SimpleNamespace(run_dir=tmp_path / "run"), args=nested(flags))
    found = lasting_warning(settings)
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert found.startswith("8 of 8 steps taught nothing") and run["warning"] == found and run["status"] == "complete"
    for path in (tmp_path / "run" / "rollouts").iterdir():
        path.write_bytes(b"no Parquet")
    assert lasting_warning(settings) is None and "were not summed up" in capsys.readouterr().err


def sample(no_answer=None, truncated=False, name="math_no_answer"):
    info = {} if no_answer is None else {name: torch.tensor([no_answer])}
    return SimpleNamespace(info=info, truncated=torch.tensor([truncated]))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (sample(1.0), True),
        (sample(0.0), False),
        (sample(1.0, name="judge_no_answer"), True),
        (sample(1.0, truncated=True), None),
        (sample(), None),
    ],
)
def test_only_complete_responses_count(given, expected):
    assert is_unread(given) is expected


def test_the_share_is_that_of_the_complete_responses():
    assert step_metrics(result([[0, 1]]), [True, None, False, None, False, False])[UNREAD] == 0.25
    assert UNREAD not in step_metrics(result([[0, 1]]), [None, None])


def test_the_warning_quotes_a_response():
    line = unread_warning(8, 0.25, "It is\n\x1b[31mseven.")
    assert line.startswith("warning: step 8: the reward reads no answer in 25% of the complete responses")
    assert "It is" in line and "seven." in line and "\n" not in line and "\x1b" not in line
