"""Evaluation during training: metrics against enumeration, flags, and its answers as results that all readers find."""

import itertools
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from space_runs import training_arguments

from openrlhf_ebpo.command import nested
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.eval.evaluation_report import write_report
from openrlhf_ebpo.eval.in_training import task_name
from openrlhf_ebpo.rewards.answers import NO_GOLD, SameAnswer, packaged
from openrlhf_ebpo.rewards.settings import RewardSettings
from openrlhf_ebpo.run import run_log
from openrlhf_ebpo.run.results import TRAINING, find_results, save_result, step_directory
from openrlhf_ebpo.run.votes import best_at_k, pass_at_k
from openrlhf_ebpo.training.eval_metrics import EvalMetric, EvalSettings, data_sources, parse
from openrlhf_ebpo.training.evaluation import Answered, Evaluation, keep_answers, metrics, value

MATH = "math.py"


@pytest.mark.parametrize("n", [1, 2, 5])
def test_best_at_k_is_the_mean_over_all_subsets_for_rewards_of_any_size(n):
    rewards = np.random.default_rng(n).normal(size=(7, n)).round(1)
    for k in range(1, n + 1):
        expected = [np.mean([max(chosen) for chosen in itertools.combinations(row, k)]) for row in rewards]
        np.testing.assert_allclose(best_at_k(rewards, k), expected, atol=1e-14)
        passed = rewards > 0
        np.testing.assert_allclose(best_at_k(passed.astype(float), k), pass_at_k(passed, k), atol=1e-14)


def prompt(number: int, passed: list[bool], classes: list[int] | None, source: str = "default") -> Answered:
    n = len(passed)
    return Answered(
        source=source,
        prompt=f"What is {number} + 1?",
        label=str(number + 1),
        rewards=[float(each) for each in passed],
        passed=passed,
        responses=[f"I think \\boxed{{{number + 1 if each else i}}}." for i, each in enumerate(passed)],
        lengths=list(range(5, 5 + n)),
        truncated=[False] * n,
        errors=[None] * n,
        answers=[str(number + 1 if each else i) for i, each in enumerate(passed)] if classes else [None] * n,
        classes=classes,
    )


def vote(each: Answered, chosen: tuple[int, ...]) -> float:
    votes = [each.classes[i] for i in chosen if each.classes[i] >= 0]
    leaders = [name for name in set(votes) if votes.count(name) == max(map(votes.count, votes))]
    right = [any(each.passed[i] for i in range(len(each.passed)) if each.classes[i] == name) for name in leaders]
    return float(np.mean(right)) if right else 0.0


def test_metrics_are_those_asked_for_of_each_data_source_in_any_order_of_prompts():
    prompts = [
        prompt(0, [True, False, False, True], [0, 1, 1, 0]),
        prompt(1, [False, False, True, False], [1, -1, 0, 2]),
        prompt(2, [True, True, True, True], [0, 0, 0, 0]),
        prompt(3, [False] * 4, [-1] * 4, "other/set"),
    ]
    asked = parse("maj@3, pass@2,maj@3")
    found = metrics(prompts, asked)
    assert found == metrics(prompts[::-1], asked)
    own = prompts[:3]
    majority = np.mean([[vote(each, chosen) for chosen in itertools.combinations(range(4), 3)] for each in own])
    passes = np.mean([[any(pair) for pair in itertools.combinations(each.passed, 2)] for each in own])
    assert found == {
        "eval_default_maj3": pytest.approx(majority),
        "eval_other/set_maj3": 0,
        "eval_default_pass2": pytest.approx(passes),
        "eval_other/set_pass2": 0,
    }


@pytest.fixture
def values(tmp_path):
    data = tmp_path / "held_out.jsonl"
    data.write_text(json.dumps({"prompt": "1 + 1?", "label": "2"}) + "\n")
    return {
        "eval.metrics": None,
        "eval.dataset": str(data),
        "eval.steps": 5,
        "eval.n_samples_per_prompt": 16,
        "ckpt.best_metric_key": "",
        "reward.remote_url": str(rewards_path(MATH)),
        "train.agent_func_path": None,
        "reward.timeout": None,
        "reward.memory": 512,
        "reward.workers": None,
    }


def check(values: dict) -> None:
    EvalSettings.from_args(nested(values)).check()


