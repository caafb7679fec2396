"""The quickstart's own parts: tasks, statistics, picture, table, and what it finds in its directory."""

import errno
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from patience import seconds

from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.files import append_json_line, write_json
from openrlhf_ebpo.quickstart import __main__ as quickstart
from openrlhf_ebpo.quickstart import stages, tasks, tiny_model
from openrlhf_ebpo.quickstart.compare import ARMS, PICTURE, compare, same_prompts, table
from openrlhf_ebpo.quickstart.evaluate import (
    MAX_NEW_TOKENS,
    N_SAMPLES,
    Sample,
    evaluate,
    grade_responses,
)
from openrlhf_ebpo.quickstart.launch import launch, show_progress, tqdm
from openrlhf_ebpo.quickstart.stages import WARM_START_SUCCESS, Training, in_order, nearest, training_flags
from openrlhf_ebpo.quickstart.tasks import TEMPLATE
from openrlhf_ebpo.rewards.math.golds import label_answer
from openrlhf_ebpo.run.plot import COLOURS, PANELS, plot_runs
from openrlhf_ebpo.run.results import SCHEMA, find_results
from openrlhf_ebpo.run.run_log import rollouts_path

SIZES = {"heldout": 30, "validation": 10, "train": 50, "warm_start": 40}


def test_the_splits_share_no_prompt_and_are_the_same_every_time():
    first, second = tasks.split(SIZES), tasks.split(SIZES)
    assert first == second
    assert {name: len(rows) for name, rows in first.items()} == SIZES
    prompts = {name: {row["prompt"] for row in rows} for name, rows in first.items()}
    assert len(prompts["train"]) == SIZES["train"]
    assert len(set().union(*prompts.values())) == sum(map(len, prompts.values()))


def test_each_task_brings_what_the_reward_needs():
    for row in tasks.split(SIZES)["train"]:
        assert label_answer(row["entry"]) == row["label"]
    held_out = tasks.split(SIZES)["heldout"]
    responses = [[Sample(text, 9, False) for text in (f" {row['label']}\n", row["label"] + "x")] for row in held_out]
    assert grade_responses(held_out, responses) == [[True, False]] * SIZES["heldout"]


def test_the_evaluation_is_a_result_of_the_harness(tmp_path):
    held_out = tasks.split(SIZES)["heldout"][:3]
    texts = [TEMPLATE.format(task["prompt"]) + task["label"] for task in held_out]
    tiny_model.build(tmp_path / "model", texts)
    correct = evaluate(tmp_path / "model", held_out, [tmp_path / "run", tmp_path / "other"], 7)
    (result,) = find_results(tmp_path / "run")
    assert [other.summary for other in find_results(tmp_path / "other")] == [result.summary]
    assert (result.step, result.task, result.n) == (7, tasks.DATASET, N_SAMPLES) and correct.shape == (3, N_SAMPLES)
    assert result.summary["schema"] == SCHEMA and result.summary["metrics"]["pass@1"]["value"] == correct.mean()
    assert (result.samples.correct == correct).all() and result.samples.lengths.max() <= MAX_NEW_TOKENS
    assert (result.samples.lengths[result.samples.truncated] == MAX_NEW_TOKENS).all()


def write_metrics(run_dir, last, names):
    run_dir.mkdir(parents=True)
    for step in range(1, last + 1):
        append_json_line(run_dir / "metrics.jsonl", {"step": step, **dict.fromkeys(names, step / 30)})


def test_the_picture_of_two_runs_is_a_small_png_with_both(tmp_path):
    from PIL import Image

    names = [panel.name for panel in PANELS]
    write_metrics(tmp_path / "a", 29, names)
    append_json_line(tmp_path / "a" / "metrics.jsonl", {"step": 30, "policy/entropy": None, names[0]: 1.0})
    write_metrics(tmp_path / "b", 20, names[:2])  # the other has no prior
    plot_runs({"EBPO": tmp_path / "a", "GRPO": tmp_path / "b"}, tmp_path / "two.png", "title")
    plot_runs({"": tmp_path / "a"}, tmp_path / "one.png", "title")
    assert (tmp_path / "two.png").read_bytes().startswith(b"\x89PNG")
    assert 10_000 < (tmp_path / "two.png").stat().st_size < 300_000
    assert [drawn(tmp_path / name) for name in ("two.png", "one.png")] == [[True, True], [True, False]]
    assert Image.open(tmp_path / "two.png").width == 330 * len(PANELS)


