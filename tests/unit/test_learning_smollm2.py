"""research/learning_smollm2.py: what is trained, in which order, and what is read from a run."""

import importlib
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lab import measured, model_scores
from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.files import append_json_line
from openrlhf_ebpo.quickstart import tiny_model
from openrlhf_ebpo.quickstart.tiny_model import build_tokenizer
from openrlhf_ebpo.rewards import gym


@pytest.fixture(scope="module")
def bench():
    return importlib.import_module("learning_smollm2")


ARMS = ["group_norm", "ebpo", "ebpo.robust"]
BOTH = ["--groups", "2", "4", "--estimators", *ARMS]


@pytest.fixture
def made(monkeypatch, bench):
    """The trainings of sums that are asked for, without training; each takes 100 seconds."""
    jobs, now = [], [0.0]

    def one(job, seed, work):
        if job.estimator in failing:
            raise ReportedError("no")
        jobs.append((seed, job.group, job.estimator))
        now[0] += 100
        lead = {"group_norm": 0.0, "ebpo": 0.05, "ebpo.robust": 0.10}[job.estimator]
        settings = {"prompts_per_step": 64, "n_samples_per_prompt": job.group, "tasks": 128, "samples": 4}
        end = 0.2 + lead * (1 + 0.1 * seed)
        solved = {"4": 2 * end, "16": 3 * end}
        return {"end": end, "pass": solved, "warm_start": "model@1", "prompts": f"{seed}-{job.group}", **settings}

    failing: set[str] = set()
    monkeypatch.setattr(bench.SmolLM2, "one", one)
    monkeypatch.setattr(measured, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return SimpleNamespace(jobs=jobs, failing=failing)


def test_no_seed_is_begun_after_the_minutes_and_what_is_begun_is_finished(bench, made, tmp_path, capsys):
    argv = [*BOTH, "--output", str(tmp_path), "--minutes", "15", "--seeds", *map(str, range(1, 9))]
    bench.main(argv)
    assert [seed for seed, _, _ in made.jobs] == [1] * 6 + [2] * 6 and len(set(made.jobs)) == 12
    assert "15 minutes are over: seed 3 is left for another call" in capsys.readouterr().out
    bench.main(argv)
    assert {seed for seed, _, _ in made.jobs[12:]} == {3, 4}


def test_a_training_that_fails_loses_nothing_that_was_finished(bench, made, tmp_path):
    made.failing.add("ebpo.robust")
    argv = [*BOTH, "--output", str(tmp_path), "--seeds", "1"]
    with pytest.raises(SystemExit, match="no"):
        bench.main(argv)
    made.failing.clear()
    bench.main(argv)
    assert sorted(made.jobs) == sorted((1, g, name) for g in (2, 4) for name in ARMS)


def test_each_number_of_responses_has_a_table_with_paired_differences(bench, made, tmp_path, capsys):
    seeds = ["--seeds", "1", "2", "3"]
    bench.main([*BOTH, *seeds, "--output", str(tmp_path), "--export", str(tmp_path / "all.json")])
    text = capsys.readouterr().out
    assert "**G = 2, 64 prompts a step, 40 steps**" in text and "**G = 4, " in text and "NOT the same" not in text
    # differences 0.055, 0.06, 0.065: 0.005 / sqrt(3) x 4.303
    assert text.count("| EBPO | 0.255 | 0.260 | 0.265 | 0.260 |  | +0.060 ± 0.012 |") == 2
    assert text.count("| EBPO robust | 0.310 | 0.320 | 0.330 |") == 2
    assert text.count("| pass@4 | pass@16 | pass@16 minus GRPO's |") == 2
    assert text.count("| 0.520 | 0.780 | +0.180 ± 0.037 |") == 2  # three times those of pass@1
    bench.main(["--table", "--output", str(tmp_path / "all.json")])
    assert capsys.readouterr().out == text


def test_every_group_size_has_as_many_responses_and_the_prompts_follow_the_seed(bench, tmp_path):
    def flags(name, group):
        return bench.SmolLM2(name, 20, group, "sums", 128).flags(tmp_path, tmp_path / "a", 7)

    two, four = flags("group_norm", 2), flags("ebpo.robust", 4)
    assert {f["rollout.batch_size"] * f["rollout.n_samples_per_prompt"] for f in (two, four)} == {128}
    assert two["data.order"] == "shuffle" and two["train.seed"] == 7 and two["data.max_samples"] == 20 * 64
    assert four["algo.advantage.ebpo.preset"] == "robust" and "algo.advantage.ebpo.preset" not in two
    assert two["eval.n_samples_per_prompt"] == 16 and two["eval.steps"] == 20


def test_a_result_is_read_from_the_run(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "prompts_identity", lambda run_dir: "p")
    for step in (1, 2):
        row = {"rollout/reward_mean": step / 10, "rollout/response_length_mean": 30.0 + step, "timing/step_total": 9.0}
        row |= {"rollout/truncated_rate": 0.5, "policy/entropy": 1.0 - step / 4}
        append_json_line(tmp_path / "metrics.jsonl", {"step": step, **row})
    solved = {"eval_chain_sum_pass1": 0.25, "eval_chain_sum_pass4": 0.5, "eval_chain_sum_pass16": 0.75}
    append_json_line(tmp_path / "metrics.jsonl", {"step": 2, **solved})
    found = bench.SmolLM2("ebpo", 20, 2, "sums", 128).result(tmp_path)
    assert found["end"] == 0.25 and found["pass"] == {"4": 0.5, "16": 0.75}
    assert found["rewards"] == [0.1, 0.2] and found["length"] == 31.5 and found["truncated"] == 0.5
    assert found["entropy"] == [0.75, 0.5]


def test_the_start_is_evaluated_once_with_a_step_at_learning_rate_zero(bench, tmp_path, monkeypatch):
    trained = []

    def launch(command, flags, log):
        trained.append((flags["actor.adam.lr"], flags["eval.steps"], flags["advantage_estimator"]))
        run = flags["logger.run_dir"]
        (run.parent / "model").mkdir()
        run.mkdir()
        row = {"rollout/reward_mean": 0.0, "rollout/response_length_mean": 30.0, "rollout/truncated_rate": 0.0}
        append_json_line(run / "metrics.jsonl", {"step": 1, "policy/entropy": 1.0, "timing/step_total": 9.0, **row})
        append_json_line(run / "metrics.jsonl", {"step": 1, "eval_a_pass1": 0.1 * len(trained), "eval_a_pass16": 0.3})

    monkeypatch.setattr("openrlhf_ebpo.quickstart.launch.launch", launch)
    monkeypatch.setattr(bench.SmolLM2, "prepare", lambda job, work: None)
    monkeypatch.setattr(bench, "prompts_identity", lambda run_dir: "p")
    monkeypatch.setattr(bench, "model_identity", lambda model: "m")
    first, second = (bench.SmolLM2("ebpo", 20, 2, "sums", 128).one(seed, tmp_path) for seed in (1, 2))
    assert trained == [(0, 1, "group_norm"), (3e-5, 20, "ebpo"), (3e-5, 20, "ebpo")]
    assert {each["start"] for each in (first, second)} == {0.1} and first["start_pass"] == {"16": 0.3}
    assert (first["end"], second["end"]) == pytest.approx((0.2, 0.3))


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--steps", "0"], "--steps 0: give 1 or more"),
        (["--groups", "3"], "--groups 3: give 2 or more that divide --responses 32"),
    ],
)
def test_mistakes_are_named(bench, tmp_path, argv, expected):
    with pytest.raises(SystemExit, match=expected):
        bench.main(["--output", str(tmp_path), *argv])