def rewards_path(name: str):
    from openrlhf_ebpo.checks.preflight import REWARDS

    return REWARDS / name


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"eval.metrics": "maj16"},
            r"--eval.metrics 'maj16': write pass@K or maj@K, such as --eval.metrics pass@8,maj@16",
        ),
        ({"eval.metrics": "pass@0"}, "--eval.metrics 'pass@0': write"),
        ({"eval.metrics": "pass@8,maj@32"}, r"maj@32: needs 32 responses to a prompt, and .* is 16$"),
        (
            {"eval.metrics": "pass@2", "eval.steps": -1},
            "--eval.metrics: nothing is evaluated .* --eval.dataset and --eval.steps",
        ),
        ({"ckpt.best_metric_key": "eval_default_response_length_mean"}, "mean: not a score of the evaluations"),
        ({"eval.metrics": "pass@2", "eval.dataset": None}, "--eval.metrics: nothing is evaluated during training"),
        (
            {"eval.metrics": "pass@2,maj@2", "reward.remote_url": "mine/math.py"},
            "maj@2: a vote needs answers, .* use math as",
        ),
        (
            {"ckpt.best_metric_key": "maj@16"},
            "--ckpt.best_metric_key maj@16: not a score of the evaluations.*pass@1, pass@16, by",
        ),
        (
            {"ckpt.best_metric_key": "eval_math_pass1"},
            "full names eval_default_pass1, eval_default_pass16; --eval.metrics adds",
        ),
        ({"ckpt.best_metric_key": "pass@1", "eval.steps": -1}, "--ckpt.best_metric_key pass@1: nothing is evaluated"),
    ],
)
def test_what_cannot_be_had_is_named_at_the_start(values, changes, expected):
    with pytest.raises(UsageError, match=expected):
        check({**values, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"eval.dataset": None, "eval.steps": -1, "ckpt.best_metric_key": "none"},
        {"eval.metrics": "pass@1,maj@16,pass@16", "ckpt.best_metric_key": "maj@16"},
        {"eval.metrics": "maj@4", "ckpt.best_metric_key": "eval_default_maj4"},
        {"ckpt.best_metric_key": "eval_default_pass16"},
        {"eval.dataset": "OWNER/NAME", "ckpt.best_metric_key": "eval_aime24_pass1"},
        {"eval.metrics": "pass@8", "reward.remote_url": "http://host/reward"},
    ],
)
def test_what_can_be_had_is_let_through(values, changes):
    check({**values, **changes})


def test_an_agent_of_ones_own_gives_the_rewards_whatever_the_other_flag_says():
    url = str(rewards_path(MATH))
    assert packaged(RewardSettings((url,))) == "math"
    assert packaged(RewardSettings((url,), "agent.py")) is packaged(RewardSettings(("mine/math.py",))) is None
    assert packaged(RewardSettings()) is None


def test_data_sources_are_read_where_that_is_cheap(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "a.jsonl").write_text('{"datasource": "amc"}\n{"prompt": "?"}\n')
    pq.write_table(pa.table({"datasource": ["aime", "aime"], "prompt": ["a", "b"]}), tmp_path / "b.parquet")
    assert data_sources(f"{tmp_path / 'a.jsonl'},{tmp_path / 'b.parquet'}") == {"amc", "default", "aime"}
    assert data_sources("OWNER/NAME") is None
    for content in ("{\n", '{"prompt": "?"}\n[1]\n'):
        (tmp_path / "broken.jsonl").write_text(content)
        assert data_sources(str(tmp_path / "broken.jsonl")) is None


def arguments(reward: str | None = None) -> SimpleNamespace:
    found = training_arguments(4)
    found.reward.remote_url = [reward] if reward else None
    found.eval.metrics = "maj@2,pass@3"
    return found


def evaluation(*prompts: Answered) -> Evaluation:
    found = Evaluation({"eval_default_pass1": 0.5})
    found.answered = prompts
    return found


@pytest.fixture
def run_dir(tmp_path):
    """Answers of the steps 2 and 4, with two data sources."""
    for step, passed in ((2, [True, False, False, False]), (4, [True, True, True, False])):
        found = evaluation(prompt(0, passed, [0, 1, 1, -1]), prompt(1, passed, [0, 1, 1, -1], "../x"))
        keep_answers(tmp_path, step, found, arguments(str(rewards_path(MATH))))
    return tmp_path


