"""research/gpu_smollm2.py: which trainings are made in so many minutes, and what they say."""

from __future__ import annotations

import importlib
import json
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest

from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.files import append_json_line

LEAD = {"GRPO": 0.0, "EBPO": 0.05, "EBPO robust": 0.10}


@pytest.fixture
def bench(monkeypatch):
    return importlib.import_module("gpu_smollm2")


def result(cell, lead=LEAD, **changes):
    """Every seed has its own level; the differences vary a little."""
    level = 0.2 + 0.1 * cell.seed + lead[cell.estimator] * (1 + 0.1 * cell.seed)
    measured = {
        "seconds": 100.0,
        "first_reward": 0.1,
        "rewards": [0.1] * 5 + [level] * 5,
        "heldout": [[5, 0.2], [10, level]],
        "length": 40.0,
        "truncated": 0.0,
        "prompts": f"p{cell.seed}-{cell.group}",
    }
    return {**cell._asdict(), **measured, **changes}


def results(bench, seeds=(1, 2, 3), **changes):
    return [result(cell, **changes) for seed in seeds for cell in bench.missing([], seed)]


@pytest.fixture
def made(bench, monkeypatch):
    """The trainings that are asked for, without training; each takes 100 seconds."""
    cells, now = [], [0.0]

    def trained(output, model, cell, sizes):
        cells.append(cell)
        now[0] += 100
        return result(cell)

    monkeypatch.setattr(bench, "trained", trained)
    monkeypatch.setattr(bench, "prepare", lambda output, sizes, model: output)
    monkeypatch.setattr(bench, "model_identity", lambda model: "model@1")
    monkeypatch.setattr(bench, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return cells


def test_a_seed_is_begun_only_where_all_of_its_trainings_fit(bench, made, tmp_path, capsys):
    argv = ["--output", str(tmp_path), "--minutes", "25"]
    bench.main(argv)
    assert [cell.seed for cell in made] == [1] * 6 + [2] * 6  # 1,200 of 1,500 seconds
    assert len(set(made)) == 12 and [cell.group for cell in made[:6]] == [2, 2, 2, 4, 4, 4]
    assert "seed 3 is left for another call: its 6 trainings need more than 5 minutes" in capsys.readouterr().out
    bench.main(argv)
    assert {cell.seed for cell in made[12:]} == {3, 4}
    written = json.loads((tmp_path / "smollm2.json").read_text())
    assert len(written["results"]) == 24 and written["settings"]["steps"] == 20


def test_the_first_seed_is_begun_however_few_minutes_there_are_and_goes_on_where_it_was_stopped(bench, made, tmp_path):
    bench.main(["--output", str(tmp_path), "--minutes", "0"])
    assert {cell.seed for cell in made} == {1}
    assert bench.missing(results(bench)[:4], 1) == [bench.Cell(1, 4, "EBPO"), bench.Cell(1, 4, "EBPO robust")]
    assert bench.fits(results(bench)[:4], 2, 200) and not bench.fits(results(bench)[:4], 2, 199)


def test_a_training_that_fails_loses_nothing_that_was_finished(bench, made, tmp_path, monkeypatch):
    trained = bench.trained

    def fails_third(*args):
        if len(made) == 2:
            raise ReportedError("no")
        return trained(*args)

    monkeypatch.setattr(bench, "trained", fails_third)
    with pytest.raises(SystemExit, match="no"):
        bench.main(["--output", str(tmp_path)])
    monkeypatch.setattr(bench, "trained", trained)
    bench.main(["--output", str(tmp_path), "--seeds", "1"])
    assert made == bench.missing([], 1)


def test_other_settings_do_not_go_on_with_what_is_there(bench, made, tmp_path):
    bench.main(["--output", str(tmp_path), "--seeds", "1"])
    with pytest.raises(SystemExit, match="steps"):
        bench.main(["--output", str(tmp_path), "--seeds", "1", "--steps", "8"])


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--steps", "3"], "--steps 3: give 4 or more"),
        (["--heldout", "0"], "--heldout 0: give 1 or more"),
        (["--responses", "10"], "--responses 10: give a multiple of 4"),
        (["--table"], "there is no result of gpu_smollm2.py"),
    ],
)
def test_mistakes_are_named(bench, tmp_path, argv, expected):
    with pytest.raises(SystemExit, match=expected):
        bench.main(["--output", str(tmp_path), *argv])