def drawn(picture):
    """Return whether the colours of the first and of the second run are drawn."""
    from PIL import Image

    there = {colour for _, colour in Image.open(picture).convert("RGB").getcolors(1 << 24)}
    return [tuple(bytes.fromhex(colour[1:])) in there for colour in COLOURS[:2]]


def measured(success, greedy=0.2, passed=0.5):
    return {"success": success, "greedy": greedy, "pass": passed}


def arm(after, difference, all_fail=0.9):
    return {"after": measured(after, after * 2), "difference": difference, "all_fail_first_ten_steps": all_fail}


def result_of_two(**changes):
    arms = {
        "ebpo": arm(0.137, [0.037, 0.025, 0.049]),
        "group_norm": arm(0.1, None, 0.91),
    }
    whole = {"steps": 80, "prompts_per_step": 128, "n_samples_per_prompt": 2, "before": measured(0.052), "arms": arms}
    sizes = {"heldout_questions": 512, "samples_per_question": 8, "reference": "group_norm", "same_prompts": True}
    return {**whole, **sizes, **changes}


def begun(directory):
    (directory / ARMS).mkdir(parents=True)
    return directory


def test_a_finished_run_prints_both_arms_and_does_nothing_else(tmp_path, capsys):
    (begun(tmp_path) / "result.json").write_text(json.dumps(result_of_two()))
    before = sorted(tmp_path.rglob("*"))
    quickstart.main([str(tmp_path)])
    text = capsys.readouterr().out
    lines = {" ".join(line.split()) for line in text.splitlines()}
    assert {"EBPO GRPO", "held-out success before 0.052 0.052", "held-out success after 0.137 0.100"} <= lines
    assert {"decoded greedily before 0.200 0.200", "decoded greedily after 0.274 0.200"} <= lines
    assert "a sample of eight passes after 0.500 0.500" in lines
    assert "EBPO - GRPO +0.037, 95 % interval [+0.025, +0.049]" in lines
    assert "of the tasks (512 tasks x 8 samples), not of training" in text and "docs/results.md" in text
    assert "the same prompts, in the same order: 80 steps of 128 x 2 responses" in text
    assert sorted(tmp_path.rglob("*")) == before


def test_the_table_says_where_the_prompts_were_not_the_same(tmp_path):
    assert "NOT the same" in table(result_of_two(same_prompts=False), tmp_path)


def test_two_runs_were_given_the_same_prompts_or_not(tmp_path):
    given = {"a": [["p", "q"], ["r", "s"]], "b": [["q", "p"], ["s", "r"]], "c": [["r", "s"], ["p", "q"]]}
    for name, steps in given.items():
        write_metrics(tmp_path / name, len(steps), ["rollout/reward_mean"])
        (tmp_path / name / "rollouts").mkdir()
        for step, prompts in enumerate(steps, 1):
            pq.write_table(pa.table({"prompt": prompts}), rollouts_path(tmp_path / name, step))
    assert same_prompts([tmp_path / "a", tmp_path / "b"])
    assert not same_prompts([tmp_path / "a", tmp_path / "c"])


