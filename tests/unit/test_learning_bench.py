"""The pieces of research/learning.py: what it compares estimators with must itself be right."""

import importlib
import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from openrlhf_ebpo.errors import UsageError

CELL = {"start": 0.0, "steps": 15, "rollouts": 8, "group": 2}


@pytest.fixture(autouse=True)
def one_thread():
    """Two threads of so small a model wait for each other where the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def bench(monkeypatch):
    """The benchmark's modules, and a cell of 15 steps that begins with random weights."""
    lab = ["policy", "tasks", "warm_starts", "cells", "learner", "jobs", "measured", "summaries", "variants"]
    names = (*(f"lab.{name}" for name in lab), "learning")
    modules = {name.rpartition(".")[2]: importlib.import_module(name) for name in names}
    modules["gradients"] = importlib.import_module("gradient_variance")
    bench = SimpleNamespace(**modules, shape=modules["policy"].Shape(8, 8, width=8))
    monkeypatch.setitem(bench.cells.CELLS, "tiny", bench.cells.Cell(**CELL))
    return bench


@pytest.fixture
def output(bench, tmp_path, monkeypatch):
    """An output directory where the warm start is random weights, and a few held-out words will do."""
    heldout, training = bench.tasks.words()
    monkeypatch.setattr(bench.tasks, "words", lambda: (heldout[:4], training))
    weights = lambda directory, shape, task, examples, start, seeds: bench.policy.initial(shape, seeds)  # noqa: E731
    monkeypatch.setattr(bench.warm_starts, "warm_start", weights)
    return tmp_path


def some_rollouts(bench, seeds: list[int], layers: int = 1):
    shape = replace(bench.shape, layers=layers)
    weights = bench.policy.initial(shape, seeds)
    words, uniforms = next(bench.learner.draws(bench.cells.CELLS["tiny"], seeds, 0))
    prompts, _ = bench.learner.examples("backward", words)
    return shape, weights, prompts, bench.policy.generate(shape, weights, prompts, uniforms)


@pytest.mark.parametrize("layers", [1, 2])
def test_generation_and_training_agree_on_log_probabilities(bench, layers):
    shape, weights, prompts, rollouts = some_rollouts(bench, [0, 1, 2], layers)
    log_probs, _ = bench.policy.log_probs(shape, weights, prompts, rollouts.tokens)
    assert rollouts.mask.float().mean() > 0.5
    torch.testing.assert_close(log_probs * rollouts.mask, rollouts.log_probs, atol=1e-5, rtol=0)


def test_a_response_ends_with_its_first_end_token(bench):
    *_, rollouts = some_rollouts(bench, list(range(20)))
    for tokens, mask in zip(rollouts.tokens.flatten(0, 2).tolist(), rollouts.mask.flatten(0, 2).tolist(), strict=True):
        length = tokens.index(bench.policy.END) + 1 if bench.policy.END in tokens else len(tokens)
        assert mask == [True] * length + [False] * (len(tokens) - length)
        assert tokens[length:] == [bench.policy.PAD] * (len(tokens) - length)


def test_responses_come_as_often_as_their_probability_says(bench):
    shape = replace(bench.shape, response=1)
    weights = bench.policy.initial(shape, [0]) * 3
    prompts, _ = bench.learner.examples("backward", [["abc"]])
    uniforms = torch.rand((1, 1, 20_000, 1), generator=torch.Generator().manual_seed(0))
    tokens = bench.policy.generate(shape, weights, prompts, uniforms).tokens
    _, distributions = bench.policy.log_probs(shape, weights, prompts, tokens[:, :, :1])
    found = torch.bincount(tokens.flatten(), minlength=bench.policy.VOCABULARY) / tokens.numel()
    torch.testing.assert_close(found, distributions.exp().flatten(), atol=0.015, rtol=0)


