"""hub status: what a stranger reads of a run whose models are pushed, at every moment and of any files."""

import hashlib
import json
import os
import signal
import time

import hub_runs
import pytest
from commands import refused
from hub_runs import REPO, queue
from patience import wait_until

from openrlhf_ebpo.cli import hub as hub_cli
from openrlhf_ebpo.files import append_json_line, write_json
from openrlhf_ebpo.hub import outbox, push, pusher
from openrlhf_ebpo.hub.status_command import read_status
from openrlhf_ebpo.hub_client import hub_api
from openrlhf_ebpo.run.run_log import read_run, timestamp

ESCAPES = "\x1b[2Jall is well \u202e hf_" + "abcdefgh1" * 4


@pytest.fixture
def status(capsys):
    """(exit status, output) of the command."""

    def ask(run_dir):
        capsys.readouterr()
        code = 0
        try:
            hub_cli.main(["status", str(run_dir)])
        except SystemExit as stopped:
            code = stopped.code
        return code, capsys.readouterr().out

    return ask


def test_from_the_first_snapshot_to_the_last_push(hub, hub_environment, make_run, monkeypatch, status):
    for name, value in {**hub_environment, "OPENRLHF_EBPO_HUB_PAUSE": "0.05"}.items():
        monkeypatch.setenv(name, value)
    run_dir = make_run(status="running")
    weights = run_dir.parent / "ckpt" / "global_step4_hf" / "model.safetensors"
    content = hub_runs.weights(32 << 20)  # more than the buffers of a connection hold
    weights.write_bytes(content)
    queue(run_dir, 2, 4)
    code, out = status(run_dir)
    assert code == 1 and "no process pushes; finish with: openrlhf-ebpo hub push" in out and out.count("waits") == 2
    hours_ago = time.time() - 3 * 3600
    os.utime(outbox.items(run_dir)[0].path / "push.json", (hours_ago, hours_ago))
    assert "3:00:0" in status(run_dir)[1]
    fault = hub.fail(f"^PUT /lfs/{hashlib.sha256(content).hexdigest()}", stall=True, times=99)
    pusher.start(run_dir, 60)
    wait_until(lambda: fault.hits)
    code, out = status(run_dir)
    pid = int(outbox.who_pushes(run_dir))
    assert code == 3 and f"pusher  process {pid}" in out and "1 of 2 steps pushed" in out
    assert f"{hub.url}/{REPO}/tree/step-000002" in out
    found = read_status(run_dir)
    assert (found.code, found.pusher, found.repo) == (3, str(pid), REPO)
    two, four = found.steps
    assert (two.state, two.attempts) == ("pushed", 1) and four.state == "pushing"
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not outbox.is_locked(run_dir))
    code, out = status(run_dir)
    assert code == 1 and "pusher  none" in out and "pushing" not in out
    hub.faults.clear()
    write_json(run_dir / "run.json", {**read_run(run_dir), "status": "complete"})
    pusher.start(run_dir, 60)
    wait_until(lambda: not outbox.is_locked(run_dir))
    code, out = status(run_dir)
    assert code == 0 and "all that was saved is pushed" in out


def test_a_failure_is_told_with_its_cause(hub, use_hub, make_run, status):
    run_dir = make_run()
    queue(run_dir, 2)
    hub.fail(r"POST .*/commit/", 503, times=9)
    refused(hub_cli.main, "push", run_dir, "--attempts", "2")
    code, out = status(run_dir)
    assert code == 1 and "failed         2" in out and "the Hub has a problem (503" in out
    assert "failed attempts so far: 2" in out


def test_a_saved_step_that_nothing_tells_of_is_lost(make_run, status):
    """A disk may be too full for the snapshot and for the note of that."""
    run_dir = make_run(steps=(2, 4))
    run = json.loads((run_dir / "run.json").read_text())
    run["args"] = {**run["args"], "hub": {"repo": REPO, "every": 1}, "ckpt": {"save_steps": 2}}
    write_json(run_dir / "run.json", run)
    outbox.write_state(run_dir, 4, state="pushed", attempts=1, url="u")
    code, out = status(run_dir)
    assert code == 1 and "saved, and never queued" in out and "--step 2" in out and "all that was saved" not in out
    outbox.write_state(run_dir, 2, state="pushed", attempts=1, url="u")
    assert status(run_dir)[0] == 0