def test_the_difference_is_that_of_ebpo_over_the_reference(tmp_path, monkeypatch):
    """Everything but the models' own answers."""
    success = {"warm_start": 0.0, "group_norm": 0.25, "ebpo": 0.75}
    steps = {}

    def answers(model, heldout, run_dirs, step):
        arm = model.name if model.name in success else model.parent.name
        steps[arm] = step
        return np.array([[True] * int(8 * success[arm]) + [False] * int(8 - 8 * success[arm])] * len(heldout))

    monkeypatch.setattr("openrlhf_ebpo.quickstart.evaluate.evaluate", answers)
    monkeypatch.setattr("openrlhf_ebpo.quickstart.evaluate.success_rate", lambda model, heldout, greedy: 0.5)
    (tmp_path / "data").mkdir()
    for prompt in "pq":
        append_json_line(tmp_path / "data" / "heldout.jsonl", {"prompt": prompt, "label": "l"})
    for name, last in (("ebpo", 12), ("group_norm", 11)):
        run_dir = tmp_path / ARMS / name / "run"
        write_metrics(run_dir, last, [*(panel.name for panel in PANELS), "ebpo/all_fail_fraction"])
        write_json(run_dir / "run.json", {"versions": {"of": name}})
        (run_dir / "rollouts").mkdir()
        for step in range(1, last + 1):
            pq.write_table(pa.table({"prompt": ["p", "q"]}), rollouts_path(run_dir, step))
    compare(tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    difference, low, high = result["arms"]["ebpo"]["difference"]
    assert difference == 0.5 and low < 0.5 < high, "two questions say little, though they agree"
    assert result["arms"]["group_norm"]["difference"] is None and result["reference"] == "group_norm"
    assert {name: arm["after"]["success"] for name, arm in result["arms"].items()} == {"ebpo": 0.75, "group_norm": 0.25}
    assert result["arms"]["ebpo"]["after"] == {"success": 0.75, "greedy": 0.5, "pass": 1.0}
    assert result["before"] == {"success": 0.0, "greedy": 0.5, "pass": 0.0}
    assert (result["heldout_questions"], result["samples_per_question"]) == (2, 8)
    assert steps == {"warm_start": 0, "ebpo": 12, "group_norm": 11}
    assert result["arms"]["ebpo"]["all_fail_first_ten_steps"] == pytest.approx(5.5 / 30)
    assert not result["same_prompts"], "one has a step more"
    assert "EBPO - GRPO  +0.500" in table(result, tmp_path) and (tmp_path / PICTURE).exists()


def test_every_stage_with_a_result_is_passed_over(tmp_path):
    names = [(name.partition(":")[0], done()) for name, done, _ in quickstart.stages(tmp_path)]
    kinds = ["tasks", "model", "warm start", "training", "training", "evaluation"]
    assert names == [(kind, False) for kind in kinds]
    for path in (
        "data/warm_start.jsonl",
        "base/tokenizer.json",
        "warm_start/config.json",
        "arms/ebpo/model/prior.json",
    ):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).touch()
    (tmp_path / "arms/group_norm/model").mkdir(parents=True)
    (tmp_path / "arms/group_norm/model/tokenizer.json").touch()
    assert [done() for _, done, _ in quickstart.stages(tmp_path)] == [True] * 5 + [False]


