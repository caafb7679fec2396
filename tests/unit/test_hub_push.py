"""The outbox of a run and who empties it: in order, in spite of faults, kills and a Hub that is away."""

import json
import os
import shutil
import signal
import subprocess
import sys

import hub_runs
import psutil
import pytest
from commands import refused
from hub_runs import REPO, model_of, queue, states
from patience import seconds, wait_until

from openrlhf_ebpo.cli import hub as hub_cli
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import unlink_shared, write_json
from openrlhf_ebpo.hub import outbox, pusher
from openrlhf_ebpo.hub.push import attempt, drain, push_all
from openrlhf_ebpo.hub.upload import publish
from openrlhf_ebpo.hub_client import hub_api
from openrlhf_ebpo.run.run_lock import write_holder


@pytest.fixture
def client(hub, monkeypatch):
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_TIMEOUT", str(seconds(3)))
    monkeypatch.setattr("openrlhf_ebpo.hub.push.card", lambda run_dir, step, repo, report: {"README.md": b"# card\n"})
    return hub_api(hub.url, hub.token)


def said(lines):
    return "\n".join(lines)


def assert_pushed(hub, run_dir, step, repo=REPO):
    found = hub.repo(repo).files(f"step-{step:06d}")
    model = hub_runs.export_model(run_dir.parent / "again" / str(step), step)
    for name in ("model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja", "prior.json"):
        assert found[name] == (model / name).read_bytes(), (step, name)
    assert "optimizer.bin" not in found and json.loads(found["run.json"])["name"] == "test"


# Snapshots


def test_a_snapshot_takes_no_room_and_outlives_clean_up_and_a_repeated_step(make_run):
    run_dir = make_run()
    model = model_of(run_dir, 2)
    queue(run_dir, 2)
    (item,) = outbox.items(run_dir)
    weights = item.path / "files" / "model.safetensors"
    assert weights.samefile(model / "model.safetensors") and not (item.path / "files" / "optimizer.bin").exists()
    before = {path: file.read_bytes() for path, file in item.files().items()}
    unlink_shared(model)
    hub_runs.export_model(model, 99)  # a resumed run writes the same step again
    assert {path: file.read_bytes() for path, file in item.files().items()} == before
    shutil.rmtree(model)
    assert {path: file.read_bytes() for path, file in item.files().items()} == before
    assert outbox.pending(run_dir) == 1


def test_the_folder_of_an_adapters_base_model_stays_here(make_run):
    run_dir = make_run()
    model = model_of(run_dir, 2)
    adapter = {"r": 4, "base_model_name_or_path": str(run_dir.parent / "base")}
    write_json(model / "adapter_config.json", adapter)
    queue(run_dir, 2)
    files = outbox.items(run_dir)[0].files()
    assert json.loads(files["adapter_config.json"].read_text()) == {**adapter, "base_model_name_or_path": "base"}
    assert files["config.json"].read_bytes() == (model / "config.json").read_bytes()


def test_where_links_are_not_possible_files_are_copied(make_run, monkeypatch):
    def refuse(*_, **__):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("os.link", refuse)
    run_dir = make_run()
    queue(run_dir, 2)
    (item,) = outbox.items(run_dir)
    model = model_of(run_dir, 2) / "model.safetensors"
    copied = item.files()["model.safetensors"]
    assert copied.read_bytes() == model.read_bytes() and not copied.samefile(model)