def test_a_step_that_could_not_be_queued_is_lost_until_it_is_pushed(make_run, status):
    run_dir = make_run()
    (run_dir / "hub").mkdir()
    append_json_line(run_dir / "hub" / "not_queued.jsonl", {"step": 2, "error": "never queued: OSError: disk full"})
    code, out = status(run_dir)
    assert code == 1 and "lost" in out and "disk full" in out
    outbox.write_state(run_dir, 2, state="pushed", attempts=1, url="u")
    code, out = status(run_dir)
    assert code == 0 and "disk full" not in out
    append_json_line(run_dir / "hub" / "not_queued.jsonl", {"step": 2, "error": "without the optimizer's state"})
    assert "u; without the optimizer's state" in status(run_dir)[1]


def test_a_damaged_snapshot_is_named_though_an_earlier_one_was_pushed(make_run, status):
    run_dir = make_run()
    outbox.write_state(run_dir, 2, state="pushed", attempts=1, url="u")
    queue(run_dir, 2)
    (item,) = outbox.items(run_dir)
    (item.path / "push.json").write_text("{")
    code, out = status(run_dir)
    assert code == 1 and "damaged" in out and str(item.path) in out and "remove it" in out


def test_a_snapshot_that_was_taken_away_is_not_forgotten(make_run, status):
    run_dir = make_run()
    outbox.write_state(run_dir, 2, state="failed", attempts=1, error="no")
    code, out = status(run_dir)
    assert code == 1 and "gone" in out


def test_hostile_files_are_shown_as_text(make_run, status):
    run_dir = make_run()
    row = {"state": "failed", "attempts": 1, "error": ESCAPES, "url": ESCAPES, "repo": [ESCAPES], "time": timestamp()}
    write_json(run_dir / "hub.json", {"failed": 1, "steps": {"2": row, "4": {**row, "state": "pushed"}}})
    run = json.loads((run_dir / "run.json").read_text())
    write_json(run_dir / "run.json", {**run, "name": ESCAPES, "args": [ESCAPES]})
    (run_dir / "hub").mkdir()
    append_json_line(run_dir / "hub" / "not_queued.jsonl", {"step": 8, "error": ESCAPES})
    (run_dir / "hub" / "lock").write_text(ESCAPES)
    broken = outbox.outbox(run_dir) / "step-000006"
    broken.mkdir(parents=True)
    (broken / "push.json").write_text("[" * 100_000)
    code, out = status(run_dir)
    assert code == 1 and "\x1b" not in out and "\u202e" not in out and "abcdefgh1" not in out
    assert "all is well" in out and "step-000006" in out


def test_a_run_that_is_not_to_be_pushed_and_one_that_has_saved_nothing_yet(make_run, tmp_path, status):
    run_dir = make_run()
    assert "trained without --hub.repo" in str(status(run_dir)[0])
    run = json.loads((run_dir / "run.json").read_text())
    run["args"]["hub"] = {"repo": REPO}
    write_json(run_dir / "run.json", run)
    code, out = status(run_dir.parent)  # --ckpt.output_dir
    assert code == 0 and "nothing has been saved yet" in out
    assert "holds no run.json" in str(status(tmp_path)[0])


def test_it_leaves_no_trace_and_needs_no_right_to_write(make_run, status):
    run_dir = make_run()
    queue(run_dir, 2)
    before = sorted(str(path) for path in run_dir.rglob("*"))
    status(run_dir)
    assert sorted(str(path) for path in run_dir.rglob("*")) == before


def test_a_later_snapshot_of_a_step_counts_more_than_what_was_pushed_of_it(hub, use_hub, make_run):
    run_dir = make_run()
    queue(run_dir, 2)
    hub_cli.main(["push", str(run_dir)])
    hub_runs.export_model(run_dir.parent / "ckpt" / "global_step2_hf", 9)
    queue(run_dir, 2)
    assert [(step.step, step.state) for step in read_status(run_dir).steps] == [(2, "waits")]


def test_an_attempt_that_does_not_end_is_a_failed_one(hub, use_hub, make_run, monkeypatch):
    """As where Xet hangs, whose connections no limit of ours reaches."""
    run_dir, ended = make_run(), []
    queue(run_dir, 2)
    monkeypatch.setattr(push, "ATTEMPT_SECONDS", -1e6)
    monkeypatch.setattr(push.os, "_exit", ended.append)
    hub.fail(r"GET .*/revision/", delay=1.0)
    (item,), said = outbox.items(run_dir), []
    push.attempt(run_dir, item, hub_api(), report=said.append)
    assert ended == [1] and "attempt 1 did not end within" in said[0]