def test_answers_are_results_of_the_protocol_training(run_dir):
    found = [each for each in find_results(run_dir) if each.task == "default"]
    assert [(each.step, each.n) for each in found] == [(2, 4), (4, 4)]
    assert {path.parent.parent.name for path in run_dir.glob("eval/*/*/step-*")} == {TRAINING}
    assert found[-1].path == step_directory(run_dir / "eval", TRAINING, "default", 4)
    summary = found[-1].summary
    assert summary["metrics"]["pass@1"]["value"] == 0.75 and summary["metrics"]["no_answer"] == 0.25
    assert {"pass@1", "pass@2", "pass@3", "pass@4", "maj@2", "maj@4"} <= set(summary["metrics"])
    assert summary["metrics"]["maj@2"]["value"] == pytest.approx(
        value(EvalMetric("maj", 2), [prompt(0, [True] * 3 + [False], [0, 1, 1, -1])])
    )
    assert summary["protocol"]["temperature"] == 0.6 and summary["protocol"]["max_new_tokens"] == 64
    assert found[-1].samples.classes.tolist() == [[0, 1, 1, -1]]
    text = write_report([run_dir], run_dir / "report").read_text()
    assert "Protocol **training**" in text and "| default | 25.0" in text
    assert re.search(r"\| task \| model \|.* pass@3 .* maj@2 \| maj@4 \|", text)


def test_a_report_leaves_them_out_where_there_are_others_unless_asked(run_dir):
    other = find_results(run_dir)[-1]
    summary = {**other.summary, "protocol": {**other.protocol, "name": "default", "n": 4}}
    rows = run_log.pq.read_table(other.path / "samples.parquet").to_pylist()
    save_result(step_directory(run_dir / "eval", "default", "default", 4), summary, rows)
    assert "Protocol **default**" in write_report([run_dir], run_dir / "report").read_text()
    assert "Protocol **training**" in write_report([run_dir], run_dir / "report", protocol=TRAINING).read_text()


def test_the_space_chooses_others_first():
    from openrlhf_ebpo.space.results import largest_protocol

    found = [SimpleNamespace(protocol=name) for name in ("training", "training", "greedy")]
    assert largest_protocol(found) == "greedy" and largest_protocol(found[:2]) == "training"


def test_without_knowing_answers_there_is_no_vote(tmp_path):
    keep_answers(tmp_path, 2, evaluation(prompt(0, [True, False, False, False], None)), arguments())
    (found,) = find_results(tmp_path)
    assert "no_answer" not in found.summary["metrics"] and not any("maj" in name for name in found.summary["metrics"])
    assert found.samples.classes is None
    text = write_report([tmp_path], tmp_path / "report").read_text()
    table = text.partition("## pass@k and maj@k")[2].partition("Unbiased")[0]
    assert "pass@4" in table and "maj@" not in table


def test_an_evaluation_that_is_repeated_takes_the_place_of_the_first(run_dir):
    keep_answers(run_dir, 4, evaluation(prompt(0, [False] * 4, [0] * 4)), arguments(str(rewards_path(MATH))))
    found = {(each.task, each.step): each.summary["metrics"]["pass@1"]["value"] for each in find_results(run_dir)}
    assert found["default", 4] == 0 and found["default", 2] == 0.25


def test_metrics_alone_leave_nothing_behind(tmp_path):
    keep_answers(tmp_path, 2, Evaluation({"eval_default_pass1": 0.5}), arguments())
    keep_answers(tmp_path, 2, {"eval_default_pass1": 0.5}, arguments())
    assert not list(tmp_path.iterdir())


def test_a_data_source_never_leaves_its_folder_nor_shares_one():
    names = ["default", "../../x", "a/b", "a-b", "..", "", "x" * 300, "x" * 301, "A B"]
    found = [task_name(name) for name in names]
    assert len(set(found)) == len(names) and found[0] == "default" and found[3] == "a-b"
    assert all(0 < len(name) < 120 and "/" not in name and name.strip(".") for name in found)


def test_a_metric_is_spelled_as_upstream_spells_its_own():
    assert [each.suffix for each in parse("pass@16,maj@4")] == ["_pass16", "_maj4"]
    assert str(EvalMetric("maj", 16)) == "maj@16" and parse(None) == parse("") == []


def test_only_so_many_wrong_answers_to_a_question_are_compared():
    asked = []
    same = SameAnswer(lambda gold, answer: (asked.append((gold, answer)) or True, None))
    found = [same("x", f"y_{i}") for i in range(67)]
    assert found == [True] * 64 + [False] * 3 and len(asked) == 64  # docs/train.md
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