def test_a_half_taken_snapshot_does_not_count(make_run, monkeypatch):
    run_dir = make_run()
    monkeypatch.setattr("openrlhf_ebpo.hub.outbox.write_json", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        queue(run_dir, 2)
    assert outbox.items(run_dir) == [] and list(outbox.outbox(run_dir).iterdir()) == []
    (outbox.outbox(run_dir) / "step-000002").mkdir()  # a kill in the middle of taking one away
    assert outbox.items(run_dir) == [] and outbox.pending(run_dir) == 0


def test_a_model_without_safetensors_is_no_model(make_run):
    run_dir = make_run()
    model = model_of(run_dir, 2)
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    with pytest.raises(UsageError, match=r"holds no model in safetensors .*pytorch_model.bin"):
        queue(run_dir, 2)
    shutil.rmtree(model)
    with pytest.raises(UsageError, match="no such folder"):
        queue(run_dir, 2)


def test_a_snapshot_that_came_during_the_push_stays(make_run):
    run_dir = make_run()
    queue(run_dir, 2)
    (old,) = outbox.items(run_dir)
    queue(run_dir, 2)
    outbox.remove(old)
    (new,) = outbox.items(run_dir)
    assert new.token != old.token and new.files()
    outbox.remove(new)
    assert outbox.items(run_dir) == [] and list(outbox.outbox(run_dir).iterdir()) == []


def test_parts_of_snapshots_are_removed_and_a_damaged_one_stays(make_run):
    run_dir = make_run()
    queue(run_dir, 2, 4)
    two, four = outbox.items(run_dir)
    (outbox.outbox(run_dir) / ".99999999.new" / "files").mkdir(parents=True)  # killed in `add`
    (two.path / "push.json").unlink()  # killed in `remove`
    (four.path / "push.json").write_text("{")
    outbox.tidy(run_dir)
    assert list(outbox.outbox(run_dir).iterdir()) == [four.path] == outbox.damaged(run_dir)


@pytest.mark.parametrize("call", ["pathlib.Path.rename", "pathlib.Path.unlink", "shutil.rmtree"])
def test_a_step_that_waits_is_not_lost_where_its_replacement_is_killed(make_run, monkeypatch, call):
    run_dir = make_run()
    queue(run_dir, 2)
    if not (child := os.fork()):
        monkeypatch.setattr(call, lambda *_, **__: os._exit(9))
        queue(run_dir, 2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    (item,) = outbox.items(run_dir)
    assert outbox.snapshot_files(item)
    outbox.tidy(run_dir)
    outbox.remove(item)
    assert list(outbox.outbox(run_dir).iterdir()) == []


def test_the_newest_snapshot_counts_though_the_clock_was_set_back(make_run, monkeypatch):
    run_dir = make_run()
    queue(run_dir, 2)
    (old,) = outbox.items(run_dir)
    monkeypatch.setattr("time.time_ns", lambda: 1)
    queue(run_dir, 2)
    (new,) = outbox.items(run_dir)
    assert new.token > old.token and not outbox.is_current(old)


# Emptying it


def test_steps_are_pushed_in_order_verified_and_recorded(hub, client, make_run):
    run_dir = make_run(steps=(2, 4, 10))
    queue(run_dir, 10, 2, 4)
    lines = []
    assert drain(run_dir, client, lines.append) is None
    repo = hub.repo(REPO)
    assert [c.title for c in repo.history()] == ["step 10", "step 4", "step 2", "initial commit"]
    assert list(repo.tags) == ["step-000002", "step-000004", "step-000010"] and repo.private
    assert set(repo.branches) == {"main"}
    for step in (2, 4, 10):
        assert_pushed(hub, run_dir, step)
    entry = outbox.read_state(run_dir)["steps"]["4"]
    assert entry["state"] == "pushed" and entry["attempts"] == 1 and entry["error"] is None
    assert entry["commit"] == repo.tags["step-000004"] and entry["url"].endswith("/tree/step-000004")
    assert outbox.items(run_dir) == [] and "all verified" in lines[0]


def test_a_late_step_does_not_turn_main_back(hub, client, make_run):
    run_dir = make_run()
    queue(run_dir, 4)
    drain(run_dir, client)
    queue(run_dir, 2)
    assert drain(run_dir, client) is None
    repo = hub.repo(REPO)
    assert repo.branches["main"] == repo.tags["step-000004"]
    assert repo.branches["checkpoint-000002"] == repo.tags["step-000002"]
    assert_pushed(hub, run_dir, 2)
    assert_pushed(hub, run_dir, 4)


def test_the_optimizers_state_goes_only_when_asked_for_and_does_not_pile_up(hub, client, make_run):
    run_dir = make_run()
    for step in (2, 4):
        queue(run_dir, step, full_state=[run_dir.parent / "ckpt" / "_actor" / f"global_step{step}"])
    assert drain(run_dir, client) is None
    state = {p: c for p, c in hub.repo(REPO).files().items() if p.startswith("full_state/")}
    assert state.pop("full_state/_actor/global_step4/manifest.json")
    assert state == {
        "full_state/_actor/global_step4/mp_rank_00_model_states.pt": b"pickle of step 4",
        "full_state/_actor/latest": b"global_step4",
    }
    assert "full_state/_actor/global_step2/mp_rank_00_model_states.pt" in hub.repo(REPO).files("step-000002")


def test_a_repo_of_another_run_is_left_alone(hub, client, make_run):
    first, second = make_run("first"), make_run("second", started="2026-02-02T00:00:00+00:00")
    queue(first, 2)
    drain(first, client)
    before = hub.repo(REPO).branches | hub.repo(REPO).tags
    queue(second, 2)
    error = drain(second, client, sleep=pytest.fail)
    assert error.permanent and "holds another run" in str(error)
    assert hub.repo(REPO).branches | hub.repo(REPO).tags == before
    assert states(second) == {"2": "failed"} and outbox.pending(second) == 1


def test_a_repo_with_a_model_of_something_else_is_left_alone(hub, client, make_run):
    run_dir = make_run()
    theirs = {"model-00001-of-00002.safetensors": b"weights", "README.md": b"# theirs\n"}
    publish(client, REPO, theirs, message="theirs", manifest=None)
    queue(run_dir, 2)
    error = drain(run_dir, client, sleep=pytest.fail)
    assert error.permanent and "holds files of something else than a run" in str(error) and outbox.pending(run_dir) == 1
    assert hub.repo(REPO).files()["README.md"] == b"# theirs\n" and not hub.repo(REPO).tags
    hub.create("owner/made-by-hand")
    queue(run_dir, 2, repo="owner/made-by-hand")
    assert drain(run_dir, client, sleep=pytest.fail) is None


def test_a_card_that_the_hub_refuses_does_not_hold_the_model_back(hub, client, make_run, monkeypatch):
    card = b"---\nlicense: nonsense\n---\n\n# card\n"
    monkeypatch.setattr("openrlhf_ebpo.hub.push.card", lambda *_: {"README.md": card})
    refused = {"errors": [{"message": "license must be one of the known ones"}], "warnings": []}
    hub.fail("validate-yaml", 400, body=json.dumps(refused).encode())
    run_dir, lines = make_run(), []
    queue(run_dir, 2)
    assert drain(run_dir, client, lines.append, sleep=pytest.fail) is None
    assert "license must be one of the known ones" in said(lines) and "without its card's metadata" in said(lines)
    assert hub.repo(REPO).files()["README.md"] == b"# card\n"
    assert_pushed(hub, run_dir, 2)


def test_what_a_resumed_run_rolled_back_does_not_hold_main(hub, client, make_run):
    run_dir = make_run(steps=(2, 3, 4))
    queue(run_dir, 2, 4)
    drain(run_dir, client)
    rows = (run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run_dir / "metrics.jsonl").write_text("".join(rows[:3]))  # resumed from step 2, now at step 3
    queue(run_dir, 3)
    assert drain(run_dir, client) is None
    repo = hub.repo(REPO)
    assert repo.branches == {"main": repo.tags["step-000003"]} and "step-000004" in repo.tags
    assert_pushed(hub, run_dir, 3)


@pytest.mark.parametrize("call", ["/preupload/", "PUT /lfs/", "/commit/", "/tag/"])
def test_a_step_that_is_saved_again_during_its_push_gets_no_tag_of_mixed_files(hub, client, make_run, call):
    run_dir = make_run()
    queue(run_dir, 2)
    (old,) = outbox.items(run_dir)
    again = hub_runs.export_model(run_dir.parent / "again", 9)

    def meanwhile(request, found=hub.fault_for):
        if call in request and outbox.is_current(old):
            outbox.add(run_dir, 2, again, repo=REPO)
        return found(request)

    hub.fault_for = meanwhile
    error = attempt(run_dir, old, client)
    assert not outbox.is_current(old) and outbox.pending(run_dir) == 1
    assert error is None or ("was saved again while it was being pushed" in str(error) and not error.permanent)
    if error is None:
        assert_pushed(hub, run_dir, 2)
    else:
        assert not hub.repo(REPO).tags
    assert drain(run_dir, client) is None
    found = hub.repo(REPO).files("step-000002")
    for name in ("model.safetensors", "config.json", "prior.json"):
        assert found[name] == (again / name).read_bytes(), name


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"cut")])
def test_a_damaged_snapshot_is_not_pushed_and_takes_nothing_away(hub, client, make_run, damage):
    run_dir = make_run()
    queue(run_dir, 2)
    drain(run_dir, client)
    queue(run_dir, 4)
    weights = outbox.items(run_dir)[0].path / "files" / "model.safetensors"
    damage(weights)
    error = drain(run_dir, client, sleep=pytest.fail)
    assert "is damaged (model.safetensors not as queued)" in str(error) and f"--repo {REPO} --step 4" in str(error)
    assert_pushed(hub, run_dir, 2)
    assert list(hub.repo(REPO).tags) == ["step-000002"] and len(hub.repo(REPO).history()) == 2


