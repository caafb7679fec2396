"""research/learning_real.py: what is still to be trained, and the table of what is there."""

import importlib
import json
import runpy

import pytest

from lab import ends, measured, real
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import append_json_line, read_json_lines
from openrlhf_ebpo.quickstart import launch as launching
from openrlhf_ebpo.quickstart import stages, tasks


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
    text = ends.report(results())
    assert "start 0.040" in text and "512 tasks × 8 samples" in text and "60 steps" in text
    found = rows(text)
    assert list(found) == ["estimator", "---", "GRPO", "EBPO"]
    assert found["GRPO"] == ["0.090", "0.080", "0.070", "0.080", "1", "", ""]
    # 0.01 / sqrt(3) = 0.00577; t with 2 degrees of freedom: 4.303 at 97.5 %, 1.061 at 80 %
    assert found["EBPO"] == ["0.110", "0.110", "0.110", "0.110", "1.75", "+0.030 ± 0.025", "0.031"]


def test_an_unfinished_table_compares_the_seeds_that_are_there(bench):
    found = rows(ends.report([each for each in results() if (each["estimator"], each["seed"]) != ("ebpo", 2)]))
    assert found["EBPO"][:4] == ["0.110", "", "0.110", "0.110"] and found["EBPO"][5].startswith("+0.030 ± ")
    one = rows(ends.report([result("ebpo", 1, 0.11), result("group_norm", 1, 0.09)]))
    assert one["EBPO"] == ["0.110", "0.110", "1.40", "+0.020", ""]
    assert rows(ends.report([result("ebpo", 1, 0.11)]))["EBPO"] == ["0.110", "0.110", "", "", ""]


def test_a_seed_whose_runs_saw_other_prompts_is_named(bench):
    assert "NOT the same prompts" not in ends.report(results())
    assert "Seed 2, G = 2: NOT the same prompts" in ends.report([*results(), result("rloo", 2, 0.1, prompts="others")])


def test_only_what_has_no_result_is_trained(bench, tmp_path):
    written(bench, tmp_path, results()[:4])  # GRPO's three, and EBPO's first
    kept = measured.Measured([1, 2, 3], read_json_lines(tmp_path / measured.FILE)[1:])
    assert kept.missing(bench.RealLearning("ebpo", 60)) == [[2], [3]]
    assert kept.missing(bench.RealLearning("group_norm", 60)) == []


def test_each_seed_has_an_order_of_its_own_the_same_every_time(bench, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("".join(f"{number}\n" for number in range(100)))
    names = [real.shuffled(tmp_path, seed) for seed in (1, 2, 1)]
    texts = [(tmp_path / "data" / name).read_text().split() for name in names]
    assert names[0] == names[2] != names[1] and texts[0] != texts[1]
    assert sorted(texts[0]) == sorted(texts[1]) == sorted(str(number) for number in range(100))
    (tmp_path / "data" / names[0]).unlink()
    assert real.shuffled(tmp_path, 1) == names[0] and (tmp_path / "data" / names[0]).read_text().split() == texts[0]


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
        (["--estimators", "gae"], "--estimators gae: it cannot be computed from a batch's rewards"),
        (["--estimators", "otb"], "--estimators otb: give a name, MODULE:NAME, or ebpo.PRESET"),
        (["--estimators", "ebpo+weights=score"], r"--estimators ebpo\+weights=score: give a name"),
    ],
)
def test_mistakes_are_named(bench, tmp_path, argv, expected):
    with pytest.raises(SystemExit, match=expected):
        bench.main(["--output", str(tmp_path), *argv])


def test_runs_of_different_settings_are_not_put_into_one_table(bench, tmp_path):
    found = [*results(), result("rloo", 1, 0.1, steps=80)]
    with pytest.raises(UsageError, match=r"runs of different steps cannot be compared: \[60, 80\]"):
        ends.read_results(written(bench, tmp_path, found), real.RealLearning)


