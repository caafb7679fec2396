"""The run directory: who may write into it, what a resumed run keeps, what readers get."""

import errno
import json
import math
import threading

import numpy as np
import pyarrow as pa
import pytest
import torch
from checkpoints import save_checkpoint

from openrlhf_ebpo.files import append_json_line, read_json_lines
from openrlhf_ebpo.run import run_lock, run_log, run_start
from openrlhf_ebpo.run.run_log import RunDirectoryError, close_run, read_metrics, read_rollouts, read_run, rollouts_path
from openrlhf_ebpo.run.run_settings import RunSettings
from openrlhf_ebpo.run.run_start import check_run_dir, open_run
from openrlhf_ebpo.run.run_writer import RunWriter, plain, roll_back

ARGS = {
    "actor": {"model_name_or_path": "m"},
    "data": {"prompt_dataset": "d"},
    "train": {"seed": 7},
    "ckpt": {"path": "c"},
    "algo": {"advantage": {"estimator": "ebpo"}},
    "logger": {"run_dir": "x", "wandb": {"run_name": "ppo_1121T11:00"}},
}


def claim(run_dir, resume=False, args=ARGS, argv=("--x",)):
    seams = ["upstream.Name: OurName"]
    settings = RunSettings(
        run_dir, run_dir.parent / "ckpt", name="r", resume=resume, load_step=args.get("ckpt", {}).get("load_step")
    )
    return open_run(settings, argv=list(argv), args=args, seams=seams)


def everything(directory) -> dict[str, str]:
    return {str(p.relative_to(directory)): p.read_text() for p in sorted(directory.rglob("*")) if p.is_file()}


def test_a_new_run_says_what_it_is(tmp_path):
    run = claim(tmp_path / "a" / "run")
    assert run == read_run(tmp_path / "a" / "run")
    assert {k: run[k] for k in ("status", "model", "dataset", "seed", "argv", "args", "ended", "resumed")} == {
        "status": "running",
        "model": "m",
        "dataset": "d",
        "seed": 7,
        "argv": ["--x"],
        "args": ARGS,
        "ended": None,
        "resumed": [],
    }
    assert {"openrlhf_ebpo", "python", "openrlhf", "torch"} <= run["versions"].keys()
    assert run["seams"] == ["upstream.Name: OurName"]


@pytest.mark.parametrize("status", ["running", "interrupted", "failed", "complete"])
def test_without_resume_a_run_that_is_there_is_refused_with_the_ways_out(tmp_path, status):
    claim(tmp_path)
    close_run(tmp_path, status)
    before = everything(tmp_path)
    with pytest.raises(RunDirectoryError) as error:
        claim(tmp_path)
    for part in (str(tmp_path), "'r'", status, "--ckpt.load_enable", "--logger.run_dir", "--force"):
        assert part in str(error.value)
    assert everything(tmp_path) == before


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("ckpt", "path", "elsewhere"),
        ("actor", "model_name_or_path", "another"),
        ("algo", "advantage", {"estimator": "rloo"}),
    ],
)
def test_a_foreign_run_is_refused_also_on_resume(tmp_path, section, key, value):
    claim(tmp_path)
    before = everything(tmp_path)
    with pytest.raises(RunDirectoryError, match=rf"foreign run: its --{section}\.{key}.* is .*, yours .*--force"):
        claim(tmp_path, resume=True, args={**ARGS, section: {**ARGS[section], key: value}})
    assert everything(tmp_path) == before


@pytest.fixture
def moved(tmp_path):
    """Resume, from elsewhere, a run that has saved a checkpoint; with another model or checkpoint there."""

    def resume(model="other mount/m", saved_by=None):
        args = {**ARGS, "ckpt": {"path": "/old/ckpt"}, "actor": {"model_name_or_path": "/old/m"}}
        run = claim(tmp_path / "run", args=args)
        close_run(tmp_path / "run", "interrupted")
        row = {"step": 2, "tag": "global_step2", "checkpoint": "/old/ckpt/_actor/global_step2", "model": None}
        append_json_line(tmp_path / "run" / "checkpoints.jsonl", row | {"complete": True})
        save_checkpoint(tmp_path / "ckpt", 2, run=saved_by or run["id"])
        now = {**args, "ckpt": {"path": str(tmp_path / "ckpt")}, "actor": {"model_name_or_path": model}}
        settings = RunSettings(tmp_path / "run", tmp_path / "ckpt", name="r", resume=True)
        for lock in run_start.claim(settings, argv=["--x"], args=now):
            run_lock.release(lock)
        return run, read_run(tmp_path / "run")

    return resume