def test_a_full_disk_keeps_nothing_from_being_pushed(hub, client, make_run, monkeypatch):
    run_dir, lines = make_run(), []
    queue(run_dir, 2, 4)

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("openrlhf_ebpo.hub.outbox.write_json", refuse)
    monkeypatch.setattr("pathlib.Path.write_bytes", refuse)
    assert drain(run_dir, client, lines.append, sleep=pytest.fail) is None
    assert "could not be written to hub.json: [Errno 28]" in said(lines) and outbox.pending(run_dir) == 0
    assert hub.repo(REPO).files()["README.md"] == b"# card\n"
    monkeypatch.undo()
    assert_pushed(hub, run_dir, 2)
    assert_pushed(hub, run_dir, 4)


def test_a_hub_that_is_away_keeps_the_order_and_a_refused_step_lets_the_others_pass(hub, client, make_run, no_waiting):
    run_dir = make_run()
    queue(run_dir, 2)
    queue(run_dir, 4, repo="stranger/model")
    hub.stop()
    assert not push_all(run_dir, client).permanent
    assert states(run_dir) == {"2": "failed"}  # 4 was not even tried
    hub.start()
    queue(run_dir, 2, repo="stranger/model")
    queue(run_dir, 4)
    assert push_all(run_dir, client).status == 403
    assert states(run_dir) == {"2": "failed", "4": "pushed"}
    assert outbox.read_state(run_dir)["failed"] == 2


