"""What a run has exported and the Hub lacks is pushed: in order, in spite of faults, kills and a Hub that is away."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time

import hub_runs
import pytest
from commands import refused
from hub_repos import File
from hub_runs import REPO, forked, model_of, push, push_of, states
from patience import seconds, wait_until
from safetensors.numpy import save_file

from openrlhf_ebpo.cli import hub as hub_cli
from openrlhf_ebpo.files import append_json_line, write_json
from openrlhf_ebpo.hub.exports import is_locked, read_record, take_lock, who_pushes
from openrlhf_ebpo.hub.push import drain, watch
from openrlhf_ebpo.hub_client import hub_api
from openrlhf_ebpo.run import run_lock
from openrlhf_ebpo.run.run_log import read_run

PUSHED = {"2": "pushed", "4": "pushed"}


@pytest.fixture
def client(hub, monkeypatch):
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_TIMEOUT", str(seconds(3)))
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_PAUSE", "0.01")
    monkeypatch.setattr("openrlhf_ebpo.hub.push.card", lambda *_: {"README.md": b"# card\n"})
    return hub_api(hub.url, hub.token)


def titles(hub, repo=REPO):
    return [commit.title for commit in hub.repo(repo).history()]


# The loop


def test_steps_are_pushed_in_order_verified_and_recorded(hub, client, make_run):
    run_dir = make_run(steps=(2, 4, 10))
    said = push(run_dir, client)
    repo = hub.repo(REPO)
    assert titles(hub) == ["step 10", "step 4", "step 2", "initial commit"]
    assert list(repo.tags) == ["step-000002", "step-000004", "step-000010"] and repo.private
    assert set(repo.branches) == {"main"}
    for step in (2, 4, 10):
        hub_runs.assert_pushed(hub, run_dir, step)
    row = read_record(run_dir)["steps"]["4"]
    assert (row["state"], row["attempts"], row["error"]) == ("pushed", 1, None)
    assert row["commit"] == repo.tags["step-000004"] and row["url"].endswith("/tree/step-000004")
    assert "all verified" in said[0]


def test_what_is_there_is_not_sent_again_and_the_record_is_no_input(hub, client, make_run):
    run_dir = make_run()
    push(run_dir, client)
    record = json.loads((run_dir / "hub.json").read_text())
    (run_dir / "hub.json").unlink()
    before = len(hub.requests)
    assert "nothing is missing: 2 steps" in push(run_dir, client)[-1]
    assert {request.split()[0] for request in hub.requests[before:]} == {"GET", "HEAD"}
    assert states(run_dir) == PUSHED
    record["steps"]["4"]["state"] = "failed"
    write_json(run_dir / "hub.json", record)
    push(run_dir, client)
    assert states(run_dir) == PUSHED and titles(hub) == ["step 4", "step 2", "initial commit"]


@pytest.mark.parametrize(
    "text", ['{"steps"', "[]", '{"steps": {"4": null, "x": 1}, "failed": "many", "repo": []}', "[" * 9999]
)
def test_a_record_of_another_shape_is_replaced(hub, client, make_run, text):
    run_dir = make_run()
    (run_dir / "hub.json").write_text(text)
    push(run_dir, client)
    assert states(run_dir) == PUSHED and read_record(run_dir)["failed"] == 0


def test_a_model_that_was_exported_again_is_pushed_again(hub, client, make_run):
    run_dir = make_run()
    loop = push_of(run_dir, client)
    assert loop.round() is None and loop.round() is None
    hub_runs.export_model(model_of(run_dir, 4), 9)
    assert loop.round() is None
    assert hub.repo(REPO).files("step-000004")["config.json"] == (model_of(run_dir, 4) / "config.json").read_bytes()
    assert titles(hub) == ["step 4", "step 4", "step 2", "initial commit"]


@pytest.mark.parametrize("call", ["/preupload/", "PUT /lfs/", "/commit/", "/tag/"])
def test_a_model_that_is_exported_again_during_its_push_gets_no_tag_of_mixed_files(hub, client, make_run, call):
    run_dir = make_run(steps=(2,))
    once = iter([None])

    def meanwhile(request, found=hub.fault_for):
        if call in request and "step" not in request and next(once, 1) is None:
            hub_runs.export_model(model_of(run_dir, 2), 9)
        return found(request)

    hub.fault_for = meanwhile
    assert drain(push_of(run_dir, client), attempts=5, sleep=lambda _: None) is None
    if call == "/tag/":
        assert drain(push_of(run_dir, client), attempts=5, sleep=lambda _: None) is None
    found = hub.repo(REPO).files("step-000002")
    for name in ("model.safetensors", "config.json", "prior.json"):
        assert found[name] == (model_of(run_dir, 2) / name).read_bytes(), name


def test_a_late_step_does_not_turn_main_back(hub, client, make_run):
    run_dir = make_run()
    loop = push_of(run_dir, client)
    rows = (run_dir / "checkpoints.jsonl").read_text().splitlines(keepends=True)
    (run_dir / "checkpoints.jsonl").write_text(rows[1])
    assert loop.round() is None
    (run_dir / "checkpoints.jsonl").write_text("".join(rows))
    assert loop.round() is None
    repo = hub.repo(REPO)
    assert repo.branches["main"] == repo.tags["step-000004"]
    assert repo.branches["checkpoint-000002"] == repo.tags["step-000002"]
    hub_runs.assert_pushed(hub, run_dir, 2)
    hub_runs.assert_pushed(hub, run_dir, 4)


def test_what_a_resumed_run_rolled_back_does_not_hold_main(hub, client, make_run):
    run_dir = make_run(steps=(2, 4))
    push(run_dir, client)
    rows = (run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run_dir / "metrics.jsonl").write_text("".join(rows[:3]))  # resumed from step 2, now at step 3
    listed = (run_dir / "checkpoints.jsonl").read_text().splitlines(keepends=True)
    model = hub_runs.export_model(model_of(run_dir, 3), 3)
    (run_dir / "checkpoints.jsonl").write_text(listed[0])
    append_json_line(run_dir / "checkpoints.jsonl", {"step": 3, "tag": "global_step3", "model": str(model)})
    push(run_dir, client)
    repo = hub.repo(REPO)
    assert repo.branches == {"main": repo.tags["step-000003"]} and "step-000004" in repo.tags
    hub_runs.assert_pushed(hub, run_dir, 3)


def test_only_every_nth_export_and_the_final_model_go(hub, client, make_run):
    run_dir = make_run(steps=(2, 4, 6, 8))
    run = read_run(run_dir)
    run["args"]["ckpt"]["save_steps"], run["args"]["hub"] = 2, {"repo": REPO, "every": 2}
    write_json(run_dir / "run.json", run)
    append_json_line(run_dir / "checkpoints.jsonl", {"step": 8, "tag": "best_global_step8", "model": "gone"})
    append_json_line(run_dir / "metrics.jsonl", {"step": 9, "time": 9})
    hub_runs.export_model(run_dir.parent / "model", 9)
    push(run_dir, client)
    assert list(hub.repo(REPO).tags) == ["step-000004", "step-000008", "step-000009"]
    hub_runs.assert_pushed(hub, run_dir, 9)


def test_a_repo_of_another_run_or_of_something_else_is_left_alone(hub, use_hub, client, make_run):
    first, second = make_run("first"), make_run("second", started="2026-02-02T00:00:00+00:00")
    push(first, client)
    before = hub.repo(REPO).branches | hub.repo(REPO).tags
    error = drain(push_of(second, client), sleep=pytest.fail)
    assert error.permanent and "holds another run" in str(error)
    assert hub.repo(REPO).branches | hub.repo(REPO).tags == before
    assert states(second) == {"2": "failed"}
    theirs = {"tf_model.h5": File(b"weights", False), "README.md": File(b"# theirs\n", False)}
    hub.create("owner/theirs").commit("main", theirs, "theirs")
    loop = push_of(second, client, repo="owner/theirs")
    assert "(tf_model.h5)" in str(drain(loop, sleep=pytest.fail))
    assert hub.repo("owner/theirs").files() == {"tf_model.h5": b"weights", "README.md": b"# theirs\n"}
    words = f"error: --repo {REPO}: {REPO} holds another run"
    assert words in refused(hub_cli.main, "push", second, "--repo", REPO)
    hub_cli.main(["push", str(second), "--repo", "owner/second"])
    assert list(hub.repo("owner/second").tags) == ["step-000004"]  # the last one


def test_a_card_that_the_hub_refuses_does_not_hold_the_model_back(hub, client, make_run, monkeypatch):
    text = b"---\nlicense: nonsense\n---\n\n# card\n"
    monkeypatch.setattr("openrlhf_ebpo.hub.push.card", lambda *_: {"README.md": text})
    answer = {"errors": [{"message": "license must be one of the known ones"}], "warnings": []}
    hub.fail("validate-yaml", 400, body=json.dumps(answer).encode())
    run_dir = make_run(steps=(2,))
    said = "\n".join(push(run_dir, client))
    assert "license must be one of the known ones" in said and "without its card's metadata" in said
    assert hub.repo(REPO).files()["README.md"] == b"# card\n"
    hub_runs.assert_pushed(hub, run_dir, 2)


def test_a_card_that_cannot_be_made_does_not_hold_the_model_back(hub, client, make_run, monkeypatch):
    monkeypatch.undo()
    run_dir = make_run(steps=(2,))
    (run_dir / "metrics.jsonl").write_text("no JSON\n")
    said, api, wanted = [], hub_api(hub.url, hub.token), [hub_runs.export_of(run_dir, 2)]
    loop = push_of(run_dir, api, said, wanted=wanted)
    assert drain(loop, attempts=1) is None
    assert "without a model card" in "\n".join(said) and "README.md" not in hub.repo(REPO).files()
    hub_runs.assert_pushed(hub, run_dir, 2)


def test_a_full_disk_keeps_nothing_from_being_pushed(hub, client, make_run, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    run_dir = make_run()
    monkeypatch.setattr("openrlhf_ebpo.hub.exports.write_json", refuse)
    said = push(run_dir, client)
    assert "hub.json: [Errno 28]" in "\n".join(said) and not (run_dir / "hub.json").exists()
    hub_runs.assert_pushed(hub, run_dir, 2)
    hub_runs.assert_pushed(hub, run_dir, 4)


def test_a_hub_that_is_away_keeps_the_order_and_a_refused_step_lets_the_others_pass(hub, client, make_run):
    run_dir = make_run()
    hub.stop()
    loop = push_of(run_dir, client)
    assert not loop.round().permanent and states(run_dir) == {"2": "failed"}  # 4 was not even tried
    hub.start()
    (model_of(run_dir, 2) / "model.safetensors").write_bytes(b"cut")
    assert "damaged or cut off" in str(loop.round())
    assert states(run_dir) == {"2": "failed", "4": "pushed"} and read_record(run_dir)["failed"] == 2
    shutil.rmtree(model_of(run_dir, 2))
    assert "is gone, and was not pushed" in str(loop.round())


def test_attempts_are_counted_pauses_grow_and_giving_up_loses_nothing(hub, client, make_run, monkeypatch):
    run_dir, waited = make_run(steps=(2,)), []
    monkeypatch.delenv("OPENRLHF_EBPO_HUB_PAUSE", raising=False)
    hub.fail(r"POST .*/commit/", 503, times=3)
    error = drain(push_of(run_dir, client), attempts=3, sleep=waited.append)
    assert error.status == 503 and waited == [5, 10]
    row = read_record(run_dir)["steps"]["2"]
    assert (row["state"], row["attempts"]) == ("failed", 3) and "(503)" in row["error"]
    assert drain(push_of(run_dir, client), sleep=pytest.fail) is None
    assert read_record(run_dir)["failed"] == 3 and hub.count("^PUT") == 1  # what had arrived was not sent again
    hub_runs.assert_pushed(hub, run_dir, 2)


@pytest.mark.nightly  # daily: unit/test_model_shapes.py; it imports transformers and torch
def test_a_model_without_a_projection_is_refused_by_a_process_that_imports_no_torch(hub_environment, hub, make_run):
    pytest.importorskip("transformers")
    run_dir = make_run(steps=(2,))
    hub_runs.export_model(model_of(run_dir, 2), 2, **hub_runs.CLASS)
    weights = {name: tensor for name, tensor in hub_runs.tensors(2).items() if "up_proj" not in name}
    save_file(weights, model_of(run_dir, 2) / "model.safetensors")
    code = (
        "import sys; from openrlhf_ebpo.cli import hub\n"
        f"try:\n    hub.main(['push', {str(run_dir)!r}, '--repo', {REPO!r}])\n"
        "except SystemExit as end:\n    print(end, {'torch', 'transformers'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], env=hub_environment, capture_output=True, text=True)
    assert done.stdout.endswith("up_proj.weight of [128, 64], which is missing set()\n"), done
    assert not hub.repos


def test_an_attempt_that_does_not_end_is_ended(hub, client, make_run, monkeypatch):
    monkeypatch.setattr("openrlhf_ebpo.hub_client.CALLS_PER_ATTEMPT", 0.2)
    monkeypatch.setattr("openrlhf_ebpo.hub_client.MIN_BYTES_PER_SECOND", 1e9)
    monkeypatch.setattr("openrlhf_ebpo.hub.push.publish", lambda *_, **__: time.sleep(999))
    run_dir, started = make_run(steps=(2,)), time.monotonic()
    error = push_of(run_dir, client).round()
    assert "it did not end within" in str(error) and not error.permanent
    assert time.monotonic() - started < seconds(30) and states(run_dir) == {"2": "failed"}


# The command


def test_a_dry_run_lists_sizes_and_leaves_no_trace(hub, use_hub, make_run, capsys):
    run_dir = make_run()
    hub_cli.main(["push", str(run_dir), "--repo", REPO, "--step", "2", "--dry_run"])
    out = capsys.readouterr().out
    assert "1.20 MB  new        model.safetensors" in out and "nothing was sent" in out
    assert not hub.repos and not (run_dir / "hub").exists() and not (run_dir / "hub.json").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--repo", REPO, "--step", "3"], "no saved model of step 3; saved steps: 2, 4"),
        (["--step", "3"], "say where to push, with --repo owner/name"),
        ([], "was trained without --hub.repo"),
        (["--repo", REPO, "--watch"], "--watch pushes all that a training saves"),
        (["--folder", "model"], "say where to push, with --repo owner/name"),
    ],
)
def test_mistakes_are_explained(hub, use_hub, make_run, argv, words):
    assert words in refused(hub_cli.main, "push", make_run(), *argv) and not hub.repos


@pytest.mark.parametrize(
    ("argv", "words"),
    [(["push", "RUN", "--full_state"], "checkpoint folder"), (["pull", REPO, "DIR", "--trust_pickle"], "not pulled")],
)
def test_what_was_withdrawn_says_what_to_do(capsys, argv, words):
    with pytest.raises(SystemExit) as stopped:
        hub_cli.main(argv)
    (line,) = capsys.readouterr().err.splitlines()
    assert stopped.value.code == 2 and "was withdrawn" in line and words in line


def test_a_run_that_was_moved_or_copied_pushes_the_models_next_to_it(hub, use_hub, make_run, tmp_path, capsys):
    run_dir = make_run()
    run = json.loads((run_dir / "run.json").read_text())
    run["args"]["logger"]["run_dir"] = str(run_dir)
    write_json(run_dir / "run.json", run)
    copied = shutil.copytree(run_dir.parent, tmp_path / "copied")
    hub_runs.export_model(model_of(run_dir, 4), 99)  # the original goes other ways
    hub.create(REPO)
    hub_cli.main(["push", str(copied / "run"), "--repo", REPO])
    weights = copied / "ckpt" / "global_step4_hf" / "model.safetensors"
    assert hub.repo(REPO).files()["model.safetensors"] == weights.read_bytes()
    assert "owner/model exists and is public" in capsys.readouterr().err
    alone = shutil.move(copied / "run", tmp_path / "alone")
    shutil.rmtree(run_dir.parent / "ckpt")
    said = refused(hub_cli.main, "push", alone, "--repo", REPO)
    assert "saved steps: none: step 4 was saved in" in said and "is gone" in said


def test_only_one_process_pushes(hub, use_hub, make_run):
    run_dir = make_run()
    with take_lock(run_dir) as lock:
        run_lock.write_holder(lock)
        assert f"process {os.getpid()} is pushing this run" in refused(hub_cli.main, "push", run_dir, "--repo", REPO)
    assert not hub.repos


def test_the_final_model_of_a_run_that_saved_nothing_else(hub, use_hub, make_run):
    run_dir = make_run(steps=())
    assert "saved steps: none: train with --ckpt.save_hf" in refused(hub_cli.main, "push", run_dir, "--repo", REPO)
    hub_runs.export_model(run_dir.parent / "model", 7)
    (run_dir / "metrics.jsonl").write_text('{"step": 7, "time": 1}\n')
    hub_cli.main(["push", str(run_dir.parent), "--repo", REPO, "--public"])
    hub_runs.assert_pushed(hub, run_dir, 7)
    assert not hub.repo(REPO).private


# Into a folder


def push_into(run_dir, folder, *flags):
    hub_cli.main(["push", str(run_dir), "--repo", REPO, "--step", "2", "--folder", str(folder), *flags])


def test_a_folder_holds_what_the_repo_would_each_file_with_its_hash(make_run, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody answers there
    run_dir, folder = make_run(), tmp_path / "pushed" / "model"
    push_into(run_dir, folder)
    listed = json.loads((folder / "sha256.json").read_text())["files"]
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == listed.keys() | {"README.md", "sha256.json"}
    assert {"model.safetensors", "config.json", "prior.json", "run.json"} <= found and "optimizer.bin" not in found
    for name, row in listed.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == row["sha256"], name
    assert "nothing was sent" in capsys.readouterr().out and not (run_dir / "hub").exists()


def test_a_folder_that_is_there_stays_and_a_push_that_is_refused_leaves_none(make_run, tmp_path):
    run_dir = make_run()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(SystemExit, match=r"--folder .*mine is there already"):
        push_into(run_dir, tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    with pytest.raises(SystemExit, match="--folder writes files and --dry_run writes none"):
        push_into(run_dir, tmp_path / "model", "--dry_run")
    (model_of(run_dir, 2) / "tokenizer_config.json").write_text(json.dumps({"key": "hf_" + "a" * 34}))
    with pytest.raises(SystemExit, match=r"tokenizer_config\.json"):
        push_into(run_dir, tmp_path / "model")
    assert not list(tmp_path.glob("model*"))


# Processes


class Blobs(dict):
    """What is stored by LFS; remembers every arrival."""

    def __init__(self):
        super().__init__()
        self.arrivals = []

    def __setitem__(self, oid, content):
        self.arrivals.append(oid)
        super().__setitem__(oid, content)


MOMENTS = (
    *(r"GET .*/refs|GET .*/revision/main", "POST .*/repos/create", r"GET .*/tree/", "/preupload/", "objects/batch"),
    *("^PUT /lfs/", "/verify$", "/commit/", r"GET .*/revision/step", "/tag/"),
)


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_moment_nothing_is_lost_and_nothing_goes_twice(hub, use_hub, make_run, moment):
    run_dir = hub_runs.set_repo(make_run())
    hub.blobs = Blobs()
    fault = hub.fail(moment, delay=0.3)
    process = forked("push", run_dir)
    wait_until(lambda: fault.hits)
    process.kill()
    process.join()
    wait_until(lambda: not is_locked(run_dir))  # the process that sends ends with it
    wait_until(lambda: not hub.at_once)  # what had been sent completely has arrived
    hub_cli.main(["push", str(run_dir)])
    assert states(run_dir) == PUSHED and titles(hub) == ["step 4", "step 2", "initial commit"]
    for step in (2, 4):
        hub_runs.assert_pushed(hub, run_dir, step)
    assert len(hub.blobs.arrivals) == len(set(hub.blobs.arrivals))


def test_it_pushes_during_a_training_and_ends_after_it(hub, use_hub, make_run):
    run_dir = hub_runs.set_repo(make_run(status="running"))
    with run_lock.held(run_dir):
        process = forked("push", run_dir, "--watch")
        wait_until(lambda: states(run_dir) == PUSHED)
        model = hub_runs.export_model(model_of(run_dir, 6), 6)
        append_json_line(run_dir / "checkpoints.jsonl", {"step": 6, "tag": "global_step6", "model": str(model)})
        wait_until(lambda: states(run_dir) == {**PUSHED, "6": "pushed"})
        assert process.is_alive() and who_pushes(run_dir) == str(process.pid)
    write_json(run_dir / "run.json", {**read_run(run_dir), "status": "complete"})
    process.join(seconds(60))
    assert process.exitcode == 0 and not is_locked(run_dir)
    hub_runs.assert_pushed(hub, run_dir, 6)


def test_a_training_that_was_killed_is_over(hub, client, make_run):
    run_dir = hub_runs.set_repo(make_run(status="running"))  # nobody holds its lock
    assert watch(push_of(run_dir, client)) is None and states(run_dir) == PUSHED


def test_a_hub_that_stays_away_is_given_up_some_time_after_the_training_and_nothing_is_lost(hub, client, make_run):
    run_dir = hub_runs.set_repo(make_run(), wait=0.5)
    hub.stop()
    said = []
    assert watch(push_of(run_dir, client, said)) is not None
    assert states(run_dir) == {"2": "failed"} and "time is up; steps that are left: [2, 4]" in said[-1]
    hub.start()
    push(run_dir, client)
    hub_runs.assert_pushed(hub, run_dir, 2)


def test_what_can_never_be_pushed_does_not_keep_it_waiting_after_the_training(hub, client, make_run):
    run_dir = hub_runs.set_repo(make_run(), wait=600)
    (model_of(run_dir, 4) / "chat_template.jinja").write_text("{# gh" + "p_" + "NEEDLE" * 6 + " #}")
    error = watch(push_of(run_dir, client), sleep=pytest.fail)
    assert error.permanent and "chat_template.jinja" in str(error) and states(run_dir) == {"2": "pushed", "4": "failed"}


def test_files_of_the_run_that_cannot_be_read_do_not_end_it(hub, client, make_run):
    run_dir, said = hub_runs.set_repo(make_run(status="running")), []
    listed = (run_dir / "checkpoints.jsonl").read_text()
    (run_dir / "checkpoints.jsonl").write_text("no JSON\n")
    repaired = lambda _: (run_dir / "checkpoints.jsonl").write_text(listed)  # noqa: E731
    assert watch(push_of(run_dir, client, said), sleep=repaired) is None
    assert "checkpoints.jsonl is damaged" in said[0] and states(run_dir) == PUSHED


def test_a_log_that_the_disk_has_no_room_for_does_not_end_it():
    code = "from openrlhf_ebpo.hub.push import log; import os; log('no room'); os.write(2, b'still there'); os._exit(7)"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (7, b"still there")