def test_a_moved_run_continues_with_its_id_and_its_checkpoints_are_listed_where_they_are(moved, tmp_path):
    before, after = moved()
    assert len(before["id"]) == 16 and after["id"] == before["id"] and len(after["resumed"]) == 1
    (row,) = read_json_lines(tmp_path / "run" / "checkpoints.jsonl")
    assert row["checkpoint"] == str(tmp_path / "ckpt" / "_actor" / "global_step2")
    assert (row["model"], row["complete"]) == (None, True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"saved_by": "0" * 16}, r"foreign run: its --ckpt\.path is /old/ckpt"),
        ({"model": "other mount/n"}, r"foreign run: its --actor\.model_name_or_path is /old/m"),
    ],
)
def test_another_runs_checkpoints_or_model_are_no_moved_run(moved, tmp_path, changes, said):
    with pytest.raises(RunDirectoryError, match=said):
        moved(**changes)
    assert read_json_lines(tmp_path / "run" / "checkpoints.jsonl")[0]["checkpoint"].startswith("/old/ckpt")


def test_two_runs_have_two_ids(tmp_path):
    assert claim(tmp_path / "a")["id"] != claim(tmp_path / "b")["id"]


def test_a_run_of_another_schema_is_refused(tmp_path):
    claim(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({**read_run(tmp_path), "schema": 0}))
    with pytest.raises(RunDirectoryError, match=r"schema 0; .* 1"):
        claim(tmp_path, resume=True)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '"run"'])
def test_a_damaged_run_json_is_refused_in_words(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunDirectoryError, match=r"run"):
        claim(tmp_path, resume=True)


def test_a_file_and_a_folder_of_something_else_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunDirectoryError, match="is a file; name a directory"):
        claim(tmp_path / "notes.txt")
    for force in (False, True):
        with pytest.raises(RunDirectoryError, match=r"is not empty and holds no run\.json"):
            check_run_dir(RunSettings(tmp_path, tmp_path), ["--x"], ARGS, force)
    assert everything(tmp_path) == {"notes.txt": "mine"}


def test_a_kill_while_the_first_run_json_is_written_blocks_nothing(tmp_path):
    (tmp_path / ".run.json.1.tmp").write_text("{")
    assert check_run_dir(RunSettings(tmp_path, tmp_path), ["--x"], ARGS) is None


def test_resuming_keeps_the_start_and_notes_the_resume(tmp_path):
    started = claim(tmp_path)["started"]
    close_run(tmp_path, "interrupted")
    claim(tmp_path, resume=True)
    close_run(tmp_path, "failed", "ValueError: x")
    assert read_run(tmp_path)["error"] == "ValueError: x"
    run = claim(tmp_path, resume=True)
    assert run["started"] == started
    assert [list(row) for row in run["resumed"]] == [["time"], ["time"]]
    assert run["status"] == "running"
    assert "error" not in run


def test_the_end_of_a_run_is_said_on_a_full_disk_however_long_its_error_is(tmp_path, monkeypatch):
    args = ARGS | {"of_a_training": {f"flag_{number}": None for number in range(100)}}
    claim(tmp_path, args=args)
    size = (tmp_path / "run.json").stat().st_size

    def full(path, value):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_log, "write_json", full)
    close_run(tmp_path, "failed", "OSError: No space left on device: " + "/a/traceback" * 400)
    run = read_run(tmp_path)
    assert run["status"] == "failed" and run["error"].startswith("OSError: No space left on device: /a")
    assert run["args"] == args and (tmp_path / "run.json").stat().st_size <= size


def test_a_resume_says_from_where_and_what_has_changed(tmp_path):
    claim(tmp_path)
    close_run(tmp_path, "interrupted")
    row = {"checkpoint": "global_step2", "changed": {"train.seed": {"was": 1, "now": 2, "applies": "command line"}}}
    open_run(RunSettings(tmp_path, tmp_path, name="r", resume=True), argv=["--x"], args=ARGS, resumed=row)
    (found,) = read_run(tmp_path)["resumed"]
    assert found.pop("time") and found == row