def test_without_a_network_it_says_how_the_model_comes_here(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(bench.subprocess, "run", lambda words: subprocess.CompletedProcess(words, 1))
    with pytest.raises(ReportedError, match=r"-m pip failed.*put its folder at .*model"):
        bench.fetch(tmp_path)


@pytest.mark.parametrize("name", ["sums", "short"])
def test_the_reward_reads_the_answers_of_the_examples(bench, name):
    for question, answer in bench.TASKS[name].examples:
        sum_of_terms = eval(question.removeprefix(bench.SUM).removesuffix("="))
        assert gym.answer_of(answer) == str(sum_of_terms)


def test_the_tiny_tokenizer_reads_the_prompts_as_they_are(bench):
    """The reward takes what is behind the prompt for the response."""
    task = bench.TASKS["sums"]
    prompt = task.template.format(question=f"{bench.SUM} 7 - 8 + 6 =")
    tokenizer = build_tokenizer(task.texts)
    assert tokenizer.decode(tokenizer(prompt)["input_ids"]) == prompt


# κ of a language model (kappa.py --model)


@pytest.fixture(scope="module")
def tiny(bench, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    tiny_model.build(folder, bench.TASKS["short"].texts, max_position_embeddings=256)
    return folder


def test_scores_are_true_gradients_and_are_kept_task_by_task(tiny, tmp_path):
    job = model_scores.ModelScores(str(tiny), "short", group=2)
    found = measured.measure([job], range(2), tmp_path).of(job)
    again = measured.measure([job], range(2), tmp_path).of(job)
    assert again == found and len(found) == 2 and all(len(each["norms"]) == 2 for each in found)
    policy, _ = model_scores.load(str(tiny))
    prompt, response = torch.arange(4, 12), torch.tensor([5, 9, 4])
    norm, proxy = model_scores.score(policy, prompt, response)
    logits = policy(torch.cat([prompt, response])[None]).logits[0, 7:10]
    log_probs = logits.log_softmax(-1)[torch.arange(3), response]
    gradients = torch.autograd.grad(log_probs.sum(), [*policy.parameters()])
    assert norm == pytest.approx(sum(float((each**2).sum()) for each in gradients), rel=1e-4)
    assert proxy == pytest.approx(float(((1 - log_probs.detach().exp()) ** 2).sum()), rel=1e-4)


def test_kappa_is_pooled_and_within_tasks_with_an_interval_over_tasks():
    passed = np.array([[1, 0], [1, 0], [0, 0], [1, 1]] * 5, float)
    sizes = np.array([[1, 3], [2, 4], [9, 9], [1, 1]] * 5, float)
    assert model_scores.pooled(passed, sizes) == pytest.approx((3 + 4 + 9 + 9) / 4 / ((1 + 2 + 1 + 1) / 4))
    assert model_scores.within(passed, sizes) == pytest.approx((3 + 4) / (1 + 2))
    found = model_scores.with_interval(model_scores.within, passed, sizes)
    assert found.value == pytest.approx(7 / 3) and found.low < found.value < found.high
    assert np.isnan(model_scores.with_interval(model_scores.pooled, np.zeros((3, 2)), np.ones((3, 2))).value)