def test_a_full_disk_leaves_no_stage_half_done(tmp_path, monkeypatch):
    def no_space(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    def no_space_for_the_tokenizer(folder, texts):
        folder.mkdir()
        (folder / "tokenizer.json").write_text("{")
        no_space()

    monkeypatch.setattr(stages, "SIZES", SIZES)
    tasks.write(tmp_path / "data", tasks.split(SIZES))
    (tmp_path / "data" / "warm_start.jsonl").unlink()
    (_, has_tasks, make_tasks), (_, has_model, make_model), _ = stages.preparation(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(OSError):
            make_tasks()
    assert not has_tasks()
    make_tasks()
    with monkeypatch.context() as patch:
        patch.setattr(tiny_model, "build", no_space_for_the_tokenizer)
        with pytest.raises(OSError):
            make_model()
    assert has_tasks() and not has_model()
    make_model()
    assert has_model()


def test_the_arms_differ_in_nothing_but_the_estimator_and_where_they_write(tmp_path):
    one, other = (training_flags(Training(tmp_path, tmp_path / "arms" / n, n)) for n in ("ebpo", "rloo"))
    different = {name for name in one if one[name] != other[name]}
    assert different == {
        "advantage_estimator",
        "ckpt.path",
        "ckpt.output_dir",
        "logger.run_dir",
        "logger.wandb.run_name",
    }
    assert one["data.order"] == "as_is"  # the default order does not follow --train.seed
    assert Training(tmp_path, tmp_path, "score_weighted").stage[0] == "training: Score-weighted, 80 steps"


def test_the_space_finds_the_arms_and_calls_them_by_their_estimators(tmp_path):
    from openrlhf_ebpo.space.runs import Runs

    begun(tmp_path)
    (tmp_path / "data").mkdir()
    for name in ("ebpo", "group_norm"):
        run_dir = tmp_path / ARMS / name / "run"
        write_metrics(run_dir, 3, ["rollout/reward_mean"])
        (run_dir.parent / "model").mkdir()
    runs = Runs([str(tmp_path)])
    assert runs.listed() == ["ebpo", "group_norm"]
    assert [runs.get(name).path for name in runs.listed()] == [tmp_path / ARMS / n / "run" for n in runs.listed()]


def test_the_warm_start_is_the_model_nearest_to_the_wanted_success(tmp_path):
    for step in (100, 20, 60, 40, 80):
        (tmp_path / f"global_step{step}_hf").mkdir()
    models = in_order(tmp_path)
    assert [model.name for model in models] == [f"global_step{step}_hf" for step in (20, 40, 60, 80, 100)]
    success = dict(zip(models, (0.0, 0.01, WARM_START_SUCCESS - 0.005, WARM_START_SUCCESS + 0.02, 0.3), strict=True))
    assert nearest(models, success.get) == (models[2], WARM_START_SUCCESS - 0.005)
    with pytest.raises(ReportedError, match="never solved 5%"):
        nearest(models[:3], success.get)
    with pytest.raises(ReportedError, match="never solved"):
        nearest([], success.get)


def test_a_directory_of_something_else_is_refused_and_force_moves_it_aside(tmp_path):
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "precious.txt").write_text("keep me")
    with pytest.raises(ReportedError, match="holds something else"):
        quickstart.check_directory(directory, force=False)
    quickstart.check_directory(directory, force=True)
    assert not directory.exists()
    assert [p.read_text() for p in tmp_path.glob("run.*/precious.txt")] == ["keep me"]


def test_a_stage_that_fails_shows_the_end_of_its_log(tmp_path):
    with pytest.raises(ReportedError, match=r"exit status 2(.|\n)*--no.such.flag"):
        launch("train_sft", {"no.such.flag": 1}, tmp_path / "logs" / "sft.log")


def test_in_a_file_a_line_every_tenth_step_says_how_far_it_is(tmp_path, capsys):
    bar = tqdm(total=40, disable=True)
    show_progress(bar, tmp_path)
    for step in range(1, 40):
        append_json_line(
            tmp_path / "metrics.jsonl", {"step": step, "rollout/reward_mean": step / 100, "time": 6.0 * step}
        )
        if step not in (10, 19):  # it looks now and then only
            show_progress(bar, tmp_path)
    lines = capsys.readouterr().out.splitlines()
    left = {11: "3 minutes", 20: "2 minutes", 30: "60 s"}
    assert lines == [f"      step {s} of 40: reward {s / 100:.2f}, about {left[s]} left" for s in left]


LAUNCHES = """
import sys
from pathlib import Path
from openrlhf_ebpo.command import error_exit
from openrlhf_ebpo.quickstart.launch import launch
sys.executable = sys.argv[1]
with error_exit():
    launch("train_ppo_ray", {}, Path(sys.argv[2]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_training_that_was_launched_too(tmp_path, number):
    (tmp_path / "training").write_text(
        f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec env --default-signal=INT sleep 600\n"
    )
    (tmp_path / "training").chmod(0o755)
    command = [
        "env",
        "--default-signal=INT",
        sys.executable,
        "-c",
        LAUNCHES,
        tmp_path / "training",
        tmp_path / "x" / "log",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + seconds(60)
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        training = psutil.Process(int((tmp_path / "pid").read_text()))
        assert os.getsid(training.pid) == training.pid  # Ctrl-C reaches it once; Python 3.10 has no process_group
        process.send_signal(number)
        assert process.wait(60) == 130 and "interrupted" in process.stderr.read()
    assert not training.is_running()
