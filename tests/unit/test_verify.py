"""openrlhf-ebpo verify: what is wrong with a run is named, what is not is let be, and nothing is written unasked."""

import json
import shutil
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from commands import write_rows
from hub_runs import export_model
from replay_runs import train

from openrlhf_ebpo.cli import main
from openrlhf_ebpo.files import read_json_lines, write_json
from openrlhf_ebpo.run import manifest
from openrlhf_ebpo.run.run_log import PRIOR, read_run, rollouts_path
from openrlhf_ebpo.run.run_writer import RunWriter
from openrlhf_ebpo.upstream.saving import STATE_KEY

SHARD = "mp_rank_00_model_states.pt"
SAVED_2 = Path("ckpt/_actor/global_step2")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Five steps, resumed after the second; checkpoints and exports after 2 and 5."""
    folder = tmp_path_factory.mktemp("made")
    states = train(folder / "run", to=2)
    save(folder, 2, states[STATE_KEY])
    states = train(folder / "run", to=5, states=json.loads(json.dumps(states)))
    save(folder, 5, states[STATE_KEY])
    run = read_run(folder / "run")
    run["args"]["ckpt"] = {"path": str(folder / "ckpt"), "output_dir": str(folder / "model")}
    write_json(folder / "run" / "run.json", run)
    write_json(export_model(folder / "model", 5) / PRIOR, states[STATE_KEY])
    return folder


def save(folder, step, prior):
    tag = f"global_step{step}"
    checkpoint = folder / "ckpt" / "_actor" / tag
    manifest.begin(checkpoint)
    (checkpoint / SHARD).write_bytes(b"x" * 1000)
    write_json(checkpoint / PRIOR, prior)
    manifest.complete(checkpoint, prior=prior)
    model = export_model(folder / "ckpt" / f"{tag}_hf", step)
    write_json(model / PRIOR, prior)
    RunWriter(folder / "run", None).write_checkpoint(step, tag=tag, checkpoint=str(checkpoint), model=str(model))


@pytest.fixture
def folder(made, tmp_path):
    """A copy that a test may break; its checkpoints are found next to it."""
    return shutil.copytree(made, tmp_path / "copy")


@pytest.fixture
def verify(capsys):
    """Runs the command: (status, output)."""

    def run(*argv):
        try:
            main(["verify", *map(str, argv)])
            return 0, capsys.readouterr().out
        except SystemExit as stop:
            said = capsys.readouterr()
            return (1, said.out + stop.code) if isinstance(stop.code, str) else (stop.code, said.out + said.err)

    return run


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_whole_run_is_fine_and_nothing_is_written(folder, verify):
    before = content(folder)
    status, said = verify(folder / "run")
    assert status == 0 and said.endswith("nothing is wrong\n") and "PROBLEM" not in said
    for words in (
        "5 steps, the last 5",
        "bit for bit: 5 steps",
        "is the state after step 5",
        "2, 0.0 GB; a resume starts from global_step5",
        "3 exported",
        "2 lines in checkpoints.jsonl",
    ):
        assert words in said
    assert content(folder) == before


def rewrite_lines(path, change):
    write_rows(path, change(read_json_lines(path)))


def harm(folder, path, change):
    """Give the file the bytes of `change(bytes)`; None deletes it."""
    path = folder / path
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))


def lines(change):
    """A change of the rows of a JSON-lines file."""
    return lambda data: b"".join(
        json.dumps(row).encode() + b"\n" for row in change([*map(json.loads, data.splitlines())])
    )


def another_prior(data):
    return json.dumps({**json.loads(data), "batches": 77}).encode()


def drop_rows(folder):
    path = rollouts_path(folder / "run", 4)
    pq.write_table(pq.read_table(path).slice(1), path)


def change_an_advantage(folder):
    path = rollouts_path(folder / "run", 2)
    table = pq.read_table(path)
    column = table["advantage"].to_pylist()
    column[0] += 1e-3
    place = table.column_names.index("advantage")
    pq.write_table(table.set_column(place, "advantage", [column]), path)


def another_prior_saved(folder):
    checkpoint = folder / SAVED_2
    harm(folder, SAVED_2 / PRIOR, another_prior)
    manifest.complete(checkpoint, prior=json.loads((checkpoint / PRIOR).read_text()))


METRICS, CHECKPOINTS, STEP_3 = "run/metrics.jsonl", "run/checkpoints.jsonl", rollouts_path(Path("run"), 3)


@pytest.mark.parametrize(
    ("harmed", "said"),
    [
        ((METRICS, lines(lambda rows: [row for row in rows if row["step"] != 3])), "metrics.jsonl: step 3 is missing"),
        (
            (METRICS, lines(lambda rows: [*rows, {**rows[1], "reward": 1}])),
            "metrics.jsonl: step 2 is there more than once",
        ),
        ((METRICS, lambda data: b'{"step": 1, "rew\n' + data), "metrics.jsonl: line 1 is not a row of a step"),
        ((STEP_3, None), "rollouts: step 3 is missing"),
        ((STEP_3, lambda data: data[:-100]), "step-000003.parquet is not a rollout file, or is damaged"),
        (drop_rows, "are not groups of 4 responses"),
        (change_an_advantage, "not as logged: 1 of 115 responses differ, first in step 2"),
        ((f"run/{PRIOR}", None), "prior.json is missing"),
        ((f"run/{PRIOR}", another_prior), "prior.json is not the state after step 5"),
        ((f"run/{PRIOR}", lambda data: b"{"), "prior.json cannot be read"),
        ((SAVED_2 / PRIOR, another_prior), "_actor/global_step2: prior.json is not the one that was saved"),
        (another_prior_saved, "_actor/global_step2: prior.json is not the state that the rollouts lead to"),
        (
            (SAVED_2 / SHARD, lambda data: b"y" + data[1:]),
            f"_actor/global_step2: {SHARD} has other contents than were saved",
        ),
        ((SAVED_2.with_name("global_step5") / SHARD, None), f"_actor/global_step5: {SHARD} is missing"),
        (("ckpt/global_step2_hf/model.safetensors", lambda data: data[:-1]), "global_step2_hf: model.safetensors"),
        (("model/model.safetensors", lambda data: b""), "model: model.safetensors"),
        (
            (CHECKPOINTS, lines(lambda rows: rows[:1])),
            "global_step5 is complete and was not in checkpoints.jsonl; a resume lists it",
        ),
        ((CHECKPOINTS, lambda data: b"{\n{}\n"), "checkpoints.jsonl is damaged"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_named_and_nothing_is_written(folder, verify, harmed, said):
    harmed(folder) if callable(harmed) else harm(folder, *harmed)
    before = content(folder)
    status, output = verify(folder / "run")
    assert status == 1 and said in output.replace(f"{folder}/run/rollouts/", "")
    assert "PROBLEM" in output and "problem" in output.splitlines()[-1]
    assert content(folder) == before


def interrupt(folder):
    run = read_run(folder / "run")
    write_json(folder / "run" / "run.json", {**run, "status": "interrupted"})


def test_what_a_crash_leaves_is_a_note(folder, verify):
    """The next resume puts it right."""
    interrupt(folder)
    rollouts_path(folder / "run", 5).unlink()
    manifest.begin(folder / "ckpt" / "_actor" / "global_step5")
    with open(folder / "run" / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "rew')
    status, said = verify(folder / "run")
    assert status == 0, said
    assert "_actor/global_step5: its saving was interrupted" in said and "line of metrics.jsonl is torn" in said
    assert "differ in step 5" in said


@pytest.mark.parametrize("steps", [(1, 2), (2, 1)])
def test_rollouts_of_a_run_that_was_resumed_with_another_interval(verify, tmp_path, steps):
    before, after = steps
    states = train(tmp_path, to=4, every=before)
    resumed = {"checkpoint": "global_step4", "changed": {"logger.rollouts_every": {"was": before, "now": after}}}
    train(tmp_path, to=9, every=after, states=states, resumed=resumed)
    status, said = verify(tmp_path)
    assert status == 0, said
    rollouts_path(tmp_path, 6).unlink()
    assert "PROBLEM: rollouts: step 6 is missing" in verify(tmp_path)[1]


def test_a_run_that_went_back_with_load_step_is_whole(verify, tmp_path):
    run_dir, paths = tmp_path / "run", {"path": str(tmp_path / "ckpt"), "load_step": None}
    states = train(run_dir, to=2, ckpt=paths)
    train(run_dir, to=9, states=json.loads(json.dumps(states)), ckpt=paths)
    train(run_dir, to=5, states=states, ckpt={**paths, "load_step": 2})
    status, said = verify(run_dir)
    assert status == 0 and "bit for bit: 5 steps" in said, said
    assert "is the state after step 5" in said


def test_what_made_room_is_not_a_problem(folder, verify):
    gone = [{"step": 1, "tag": f"global_step1{n}", "checkpoint": str(folder / str(n)), "model": None} for n in range(9)]
    rewrite_lines(folder / "run" / "checkpoints.jsonl", lambda rows: [*gone, *rows])
    status, said = verify(folder / "run")
    assert status == 0 and "11 lines in checkpoints.jsonl" in said


def test_a_checkpoint_path_of_ones_own(folder, verify, tmp_path):
    (folder / "ckpt").rename(tmp_path / "moved")
    assert verify(folder / "run", "--ckpt.path", tmp_path / "moved")[0] == 0
    assert "no such folder" in verify(folder / "run", "--ckpt.path", tmp_path / "nowhere")[1]


@pytest.mark.parametrize(
    "change",
    [
        {"args": 5},
        {"args": {"ckpt": {"path": "\0"}}},
        {"args": {"logger": 5, "ckpt": 5, "algo": []}},
        {"args": {"logger": {"run_dir": 5}}},
        {"args": {"ckpt": {"path": "", "output_dir": ""}}},
        {"resumed": [5, {"changed": {"logger.rollouts_every": {"was": 0}}}]},
        {"name": "\x1b[31m" * 50},
        {"status": ["x"]},
    ],
)
def test_a_hostile_run_json_is_no_traceback(folder, verify, change):
    run = read_run(folder / "run")
    if "args" in change and isinstance(change["args"], dict):
        change = {"args": {**run["args"], **change["args"]}}
    write_json(folder / "run" / "run.json", {**run, **change})
    status, said = verify(folder / "run")
    assert status in (0, 1) and "\x1b" not in said


def test_custom_code_is_not_run(folder, verify, tmp_path, monkeypatch):
    run = read_run(folder / "run")
    (tmp_path / "evil_estimator.py").write_text("raise RuntimeError('ran')")
    monkeypatch.syspath_prepend(tmp_path)
    for name, answer in (("evil_estimator:E", "custom code"), (f"{tmp_path}/evil.py:E", "no estimator")):
        run["args"]["algo"]["advantage"]["estimator"] = name
        write_json(folder / "run" / "run.json", run)
        assert answer in verify(folder / "run")[1] and "evil_estimator" not in sys.modules
