"""A push sends the exports that the Hub lacks: in order, in spite of faults, kills and a Hub that is away."""

import json
import shutil
import subprocess
import sys
import time

import hub_runs
import pytest
from commands import refused
from hub_repos import File
from hub_runs import REPO, forked, model_of, push, push_of, round_of
from patience import seconds, wait_until
from safetensors.numpy import save_file

from openrlhf_ebpo.cli import hub as hub_cli
from openrlhf_ebpo.files import append_json_line, write_json
from openrlhf_ebpo.hub.content import Publishable
from openrlhf_ebpo.hub.push import list_exports
from openrlhf_ebpo.hub_client import hub_api, retrying
from openrlhf_ebpo.run.run_log import read_run


@pytest.fixture
def client(hub, monkeypatch):
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_TIMEOUT", str(seconds(3)))
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_PAUSE", "0.01")
    monkeypatch.setattr("openrlhf_ebpo.hub.push.card", lambda *_: Publishable({"README.md": b"# card\n"}))
    return hub_api(hub.url, hub.token)


def titles(hub, repo=REPO):
    return [commit.subject for commit in hub.repo(repo).history()]


# The loop


def test_steps_are_pushed_in_order_and_verified(hub, client, make_run):
    run_dir = make_run(steps=(2, 4, 10))
    said = push(run_dir, client)
    repo = hub.repo(REPO)
    assert titles(hub) == ["step 10", "step 4", "step 2", "initial commit"]
    assert list(repo.tags) == ["step-000002", "step-000004", "step-000010"] and repo.private
    assert set(repo.branches) == {"main"}
    for step in (2, 4, 10):
        hub_runs.assert_pushed(hub, run_dir, step)
    assert f"step 2 is at {hub.url}/{REPO}/tree/step-000002" in said[0] and "all verified" in said[0]
    assert not (run_dir / "hub.json").exists() and not (run_dir / "hub").exists()


def test_what_is_there_is_not_sent_again(hub, client, make_run):
    run_dir = make_run()
    push(run_dir, client)
    before = len(hub.requests)
    assert push(run_dir, client) == []
    assert {request.split()[0] for request in hub.requests[before:]} <= {"GET", "HEAD"}
    assert titles(hub) == ["step 4", "step 2", "initial commit"]


@pytest.mark.parametrize("lost", ["tag", "file", "weights", "repo"])
def test_what_the_hub_has_lost_is_missing_again(hub, client, make_run, lost):
    """A repo that is deleted while it is watched comes back with all steps."""
    run_dir = make_run()
    loop = push_of(run_dir, client)
    loop.round()
    repo = hub.repo(REPO)
    if lost == "repo":
        hub.repos.clear()
    elif lost == "tag":
        del repo.tags["step-000002"]
    else:
        files = {name: file for name, file in repo.find("step-000002").files.items() if name != "prior.json"}
        files |= {} if lost == "file" else {"model.safetensors": File(b"other", True)}
        repo.tags["step-000002"] = repo.commit("side", files, "by hand").id
        loop = push_of(run_dir, client)
    loop.round()
    for step in (2, 4):
        hub_runs.assert_pushed(hub, run_dir, step)


def test_a_model_that_was_exported_again_is_pushed_again(hub, client, make_run):
    run_dir = make_run()
    loop = push_of(run_dir, client)
    loop.round()
    loop.round()
    hub_runs.export_model(model_of(run_dir, 4), 9)
    loop.round()
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
    retrying(push_of(run_dir, client).round, sleep=lambda _: None)
    if call == "/tag/":
        push_of(run_dir, client).round()
    found = hub.repo(REPO).files("step-000002")
    for name in ("model.safetensors", "config.json", "prior.json"):
        assert found[name] == (model_of(run_dir, 2) / name).read_bytes(), name


def test_a_late_step_does_not_turn_main_back(hub, client, make_run):
    run_dir = make_run()
    loop = push_of(run_dir, client)
    rows = (run_dir / "checkpoints.jsonl").read_text().splitlines(keepends=True)
    (run_dir / "checkpoints.jsonl").write_text(rows[1])
    loop.round()
    (run_dir / "checkpoints.jsonl").write_text("".join(rows))
    loop.round()
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