def test_a_finished_run_is_only_continued_with_more_to_do(tmp_path):
    claim(tmp_path)
    close_run(tmp_path, "complete")
    renamed = {**ARGS, "logger": {**ARGS["logger"], "wandb": {"run_name": "ppo_1121T12:00"}}}
    before = everything(tmp_path)
    for args, argv in ((ARGS, ["--y"]), (renamed, ["--y"]), (None, ["--x"])):
        with pytest.raises(RunDirectoryError, match="nothing is left to do"):
            claim(tmp_path, resume=True, args=args or {**ARGS, "ds": {"not yet": "validated"}}, argv=argv)
    assert everything(tmp_path) == before
    back = {**ARGS, "ckpt": {**ARGS["ckpt"], "load_step": 1}}
    assert claim(tmp_path, resume=True, args=back)["status"] == "running"
    close_run(tmp_path, "complete")
    longer = {**ARGS, "train": {**ARGS["train"], "num_episodes": 2}}
    assert claim(tmp_path, resume=True, args=longer, argv=["--more"])["status"] == "running"


def written(tmp_path, steps: int) -> RunWriter:
    log = RunWriter(tmp_path, None)
    for step in range(1, steps + 1):
        log.write_metrics(step, {"loss": step / 2})
        log.write_rollouts(step, Batch())
        if step % 2 == 0:
            log.write_checkpoint(step, tag=f"global_step{step}")
    log.flush()
    return log


class Batch:
    """Stands for one batch of rollouts: a table of one column."""

    def table(self, step, tokenizer):
        return pa.table({"step": [step]})


def test_rolling_back_moves_exactly_what_came_later(tmp_path):
    written(tmp_path, 5)
    (tmp_path / "run.json").write_text("{}")
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    roll_back(tmp_path, 3)
    (aside,) = (tmp_path / "superseded").iterdir()
    assert (tmp_path / "metrics.jsonl").read_text() == "".join(lines[:3])
    assert (aside / "metrics.jsonl").read_text() == "".join(lines[3:])
    assert [row["step"] for row in read_json_lines(tmp_path / "checkpoints.jsonl")] == [2]
    assert [row["step"] for row in read_json_lines(aside / "checkpoints.jsonl")] == [4]
    assert sorted(p.name for p in (tmp_path / "rollouts").iterdir()) == [f"step-00000{i}.parquet" for i in (1, 2, 3)]
    assert sorted(p.name for p in (aside / "rollouts").iterdir()) == ["step-000004.parquet", "step-000005.parquet"]
    assert (tmp_path / "run.json").read_text() == "{}"


def test_rolling_back_moves_later_evaluations_too(tmp_path):
    for step in (0, 20, 40):
        (tmp_path / "eval" / "paper" / "amc23" / f"step-{step:06d}").mkdir(parents=True)
        (tmp_path / "eval" / "paper" / "amc23" / f"step-{step:06d}" / "summary.json").write_text(str(step))
    roll_back(tmp_path, 20)
    kept = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("summary.json") if "superseded" not in p.parts}
    assert kept == {f"eval/paper/amc23/step-{step:06d}/summary.json" for step in (0, 20)}
    (moved,) = (tmp_path / "superseded").rglob("summary.json")
    assert moved.read_text() == "40"
    assert moved.parts[-5:-1] == ("eval", "paper", "amc23", "step-000040")


def test_rolling_back_to_the_last_step_moves_nothing_and_two_roll_backs_stay_apart(tmp_path):
    log = written(tmp_path, 4)
    log.roll_back(4)
    assert not (tmp_path / "superseded").exists()
    log.roll_back(3)
    log.roll_back(1)
    assert [len(list((aside / "rollouts").iterdir())) for aside in sorted((tmp_path / "superseded").iterdir())] == [
        1,
        2,
    ]
    assert [row["step"] for row in read_metrics(tmp_path)] == [1]


@pytest.mark.parametrize("whole", [0, 1, 3])
def test_after_a_torn_line_the_next_row_stands_on_a_line_of_its_own(tmp_path, whole):
    log = written(tmp_path, whole)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 9, "lo')
    log.roll_back(whole)
    log.write_metrics(whole + 1, {"loss": 0.0})
    assert [row["step"] for row in read_metrics(tmp_path)] == [*range(1, whole + 1), whole + 1]