def test_attempts_are_counted_pauses_grow_and_giving_up_loses_nothing(hub, client, make_run, monkeypatch):
    run_dir = make_run()
    monkeypatch.delenv("OPENRLHF_EBPO_HUB_PAUSE", raising=False)
    queue(run_dir, 2)
    hub.fail(r"POST .*/commit/", 503, times=3)
    waited, lines = [], []
    error = drain(run_dir, client, lines.append, attempts=3, sleep=waited.append)
    assert error.status == 503 and waited == [5, 10] and outbox.pending(run_dir) == 1
    entry = outbox.read_state(run_dir)["steps"]["2"]
    assert (entry["state"], entry["attempts"]) == ("failed", 3) and "(503)" in entry["error"]
    assert drain(run_dir, client, lines.append, sleep=pytest.fail) is None
    assert outbox.read_state(run_dir)["failed"] == 3
    assert hub.count("^PUT") == 1  # what had arrived was not sent again
    assert_pushed(hub, run_dir, 2)


def test_a_card_that_cannot_be_made_does_not_hold_the_model_back(hub, client, make_run, monkeypatch):
    monkeypatch.undo()
    run_dir = make_run()
    (run_dir / "metrics.jsonl").write_text("no JSON\n")
    queue(run_dir, 2)
    lines = []
    assert drain(run_dir, hub_api(hub.url, hub.token), lines.append) is None
    assert "without a model card" in said(lines) and "README.md" not in hub.repo(REPO).files()
    assert_pushed(hub, run_dir, 2)


# The commands


def hub_command(environment, *argv, **variables):
    command = [sys.executable, "-m", "openrlhf_ebpo.cli.hub", *map(str, argv)]
    fast = {"OPENRLHF_EBPO_HUB_PAUSE": "0.05", "OPENRLHF_EBPO_HUB_TIMEOUT": str(seconds(5)), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env={**environment, **fast, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process):
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err, err
    return process.returncode, out, err


def test_a_push_that_was_killed_is_finished_by_repeating_it(hub, use_hub, hub_environment, make_run, capsys):
    run_dir = make_run()
    fault = hub.fail(r"POST .*/commit/", hang=True)
    process = hub_command(hub_environment, "push", run_dir, "--repo", REPO)
    wait_until(lambda: fault.hits)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not hub.repo(REPO).tags and states(run_dir) == {"4": "pushing"}
    hub_cli.main(["push", str(run_dir)])
    assert "step 4 is at" in capsys.readouterr().out and list(hub.repo(REPO).tags) == ["step-000004"]
    assert_pushed(hub, run_dir, 4)
    assert len(hub.repo(REPO).history()) == 2 and hub.repo(REPO).files()["README.md"].startswith(b"---\n")


def test_a_push_by_xet_that_fails_waits_and_is_finished_without_it(hub, use_hub, hub_environment, make_run):
    """The test server has no Xet, whose errors are of other types than the client's own."""
    run_dir = make_run()
    environment = {**hub_environment, "HF_HUB_DISABLE_XET": "0"}
    code, _, err = finish(hub_command(environment, "push", run_dir, "--repo", REPO, "--attempts", "1"))
    assert code == 1 and "steps 4 are not pushed (pushing to owner/model: no usable answer" in err
    assert not hub.repo(REPO).tags and outbox.pending(run_dir) == 1
    hub_cli.main(["push", str(run_dir)])
    assert_pushed(hub, run_dir, 4)


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
        (["--step", "3"], "--step: say where to push, with --repo owner/name"),
        ([], "nothing is queued"),
    ],
)
def test_mistakes_are_explained(hub, use_hub, make_run, argv, words):
    assert words in refused(hub_cli.main, "push", make_run(), *argv) and not hub.repos