def test_without_a_network_it_says_how_the_model_comes_here(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(bench.subprocess, "run", lambda words: subprocess.CompletedProcess(words, 1))
    with pytest.raises(ReportedError, match=r"-m pip failed.*give its folder as --model, or lay it at .*model"):
        bench.fetch(tmp_path)


def test_differences_are_paired_by_seed_and_the_order_is_judged_by_their_interval(bench):
    arms = bench.arms
    first, second, third = arms.pairs(results(bench), "heldout", [2])
    assert first.title == "EBPO − GRPO" and first.values == pytest.approx([0.055, 0.06, 0.065])
    # 0.005 / sqrt(3) x 4.303
    assert first.interval.half == pytest.approx(0.01242, rel=1e-3) and arms.holds(first) == "yes"
    assert second.title == "EBPO robust − GRPO" and third.values == pytest.approx([0.055, 0.06, 0.065])
    reversed_order = {"GRPO": 0.1, "EBPO": 0.05, "EBPO robust": 0.0}
    assert [arms.holds(p) for p in arms.pairs(results(bench, lead=reversed_order), "reward", [4])] == ["no"] * 3
    level = results(bench, lead=dict.fromkeys(LEAD, 0.0))
    assert {arms.holds(pair) for pair in arms.pairs(level, "heldout", [2, 4])} == {"cannot be seen"}


def test_of_all_groups_each_seed_counts_once_a_group_and_what_has_no_partner_does_not(bench):
    found = [r for r in results(bench) if (r["seed"], r["group"], r["estimator"]) != (3, 4, "GRPO")]
    first, second, third = bench.arms.pairs(found, "heldout", [2, 4])
    assert [len(pair.values) for pair in (first, second, third)] == [5, 5, 6]
    one = bench.arms.pairs(results(bench, seeds=[1]), "heldout", [2])[0]
    assert bench.arms.cells(one) == ["+0.055", ""] and bench.arms.holds(one) == "cannot be seen"
    assert bench.arms.cells(bench.arms.pairs([], "heldout", [2])[0]) == ["", ""]


def test_the_report_has_ends_differences_and_a_picture_and_names_other_prompts(bench, made, tmp_path, capsys):
    bench.main(["--output", str(tmp_path), "--seeds", "2"])
    text = (tmp_path / "smollm2.md").read_text()
    assert "| 2 | EBPO | 2 | 0.100 | 0.408 | 0.408 | 40 |" in text and "NOT the same" not in text
    assert "| all | EBPO − GRPO | 4 | +0.057 ± 0.005 | 0.006 | yes |" in text
    assert (tmp_path / "smollm2.png").read_bytes().startswith(b"\x89PNG") and text in capsys.readouterr().out
    assert bench.arms.other_prompts([*results(bench), result(bench.Cell(2, 4, "EBPO"), prompts="others")]) == [
        "Seed 2, G = 4: NOT the same prompts."
    ]


def test_the_tiny_tokenizer_reads_the_prompts_as_they_are(bench):
    """The reward takes what is behind the prompt for the response."""
    prompt = bench.sums.TEMPLATE.format(question=f"{bench.sums.TASK} 7 - 8 + 6 =")
    tokenizer = bench.tiny_model.build_tokenizer(bench.TINY_TEXTS)
    assert tokenizer.decode(tokenizer(prompt)["input_ids"]) == prompt


def test_a_curve_has_windows_of_steps_and_loses_none(bench):
    steps, values = bench.arms.reward_curve({"rewards": list(range(10))})
    assert steps == [1.5, 3.5, 5.5, 7.5, 9.5] and values.tolist() == [0.5, 2.5, 4.5, 6.5, 8.5]
    assert bench.arms.reward_curve({"rewards": [1.0, 2.0, 3.0]})[1] == pytest.approx(np.array([2.0]))
    assert bench.arms.reward_curve({"rewards": [0.5]})[1].tolist() == [0.5]


def test_a_result_is_read_from_the_run(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "prompts", lambda run_dir: [{"b", "a"}])
    for step in (1, 2):
        row = {
            "rollout/reward_mean": step / 10,
            "rollout/response_length_mean": 30.0 + step,
            "rollout/truncated_rate": 0.5,
        }
        append_json_line(tmp_path / "metrics.jsonl", {"step": step, **row})
    append_json_line(tmp_path / "metrics.jsonl", {"step": 2, "eval_chain_sum_pass1": 0.25, "eval_chain_sum_pass4": 0.5})
    found = bench.result_of(tmp_path, bench.Cell(1, 2, "EBPO"), 9.0)
    assert found["heldout"] == [(2, 0.25)] and found["rewards"] == [0.1, 0.2] and found["length"] == 31.5
    assert found["prompts"] == bench.fingerprint(b'[["a", "b"]]')


def test_both_group_sizes_have_as_many_responses_and_the_prompts_follow_the_seed(bench, tmp_path):
    flags = {
        group: bench.training_flags(
            tmp_path, tmp_path / "m", tmp_path / "a", bench.Cell(7, group, "EBPO robust"), bench.Sizes()
        )
        for group in bench.GROUPS
    }
    assert {f["rollout.batch_size"] * f["rollout.n_samples_per_prompt"] for f in flags.values()} == {128}
    assert flags[2]["data.order"] == "shuffle" and flags[2]["train.seed"] == 7 and flags[4]["eval.steps"] == 5
    assert flags[2]["data.max_samples"] == 20 * 64 and flags[4]["algo.advantage.ebpo.preset"] == "robust"