def test_evaluations_are_merged_into_the_row_of_their_step(tmp_path):
    log = RunWriter(tmp_path, None)
    log.write_metrics(1, {"loss": 1.0})
    log.write_metrics(2, {"loss": 2.0})
    log.write_metrics(1, {"eval_pass1": 0.5})
    log.write_metrics(0, {"eval_pass1": 0.1})
    before, first, second = read_metrics(tmp_path)
    assert (before["step"], before["eval_pass1"]) == (0, 0.1)
    assert (first["step"], first["loss"], first["eval_pass1"]) == (1, 1.0, 0.5)
    assert "eval_pass1" not in second
    assert read_metrics(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (math.nan, None),
        (math.inf, None),
        (torch.tensor(-math.inf), None),
        (np.float32("nan"), None),
        (torch.tensor([0.5]), 0.5),
        (np.float32(0.25), 0.25),
        (np.int64(3), 3),
        (7, 7),
        (True, True),
        ("name", "name"),
        (None, None),
    ],
)
def test_metrics_are_plain_json_and_what_is_no_number_is_null(tmp_path, value, stored):
    RunWriter(tmp_path, None).write_metrics(1, {"x": value})
    (row,) = read_metrics(tmp_path)
    assert row["x"] == stored == plain(value)
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()


class Failing:
    def table(self, step, tokenizer):
        raise OSError("disk full")


def test_an_error_while_writing_rollouts_surfaces_and_leaves_no_file(tmp_path):
    log = RunWriter(tmp_path, None)
    log.write_rollouts(1, Failing())
    with pytest.raises(OSError, match="disk full"):
        log.flush()
    assert not list((tmp_path / "rollouts").iterdir())


def test_an_error_of_an_earlier_step_is_raised_at_a_later_one(tmp_path):
    log = RunWriter(tmp_path, None)
    log.write_rollouts(1, Failing())
    log._pending[0].exception(timeout=30)
    with pytest.raises(OSError, match="disk full"):
        log.write_rollouts(2, Batch())


class Waiting(Batch):
    def __init__(self, may_go: threading.Event):
        self.may_go = may_go

    def table(self, step, tokenizer):
        assert self.may_go.wait(30)
        return super().table(step, tokenizer)


def test_training_waits_while_two_batches_are_written_and_files_come_in_order(tmp_path):
    may_go = threading.Event()
    log = RunWriter(tmp_path, None)
    log.write_rollouts(1, Waiting(may_go))
    log.write_rollouts(2, Batch())
    assert not rollouts_path(tmp_path, 1).exists()
    assert not rollouts_path(tmp_path, 2).exists()
    third = threading.Thread(target=log.write_rollouts, args=(3, Batch()))
    third.start()
    third.join(0.2)
    assert third.is_alive(), "a third batch in memory"
    may_go.set()
    third.join()
    log.flush()
    assert [read_rollouts(tmp_path, step)["step"].to_pylist() for step in (1, 2, 3)] == [[1], [2], [3]]


@pytest.mark.parametrize("another_is_there", [False, True])
@pytest.mark.parametrize(
    "write",
    [
        lambda log: log.write_metrics(2, {}),
        lambda log: log.write_rollouts(2, Batch()),
        lambda log: log.write_prior({}),
        lambda log: log.write_checkpoint(2),
    ],
)
def test_a_run_directory_that_was_moved_away_is_noticed_and_not_made_again(tmp_path, write, another_is_there):
    run_dir = tmp_path / "run"
    log = RunWriter(run_dir, None)
    run_dir.rename(tmp_path / "moved")
    if another_is_there:
        run_dir.mkdir()
    with pytest.raises(RunDirectoryError, match=f"{run_dir} was moved or deleted"):
        write(log)
    log.flush()
    assert not list(run_dir.glob("*"))


def test_only_every_nth_step_keeps_its_rollouts(tmp_path):
    log = RunWriter(tmp_path, None, rollouts_every=3)
    for step in range(1, 8):
        log.write_rollouts(step, Batch())
    log.flush()
    assert sorted(p.name for p in (tmp_path / "rollouts").iterdir()) == ["step-000003.parquet", "step-000006.parquet"]