def test_a_repo_of_another_run_is_refused_before_anything_is_queued_for_it(hub, use_hub, make_run):
    hub_cli.main(["push", str(make_run("first")), "--repo", REPO])
    second = make_run("second", started="2026-02-02T00:00:00+00:00")
    words = f"error: --repo {REPO}: {REPO} holds another run"
    assert words in refused(hub_cli.main, "push", second, "--repo", REPO)
    hub_cli.main(["push", str(second), "--repo", "owner/second"])
    assert_pushed(hub, second, 4, "owner/second")


def test_a_snapshot_that_waits_is_not_replaced_by_a_push_to_somewhere_else_or_of_less(hub, use_hub, make_run):
    run_dir = make_run()
    queue(run_dir, 4, full_state=[run_dir.parent / "ckpt" / "_actor" / "global_step4"])
    for repo, words in (("owner/other", "waits to be pushed to owner/model"), (REPO, "with the optimizer's state")):
        said = refused(hub_cli.main, "push", run_dir, "--repo", repo)
        assert words in said and f"hub push {run_dir}" in said
    shutil.rmtree(run_dir.parent / "ckpt")  # what waits is all that there is
    hub_cli.main(["push", str(run_dir)])
    assert "full_state/_actor/global_step4/mp_rank_00_model_states.pt" in hub.repo(REPO).files("step-000004")
    assert list(hub.repos) == [("model", REPO)]


def test_a_run_that_was_moved_or_copied_pushes_the_models_beside_it(hub, use_hub, make_run, tmp_path, capsys):
    run_dir = make_run()
    run = json.loads((run_dir / "run.json").read_text())
    run["args"]["logger"]["run_dir"] = str(run_dir)
    write_json(run_dir / "run.json", run)
    copied = shutil.copytree(run_dir.parent, tmp_path / "copied")
    hub_runs.export_model(run_dir.parent / "ckpt" / "global_step4_hf", 99)  # the original goes other ways
    hub.create(REPO)
    hub_cli.main(["push", str(copied / "run"), "--repo", REPO])
    assert hub.repo(REPO).files()["model.safetensors"] == (
        (copied / "ckpt" / "global_step4_hf" / "model.safetensors").read_bytes()
    )
    assert "owner/model exists and is public" in capsys.readouterr().err
    alone = shutil.move(copied / "run", tmp_path / "alone")
    shutil.rmtree(run_dir.parent / "ckpt")
    said = refused(hub_cli.main, "push", alone, "--repo", REPO)
    assert "saved steps: none: step 4 was saved in" in said and "is gone" in said


def test_only_one_process_pushes(hub, use_hub, make_run):
    run_dir = make_run()
    with outbox.take_lock(run_dir) as lock:
        write_holder(lock)
        assert f"process {os.getpid()} is pushing this run" in refused(hub_cli.main, "push", run_dir, "--repo", REPO)
    assert outbox.items(run_dir) == []


def test_the_final_model_of_a_run_that_saved_nothing_else(hub, use_hub, make_run, capsys):
    run_dir = make_run(steps=())
    assert "saved steps: none: train with --ckpt.save_hf" in refused(hub_cli.main, "push", run_dir, "--repo", REPO)
    hub_runs.export_model(run_dir.parent / "model", 7)
    (run_dir / "metrics.jsonl").write_text('{"step": 7, "time": 1}\n')
    hub_cli.main(["push", str(run_dir.parent), "--repo", REPO, "--public"])
    assert_pushed(hub, run_dir, 7)
    assert not hub.repo(REPO).private
    hub_cli.main(["push", str(run_dir)])
    assert "nothing is waiting; step 7: pushed" in capsys.readouterr().out