@pytest.mark.parametrize("save_steps", [2, 20])
def test_every_export_and_the_final_model_go_whatever_the_flags_of_the_last_start(hub, client, make_run, save_steps):
    run_dir = make_run(steps=(10, 20, 30, 40))
    run = read_run(run_dir)
    run["args"]["ckpt"]["save_steps"] = save_steps
    write_json(run_dir / "run.json", run)
    append_json_line(run_dir / "checkpoints.jsonl", {"step": 35, "tag": "best_global_step35", "model": "gone"})
    append_json_line(run_dir / "metrics.jsonl", {"step": 41, "time": 41})
    hub_runs.export_model(run_dir.parent / "model", 41)
    push(run_dir, client)
    assert list(hub.repo(REPO).tags) == [f"step-{step:06d}" for step in (10, 20, 30, 40, 41)]
    hub_runs.assert_pushed(hub, run_dir, 41)


def test_the_list_of_exports_reads_the_run_once_or_twice(make_run, monkeypatch):
    run_dir, read = make_run(steps=range(1, 30)), []
    monkeypatch.setattr("openrlhf_ebpo.run.checkpoint_list.read_run", lambda path: read.append(path) or read_run(path))
    assert len(list_exports(run_dir)) == 29 and len(read) <= 3


def test_a_repo_of_another_run_or_of_something_else_is_left_alone(hub, use_hub, client, make_run):
    first, second = make_run("first"), make_run("second", started="2026-02-02T00:00:00+00:00")
    push(first, client)
    before = hub.repo(REPO).branches | hub.repo(REPO).tags
    error = round_of(push_of(second, client))
    assert error.permanent and "holds another run" in str(error)
    assert hub.repo(REPO).branches | hub.repo(REPO).tags == before
    theirs = {"tf_model.h5": File(b"weights", False), "README.md": File(b"# theirs\n", False)}
    hub.create("owner/theirs").commit("main", theirs, "theirs")
    loop = push_of(second, client, repo="owner/theirs")
    assert "(tf_model.h5)" in str(round_of(loop))
    assert hub.repo("owner/theirs").files() == {"tf_model.h5": b"weights", "README.md": b"# theirs\n"}
    words = f"error: --repo {REPO}: {REPO} holds another run"
    assert words in refused(hub_cli.main, "push", second, "--repo", REPO)
    hub_cli.main(["push", str(second), "--repo", "owner/second"])
    assert list(hub.repo("owner/second").tags) == ["step-000004"]  # the last one


def test_two_runs_of_the_same_second_are_two_by_their_random_ids(hub, client, make_run):
    first, second = make_run("first"), make_run("second")
    for run_dir, number in ((first, "0123456789abcdef"), (second, "fedcba9876543210")):
        write_json(run_dir / "run.json", {**read_run(run_dir), "id": number})
    push(first, client)
    assert "holds another run" in str(round_of(push_of(second, client)))
    assert push(first, client) == []


def test_a_card_that_the_hub_refuses_does_not_hold_the_model_back(hub, client, make_run, monkeypatch):
    text = b"---\nlicense: nonsense\n---\n\n# card\n"
    monkeypatch.setattr("openrlhf_ebpo.hub.push.card", lambda *_: Publishable({"README.md": text}))
    answer = {"errors": [{"message": "license must be one of the known ones"}], "warnings": []}
    hub.fail("validate-yaml", 400, body=json.dumps(answer).encode())
    run_dir = make_run(steps=(2,))
    said = "\n".join(push(run_dir, client))
    assert "license must be one of the known ones" in said and "without its card" in said
    assert "README.md" not in hub.repo(REPO).files()
    hub_runs.assert_pushed(hub, run_dir, 2)


def test_a_card_that_cannot_be_made_does_not_hold_the_model_back(hub, client, make_run, monkeypatch):
    monkeypatch.undo()
    run_dir = make_run(steps=(2,))
    summary = run_dir / "eval" / "default" / "aime24" / "step-000002" / "summary.json"
    summary.parent.mkdir(parents=True)
    summary.write_text("no JSON\n")
    said = push(run_dir, hub_api(hub.url, hub.token))
    assert "without a model card" in "\n".join(said) and "README.md" not in hub.repo(REPO).files()
    hub_runs.assert_pushed(hub, run_dir, 2)


def test_a_hub_that_is_away_keeps_the_order_and_a_refused_step_lets_the_others_pass(hub, client, make_run):
    run_dir = make_run()
    hub.stop()
    loop = push_of(run_dir, client)
    assert not round_of(loop).permanent and loop.left == "2, 4"
    hub.start()
    (model_of(run_dir, 2) / "model.safetensors").write_bytes(b"cut")
    assert "damaged or cut off" in str(round_of(loop))
    assert list(hub.repo(REPO).tags) == ["step-000004"] and loop.left == "2"
    shutil.rmtree(model_of(run_dir, 2))
    assert "is gone, and was not pushed" in str(round_of(loop))


