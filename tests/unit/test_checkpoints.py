"""checkpoints.jsonl and the disk: what is complete and not listed, what is listed and gone."""

import json
import shutil
from contextlib import nullcontext

import pytest
import replay_runs
from checkpoints import save_checkpoint
from hub_runs import export_model, make_run

from openrlhf_ebpo.files import read_json_lines, write_json
from openrlhf_ebpo.model_folder import problems
from openrlhf_ebpo.run import manifest
from openrlhf_ebpo.run.checkpoint_list import LIST, add_rows, final_model, find_unlisted, rows, saved_steps
from openrlhf_ebpo.run.resume import CheckpointError
from openrlhf_ebpo.run.run_log import RunDirectoryError
from openrlhf_ebpo.run.run_start import check_none_lost


@pytest.fixture
def run_dir(tmp_path):
    return make_run(tmp_path, steps=(2, 4, 6))


def forget(run_dir, *steps):
    """A death between a save and its line."""
    kept = [row for row in read_json_lines(run_dir / LIST) if row["step"] not in steps]
    (run_dir / LIST).write_text("".join(json.dumps(row) + "\n" for row in kept))


def found(run_dir, step=6):
    return find_unlisted(run_dir, run_dir.parent / "ckpt", step, problems)


def test_a_complete_checkpoint_that_is_not_listed_is_listed_in_its_place(run_dir):
    before = rows(run_dir)
    assert found(run_dir) == []
    forget(run_dir, 4)
    assert [row["tag"] for row in found(run_dir)] == ["global_step4"]
    add_rows(run_dir, found(run_dir))
    assert rows(run_dir) == before and found(run_dir) == []


def test_what_is_not_complete_or_of_a_later_step_is_not_listed(run_dir):
    forget(run_dir, 2, 4, 6)
    ckpt = run_dir.parent / "ckpt"
    (ckpt / "_actor" / "global_step2" / "mp_rank_00_model_states.pt").unlink()
    (ckpt / "global_step2_hf" / "model.safetensors").write_bytes(b"half")
    (ckpt / "global_step4_hf" / "config.json").unlink()
    export_model(ckpt / "best_global_step3_hf", 3)
    export_model(ckpt / "mine_hf", 1)
    manifest.begin(ckpt / "_actor" / "best_global_step3")
    new = found(run_dir, step=4)
    assert [(row["tag"], bool(row["checkpoint"]), bool(row["model"])) for row in new] == [
        ("best_global_step3", False, True),
        ("global_step4", True, bool(not problems(ckpt / "global_step4_hf"))),
    ]


def test_a_copy_of_the_run_is_read_where_it_lies(run_dir, tmp_path):
    run = json.loads((run_dir / "run.json").read_text())
    run["args"]["logger"]["run_dir"] = str(run_dir)
    write_json(run_dir / "run.json", run)
    copy = shutil.copytree(run_dir.parent, tmp_path / "copy")
    assert [each.model for each in saved_steps(copy / "run")] == [
        copy / "ckpt" / f"global_step{n}_hf" for n in (2, 4, 6)
    ]


@pytest.mark.parametrize(
    "line",
    [
        "[1]",
        '"x"',
        '{"step": 2, "tag": ["x"]}',
        '{"step": "2"}',
        '{"step": 1, "model": 5}',
        '{"step": 1, "checkpoint": "\\u0000"}',
        "{}",
    ],
)
def test_lines_that_make_no_sense_are_left_out(run_dir, line):
    before = rows(run_dir)
    with open(run_dir / LIST, "a") as file:
        file.write(line + "\n")
    assert rows(run_dir) == before and len(saved_steps(run_dir)) == 3


@pytest.mark.parametrize(("status", "step"), [("complete", 6), ("running", None), ("interrupted", None)])
def test_the_final_model_is_that_of_a_complete_run(tmp_path, status, step):
    run_dir = make_run(tmp_path, steps=(2, 6), status=status)
    export_model(tmp_path / "model", 4)  # may be of an earlier run
    assert final_model(run_dir) == (step and (step, tmp_path / "model"))


@pytest.mark.parametrize(
    ("status", "listed", "lost"),
    [("complete", False, True), ("interrupted", True, True), ("interrupted", False, False)],
)
def test_a_run_that_saved_or_is_complete_does_not_begin_again_without_its_checkpoints(tmp_path, status, listed, lost):
    """Complete without a line: it saved no checkpoint (--ckpt.disable_ds), and would be trained again."""
    run_dir = make_run(tmp_path, steps=(2,), status=status)
    (run_dir / "metrics.jsonl").write_text('{"step": 2}\n')
    if not listed:
        (run_dir / LIST).unlink()
    with pytest.raises(CheckpointError, match="training would begin at step 0") if lost else nullcontext():
        check_none_lost(run_dir, tmp_path / "ckpt" / "_actor")


def test_a_damaged_file_is_named(run_dir):
    (run_dir / LIST).write_text("{\n{}\n")
    with pytest.raises(RunDirectoryError, match=rf"{LIST} is damaged"):
        rows(run_dir)


def test_a_resume_from_an_earlier_step_sets_aside_what_comes_after_and_lists_what_is_there(tmp_path):
    """The trainer's part, with upstream's stood in for."""
    ckpt = tmp_path / "ckpt"
    paths = {"path": str(ckpt), "load_step": None}
    states = replay_runs.train(tmp_path / "run", to=2, ckpt=paths)
    replay_runs.train(tmp_path / "run", to=5, states=states, ckpt=paths)
    for step in (2, 5):
        export_model(ckpt / f"global_step{step}_hf", step)
        save_checkpoint(ckpt, step)
    replay_runs.train(tmp_path / "run", to=4, states=states, ckpt={**paths, "load_step": 2})
    assert [(row["step"], bool(row["model"])) for row in rows(tmp_path / "run")] == [(2, True)]
    (aside,) = (ckpt / "superseded").iterdir()
    assert (aside / "_actor" / "global_step5").is_dir() and (aside / "global_step5_hf").is_dir()
    assert not (ckpt / "_actor" / "global_step5").exists()
    assert [row["step"] for row in read_json_lines(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 4]
