"""The outbox of a run and who empties it: in order, in spite of faults, kills and a Hub that is away."""

import json
import os
import shutil

import hub_runs
import pytest
from hub_runs import REPO, model_of, queue, states
from patience import seconds

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import unlink_shared, write_json
from openrlhf_ebpo.hub import outbox
from openrlhf_ebpo.hub.push import attempt, drain, push_all
from openrlhf_ebpo.hub.upload import publish
from openrlhf_ebpo.hub_client import hub_api


@pytest.fixture
def client(hub, monkeypatch):
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_TIMEOUT", str(seconds(3)))
    monkeypatch.setattr("openrlhf_ebpo.hub.push.card", lambda run_dir, step, repo, report: {"README.md": b"# card\n"})
    return hub_api(hub.url, hub.token)


def said(lines):
    return "\n".join(lines)


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
        hub_runs.assert_pushed(hub, run_dir, step)
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
    hub_runs.assert_pushed(hub, run_dir, 2)
    hub_runs.assert_pushed(hub, run_dir, 4)


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
    hub_runs.assert_pushed(hub, run_dir, 2)


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
    hub_runs.assert_pushed(hub, run_dir, 3)


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
        hub_runs.assert_pushed(hub, run_dir, 2)
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
    hub_runs.assert_pushed(hub, run_dir, 2)
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
    hub_runs.assert_pushed(hub, run_dir, 2)
    hub_runs.assert_pushed(hub, run_dir, 4)


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
    hub_runs.assert_pushed(hub, run_dir, 2)


def test_a_card_that_cannot_be_made_does_not_hold_the_model_back(hub, client, make_run, monkeypatch):
    monkeypatch.undo()
    run_dir = make_run()
    (run_dir / "metrics.jsonl").write_text("no JSON\n")
    queue(run_dir, 2)
    lines = []
    assert drain(run_dir, hub_api(hub.url, hub.token), lines.append) is None
    assert "without a model card" in said(lines) and "README.md" not in hub.repo(REPO).files()
    hub_runs.assert_pushed(hub, run_dir, 2)