def test_giving_up_loses_nothing_and_what_had_arrived_is_not_sent_again(hub, use_hub, client, make_run):
    run_dir = hub_runs.set_repo(make_run(steps=(2,)))
    hub.fail(r"POST .*/commit/", 503, times=5)
    assert "steps 2 are not pushed" in refused(hub_cli.main, "push", run_dir)
    hub_cli.main(["push", str(run_dir)])
    assert hub.count("^PUT") == 1
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
    monkeypatch.setattr("openrlhf_ebpo.hub.publish.publish", lambda *_, **__: time.sleep(999))
    error = round_of(push_of(make_run(steps=(2,)), client))
    assert "it did not end within" in str(error) and not error.permanent


# The command


def test_a_dry_run_lists_sizes_and_leaves_no_trace(hub, use_hub, make_run, capsys):
    run_dir = make_run()
    hub_cli.main(["push", str(run_dir), "--repo", REPO, "--step", "2", "--dry_run"])
    out = capsys.readouterr().out
    assert "1.20 MB  model.safetensors" in out and "nothing was sent" in out and not hub.repos


def test_a_corrected_file_is_not_missing_until_force(hub, use_hub, make_run, capsys):
    run_dir = hub_runs.set_repo(make_run(steps=(2,)))
    push(run_dir)
    repo = hub.repo(REPO)
    corrected = {**repo.find("main").files, "config.json": File(b"{}", False)}
    repo.tags["step-000002"] = repo.commit("main", corrected, "Update config.json").id
    capsys.readouterr()
    hub_cli.main(["push", str(run_dir)])
    assert "nothing is missing" in capsys.readouterr().out and repo.files()["config.json"] == b"{}"
    hub_cli.main(["push", str(run_dir), "--force"])
    hub_runs.assert_pushed(hub, run_dir, 2)


def test_a_dry_run_says_what_is_missing(hub, use_hub, make_run, capsys):
    run_dir = hub_runs.set_repo(make_run())
    push(run_dir)
    capsys.readouterr()
    hub_cli.main(["push", str(run_dir), "--dry_run"])
    assert capsys.readouterr().out == f"nothing is missing: 2 steps are at {hub.url}/{REPO}\n"
    del hub.repo(REPO).tags["step-000002"]
    shutil.rmtree(model_of(run_dir, 4))  # pushed, and deleted here: its tag is enough
    hub_cli.main(["push", str(run_dir), "--dry_run"])
    out = capsys.readouterr().out
    assert out.count("dry run") == 1 and "step 2, tag step-000002:" in out and "step-000002" not in hub.repo(REPO).tags


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--repo", REPO, "--step", "3"], "no saved model of step 3; saved steps: 2, 4"),
        (["--step", "3"], "say where to push, with --repo owner/name"),
        ([], "was trained without --hub.repo"),
    ],
)
def test_mistakes_are_explained(hub, use_hub, make_run, argv, words):
    assert words in refused(hub_cli.main, "push", make_run(), *argv) and not hub.repos


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


def test_the_final_model_of_a_run_that_saved_nothing_else(hub, use_hub, make_run):
    run_dir = make_run(steps=())
    assert "saved steps: none: train with --ckpt.save_hf" in refused(hub_cli.main, "push", run_dir, "--repo", REPO)
    hub_runs.export_model(run_dir.parent / "model", 7)
    (run_dir / "metrics.jsonl").write_text('{"step": 7, "time": 1}\n')
    hub_cli.main(["push", str(run_dir.parent), "--repo", REPO, "--public"])
    hub_runs.assert_pushed(hub, run_dir, 7)
    assert not hub.repo(REPO).private


# Processes


class Blobs(dict):
    """The store of LFS; remembers every arrival."""

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
    wait_until(lambda: not hub.at_once)  # what had been sent completely has arrived
    hub_cli.main(["push", str(run_dir)])
    assert titles(hub) == ["step 4", "step 2", "initial commit"]
    for step in (2, 4):
        hub_runs.assert_pushed(hub, run_dir, step)
    assert len(hub.blobs.arrivals) == len(set(hub.blobs.arrivals))