# The process beside a training


@pytest.fixture
def beside(hub, hub_environment, monkeypatch):
    """Starts the process in the environment of a user; what it leaves behind is ended."""
    started = []

    def start(run_dir, seconds):
        for name, value in {**hub_environment, "OPENRLHF_EBPO_HUB_PAUSE": "0.05"}.items():
            monkeypatch.setenv(name, value)
        pusher.start(run_dir, seconds)
        started.append(run_dir)

    yield start
    for run_dir in started:
        if idle(run_dir):
            continue
        os.kill(int(outbox.who_pushes(run_dir)), signal.SIGKILL)


def idle(run_dir):
    lock = outbox.take_lock(run_dir)
    if lock:
        lock.close()
    return bool(lock)


def test_it_pushes_during_a_training_and_ends_after_it(hub, beside, make_run):
    run_dir = make_run(status="running")
    beside(run_dir, 60)
    assert not idle(run_dir)
    queue(run_dir, 2)
    wait_until(lambda: states(run_dir) == {"2": "pushed"})
    assert not idle(run_dir)
    queue(run_dir, 4)
    run = json.loads((run_dir / "run.json").read_text())
    write_json(run_dir / "run.json", {**run, "status": "complete"})
    wait_until(lambda: idle(run_dir))
    assert states(run_dir) == {"2": "pushed", "4": "pushed"}
    assert_pushed(hub, run_dir, 4)


def test_a_hub_that_stays_away_is_given_up_some_time_after_the_training_and_nothing_is_lost(
    hub, use_hub, beside, make_run
):
    run_dir = make_run(status="complete")
    queue(run_dir, 2)
    hub.stop()
    beside(run_dir, 0.5)
    wait_until(lambda: idle(run_dir))
    assert states(run_dir) == {"2": "failed"} and "time is up" in (run_dir / "hub" / "push.log").read_text()
    hub.start()
    hub_cli.main(["push", str(run_dir)])
    assert_pushed(hub, run_dir, 2)


def test_it_outlives_a_training_that_was_killed(hub, hub_environment, make_run):
    run_dir = make_run(status="running")
    queue(run_dir, 2, 4)
    start = f"from pathlib import Path; from openrlhf_ebpo.hub import pusher; pusher.start(Path({str(run_dir)!r}), 60)"
    kill = "; import os, signal; os.killpg(os.getpid(), signal.SIGKILL)"
    driver = subprocess.run([sys.executable, "-c", start + kill], env=hub_environment, start_new_session=True)
    assert driver.returncode == -signal.SIGKILL and not idle(run_dir)
    wait_until(lambda: idle(run_dir))
    assert states(run_dir) == {"2": "pushed", "4": "pushed"}
    assert_pushed(hub, run_dir, 4)


def test_a_training_that_was_killed_and_that_nobody_asks_for_is_over(make_run):
    run_dir = make_run(status="running")
    driver = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    clock = pusher.Clock(run_dir, psutil.Process(driver.pid), 60)
    assert not clock.over()
    driver.kill()
    wait_until(lambda: psutil.Process(driver.pid).status() == psutil.STATUS_ZOMBIE)
    assert clock.over() and not clock.expired()
    driver.communicate()


def test_an_error_in_the_process_itself_does_not_end_it(hub, client, make_run, monkeypatch):
    run_dir, lines = make_run(), []
    queue(run_dir, 2)
    unreadable = run_dir / "hub.json"
    unreadable.mkdir()
    clock = pusher.Clock(run_dir, None, 60)
    monkeypatch.setattr(clock, "sleep", lambda _: unreadable.is_dir() and unreadable.rmdir())
    monkeypatch.setattr(pusher, "hub_api", lambda: client)
    pusher.work(run_dir, clock, report=lines.append)
    assert "IsADirectoryError" in lines[0] and states(run_dir) == {"2": "pushed"}


def test_a_log_that_the_disk_has_no_room_for_does_not_end_it():
    code = (
        "from openrlhf_ebpo.hub.pusher import log; import os; log('no room'); os.write(2, b'still there'); os._exit(7)"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (7, b"still there")