def test_padding_does_not_change_what_a_prompt_says(bench):
    """The same word in a wider prompt, whose extra positions on the left are padding."""
    answers = bench.tasks.answers(["cba"], bench.shape.response)[None]
    narrow = bench.tasks.prompts(["abc"])[None]
    changed = bench.policy.initial(bench.shape, [0])
    torch.manual_seed(0)
    positions = bench.policy.unpack(bench.shape, changed)["position"]
    before = bench.policy.success(bench.shape, changed, narrow, answers)
    positions[:, :5] = torch.randn(1, 5, bench.shape.width)  # of the padding
    torch.testing.assert_close(bench.policy.success(bench.shape, changed, narrow, answers), before)
    positions[:, 5:8] += 1.0
    assert not torch.allclose(bench.policy.success(bench.shape, changed, narrow, answers), before, rtol=1e-3, atol=0)


def test_success_is_the_probability_of_the_answer(bench):
    shape, weights, prompts, rollouts = some_rollouts(bench, [3])
    answers, said = rollouts.tokens[:, :, 0], rollouts.mask[:, :, 0]
    could_be_one = ((answers != bench.policy.PAD) == said).all(-1)  # random weights say padding too
    exact = bench.policy.success(shape, weights, prompts, answers)
    assert could_be_one.any()
    torch.testing.assert_close(exact[could_be_one], rollouts.log_probs[:, :, 0].sum(-1).exp()[could_be_one])
    greedy = bench.policy.generate(shape, weights, prompts, torch.rand(*answers.shape[:2], 1, answers.shape[2]), 1e-4)
    answers = greedy.tokens[:, :, 0]
    assert bench.policy.graded(shape, weights, prompts, answers)[1].all()
    assert not bench.policy.graded(shape, weights, prompts, (answers + 1) % bench.policy.VOCABULARY)[1].any()


def test_only_the_last_tokens_of_a_scratchpad_decide(bench):
    task = bench.tasks.TASKS["scratchpad"]
    answers = bench.tasks.answers(["ba"], task.response)[None]
    said = ["qqqqzba", "ba", "baz", "zab", "ba" * 22]
    tokens = bench.tasks.answers(said, task.response)[None, None]
    assert task.rewards(tokens, answers).flatten().tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("estimator", ["otb", "group_norm", "ebpo", "score_weighted+entropy=0.01"])
def test_stacked_seeds_learn_as_each_alone(bench, output, estimator):
    job = bench.jobs.Learning(bench.cells.CELLS["tiny"], estimator, width=8)
    together = bench.measured.measure([job], [0, 1], output / "both")
    alone = bench.measured.measure([job], [1], output / "one")
    record = alone.records[bench.measured.key(job.identity), 1]
    assert len(record["pass@1"]) == bench.learner.EVALUATIONS + 1
    for name in record.keys() - {"rollouts", "step"}:
        assert together.values(job, name)[1] == pytest.approx(alone.values(job, name)[0], rel=1e-2, abs=1e-4)


def test_estimators_of_a_seed_see_the_same_prompts_and_replicates_others(bench):
    cell = bench.cells.CELLS["tiny"]
    one, again, other = (next(bench.learner.draws(cell, [0], replicate)) for replicate in (0, 0, 1))
    assert one[0] == again[0] != other[0]
    assert torch.equal(one[1], again[1]) and not torch.equal(one[1], other[1])


def test_a_repeated_command_trains_only_what_is_missing(bench, output):
    def trained(seeds: int, *estimators: str) -> list[tuple[str, list[int]]]:
        argv = ["--cells", "tiny", "--width", "8", "--threads", "1", "--seeds", str(seeds), "--output", str(output)]
        bench.learning.main([*argv, "--estimators", *estimators])
        lines = (output / bench.measured.FILE).read_text().splitlines()[1:]
        return [(line["job"]["estimator"], line["seeds"]) for line in map(json.loads, lines)]

    first = trained(2, "group_norm")
    both = trained(2, "group_norm", "dr_grpo")
    assert first == [("group_norm", [0, 1])] and both == [*first, ("dr_grpo", [0, 1])]
    assert trained(3, "group_norm") == [*both, ("group_norm", [2])]