def test_a_record_has_success_before_and_after_and_the_curves_of_the_run(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(real, "train", lambda work, job, seed: work / "arm")
    monkeypatch.setattr(real, "success", lambda work, model, *run: 0.3 if run else 0.1)
    monkeypatch.setattr(real, "model_identity", lambda path: "model@1")
    monkeypatch.setattr(real, "prompts_identity", lambda run_dir: "p")
    (tmp_path / "arm" / "run").mkdir(parents=True)
    for step in (1, 2):
        row = {"step": step, **dict.fromkeys(real.METRICS, step), "trained_steps": 0.5}
        append_json_line(tmp_path / "arm" / "run" / "metrics.jsonl", row)
    record = bench.RealLearning("ebpo", 2).one(1, tmp_path)
    assert (record["start"], record["end"], record["warm_start"], record["prompts"]) == (0.1, 0.3, "model@1", "p")
    assert {name: record[name] for name in real.METRICS} == {name: [1.0, 2.0] for name in real.METRICS}
    assert set(ends.COMMON) - {"steps", "task"} <= record.keys()
    assert record["age"] == [-0.5, 0.5], "the trainer's steps before, less those that the sampler's weights had"


# Asynchronous


def launched(bench, monkeypatch, tmp_path, *job):
    """The flags of a training, without training."""
    found = {}
    monkeypatch.setattr(stages, "preparation", lambda directory: [])
    monkeypatch.setattr(real, "shuffled", lambda directory, seed: "train-seed-1.jsonl")
    monkeypatch.setattr(launching, "launch", lambda command, flags, log: found.update(flags))
    arm = real.train(tmp_path, bench.RealLearning(*job), 1)
    return found, arm


def test_a_sampling_is_its_flags_and_a_folder_of_its_own(bench, monkeypatch, tmp_path):
    flags, arm = launched(bench, monkeypatch, tmp_path, "ebpo.robust", 60, "queue-4-clip")
    assert flags["train.async_queue_size"] == 4
    assert flags["algo.advantage.is_correction_mode"] == "clip" and flags["algo.advantage.ebpo.preset"] == "robust"
    assert (
        flags["advantage_estimator"] == "ebpo" and arm == tmp_path / "arms" / "queue-4-clip" / "seed-1" / "ebpo.robust"
    )
    custom, _ = launched(bench, monkeypatch, tmp_path, "lab.variants:SilentFailures", 60)
    assert custom["advantage_estimator"] == "lab.variants:SilentFailures", "its dots are no preset's"
    plain, _ = launched(bench, monkeypatch, tmp_path, "ebpo", 60)
    assert "train.async_enable" not in plain and plain["reward.remote_url"] == "reasoning_gym"


def test_the_reward_logs_how_many_steps_were_trained(bench, monkeypatch, tmp_path):
    flags, arm = launched(bench, monkeypatch, tmp_path, "ebpo", 60, "queue-4")
    row = tasks.split({"heldout": 1})["heldout"][0]
    names = runpy.run_path(str(flags["reward.remote_url"]))
    asked = (["say: " + row["label"]], ["say: "], [row["entry"]])
    assert names["reward_func"](*asked)["extra_logs"]["trained_steps"].tolist() == [0.0], "before the first step"
    (arm / "run").mkdir()
    append_json_line(arm / "run" / "metrics.jsonl", {"step": 1, "rollout/reward_mean": 0.1})
    append_json_line(arm / "run" / "metrics.jsonl", {"step": 1, "eval_words_pass1": 0.1})
    found = names["reward_func"](*asked)
    assert found["extra_logs"]["trained_steps"].tolist() == [1.0] and found["rewards"].tolist() == [1.0]


def test_samplings_have_tables_of_their_own_with_the_age_of_samples():
    aged = [each | {"sampling": "queue-4", "age": [0.0, 2.0, 4.0]} for each in results()]
    text = ends.report([*(each | {"sampling": "sync", "age": []} for each in results()), *aged])
    assert text.count("| EBPO | 0.110 |") == 2 and "**G = 2, queue-4, 128 prompts a step" in text
    assert (
        text.count("steps old") == 1
        and "| EBPO | 0.110 | 0.110 | 0.110 | 0.110 | 1.75 | +0.030 ± 0.025 | 0.031 | 2.0 |" in text
    )