def test_the_clipped_loss_has_no_gradient_beyond_the_clip(bench):
    """A response whose probability has already risen by more than 0.2, with a positive advantage."""
    shape, weights, prompts, rollouts = some_rollouts(bench, [0])
    weights.requires_grad_()
    adam = torch.optim.AdamW([weights], lr=1e-3, weight_decay=0.0)
    before = weights.detach().clone()
    old = rollouts._replace(log_probs=rollouts.log_probs - 0.3)
    ones = torch.ones(rollouts.mask.shape[:3])
    assert bench.learner.update(shape, weights, adam, prompts, old, ones, 0.0)["grad_norm"].item() == 0
    assert torch.equal(weights, before)
    assert bench.learner.update(shape, weights, adam, prompts, old, -ones, 0.0)["grad_norm"].item() > 0


def test_the_token_baseline_weighs_rewards_by_the_score_up_to_each_token(bench):
    shape, weights, prompts, rollouts = some_rollouts(bench, [0])
    rewards = (torch.arange(8).view(1, 4, 2) % 3 == 0).float()
    found = bench.learner.token_advantages(shape, weights, prompts, rollouts, rewards)
    log_probs, distributions = bench.policy.log_probs(shape, weights, prompts, rollouts.tokens)
    expected = torch.zeros_like(found)
    for m, t in np.ndindex(4, 8):
        norms = []
        for g in range(2):
            pi, p = distributions[0, m, g].exp(), log_probs[0, m, g].exp()
            norms.append(
                sum(float(1 - 2 * p[i] + pi[i].square().sum()) for i in range(t + 1)) * rollouts.mask[0, m, g, t]
            )
        baseline = sum(float(w) * float(r) for w, r in zip(norms, rewards[0, m], strict=True)) / max(sum(norms), 1e-8)
        expected[0, m, :, t] = (rewards[0, m] - baseline) * rollouts.mask[0, m, :, t]
    rms = (expected.square().sum() / rollouts.mask.sum()).sqrt()
    torch.testing.assert_close(found, expected / rms, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("examples", ["right", "mixed", "confidently_wrong"])
def test_what_a_warm_start_shows(bench, examples):
    draw = random.Random(0)
    shown = [bench.tasks.EXAMPLES[examples](draw, "backward") for _ in range(2000)]
    heldout, training = bench.tasks.words()
    assert {word for word, _ in shown} <= set(training) and not set(heldout) & set(training)
    right = np.mean([word[::-1] == answer for word, answer in shown])
    longest = np.mean([len(word) == bench.tasks.MAX_LETTERS for word, _ in shown])
    assert right == 1 if examples != "confidently_wrong" else 0.03 < right < 0.25
    assert longest < 0.05 if examples == "mixed" else longest > 0.4


@pytest.mark.parametrize(
    ("spec", "said"),
    {
        "gae": "cannot be computed from a batch's rewards",
        "grpo": "there is no estimator 'grpo'. Did you mean group_norm",
        "ebpo.peper": "unknown preset 'peper'",
        "ebpo+weight=score": "unexpected keyword argument 'weight'",
        "ebpo+weights=some": "choose from none, score",
        "ebpo+entropy=much": "could not convert string to float: 'much'",
    }.items(),
)
def test_unknown_estimators_are_told_at_once(bench, output, spec, said):
    with pytest.raises(SystemExit, match=re.escape(f"--estimators {spec}: ") + ".*" + re.escape(said)):
        bench.learning.main(["--cells", "tiny", "--estimators", "group_norm", spec, "--output", str(output)])
    assert not any(output.iterdir())


def test_presets_and_parts_of_ebpo(bench):
    estimator, entropy = bench.learner.build("ebpo.corrected+weights=score+entropy=0.01", 4)
    assert (estimator.config.preset, estimator.config.weights, entropy) == ("corrected", "score", 0.01)
    assert bench.summaries.title("ebpo.corrected+weights=score") == "EBPO corrected, weights score"


# Tables


def curves(end: float) -> dict:
    """Of a seed whose success goes from 0 to this end in two evaluations."""
    rising = [0.0, end / 2, end]
    constant = {name: [0.1, 0.1] for name in ("grad_norm", "all_fail", "entropy")}
    return {
        "rollouts": [0, 100, 200],
        "pass@1": rising,
        **{f"pass@{k}": [0.5, *rising[1:]] for k in (16, 64)},
        **constant,
    }


def write_runs(bench, output: Path, **ends: tuple[float, ...]) -> None:
    with open(output / bench.measured.FILE, "w") as file:
        file.write(json.dumps({"settings": bench.measured.SETTINGS}) + "\n")
        for name, values in ends.items():
            estimator, _, replicate = name.partition("_r")
            job = bench.jobs.Learning(bench.cells.CELLS["tiny"], estimator, replicate=int(replicate or 0))
            line = {"job": job.identity, "seeds": list(range(len(values))), "measured": [*map(curves, values)]}
            file.write(json.dumps(line) + "\n")


def test_tables_are_made_of_the_runs_and_of_their_export_alike(bench, tmp_path, capsys):
    base, better = (0.4, 0.4, 0.4), (0.6, 0.7, 0.8)
    write_runs(bench, tmp_path, group_norm=base, group_norm_r1=(0.41, 0.4, 0.39), ebpo=better)
    export = tmp_path / "results.json"
    bench.summaries.show(tmp_path, ["tiny"], export)
    text = capsys.readouterr().out
    bench.summaries.show(export, ["tiny"], None)
    assert capsys.readouterr().out == text
    margin = 4.302653 * 0.1 / math.sqrt(3)  # t of two degrees of freedom
    assert f"| EBPO | 0.700 | +0.300 ± {margin:.3f} | 3 of 3 | 0.58 |" in text
    visible = (4.302653 + 1.060660) * 0.01 / math.sqrt(3)
    assert f"smallest visible difference {visible:.3f}" in text


def test_where_a_level_is_reached_is_interpolated(bench):
    success = np.array([[0.0, 0.0], [0.2, 0.1], [0.4, 0.2]])
    rollouts = np.array([[0.0, 0.0], [100.0, 100.0], [200.0, 200.0]])
    assert bench.summaries.where_reached(success, 0.3, rollouts).tolist() == pytest.approx(
        [150.0, math.nan], nan_ok=True
    )


def test_no_results_is_told(bench, tmp_path):
    with pytest.raises(UsageError, match=r"no result of learning\.py"):
        bench.summaries.show(tmp_path, ["tiny"], None)


def test_networks_of_several_sizes_are_not_put_into_one_table(bench, output):
    for width in ("8", "4"):
        argv = [
            "--cells",
            "tiny",
            "--estimators",
            "group_norm",
            "--threads",
            "1",
            "--seeds",
            "2",
            "--output",
            str(output),
        ]
        bench.learning.main([*argv, "--width", width])
    with pytest.raises(UsageError, match=r"several sizes, \(width, layers\) \[\(4, 1\), \(8, 1\)\]"):
        bench.summaries.show(output, ["tiny"], None)


# Gradients


def test_pairs_of_batches_give_signal_without_noise(bench):
    """g = c·m + noise: the mean product is ‖m‖², the effective sample size grows as the noise's variance falls."""
    random = torch.Generator().manual_seed(0)
    mean = torch.randn(1, 1, 50, generator=random)
    noise = torch.randn(4000, 2, 50, generator=random)
    gradients = {"dr_grpo": mean + 2 * noise, "other": 3 * (mean + noise)}
    assert bench.gradients.products(gradients["dr_grpo"], gradients["dr_grpo"]) == pytest.approx(
        (mean**2).sum().item(), rel=0.05
    )
    assert np.exp(bench.gradients.log_ratio(gradients, "other")) == pytest.approx(4, rel=0.1)
    assert bench.gradients.cosine(gradients, "other") == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("script", ["learning_real", "learning_smollm2"])
@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--estimators", "ebpoo"], "--estimators ebpoo: .*Did you mean ebpo"),
        (["--table"], "there is no result"),
    ],
)
def test_mistakes_are_named_by_both_scripts_of_real_models(script, tmp_path, argv, expected):
    with pytest.raises(SystemExit, match=expected):
        importlib.import_module(script).main(["--output", str(tmp_path), *argv])
