"""One push against the test server: nothing twice, nothing by halves, whatever goes wrong at whichever call."""

import json

import hub_runs
import pytest
from hub_repos import File
from huggingface_hub.hf_api import RepoFolder
from patience import seconds

from openrlhf_ebpo.hub.publish import Repo, check_owner, same_run
from openrlhf_ebpo.hub_client import HubError, hub_api

REPO = "owner/model"
CARD = b"---\nlicense: mit\n---\n# model\n"


@pytest.fixture
def files(tmp_path):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(range(256)) * 4000)
    return {"README.md": CARD, "config.json": b"{}", "model.safetensors": weights, "sub/prior.json": b'{"mean": 0}'}


@pytest.fixture
def client(hub, monkeypatch):
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_TIMEOUT", "60")
    return hub_api(hub.url, hub.token)


def push(client, files, **how):
    return hub_runs.publish(client, REPO, files, **{"message": "step 1", "tag": "step-000001", **how})


def assert_whole(hub, files, revision="step-000001"):
    found = hub.repo(REPO).files(revision)
    for path, content in files.items():
        assert found[path] == (content if isinstance(content, bytes) else content.read_bytes()), path


def test_a_push_is_one_commit_in_a_private_repo_under_a_tag(hub, client, files):
    published = push(client, files)
    repo = hub.repo(REPO)
    assert repo.private and [c.subject for c in repo.history()] == ["step 1", "initial commit"]
    assert repo.tags == {"step-000001": published.commit} and repo.branches == {"main": published.commit}
    assert set(published.sent) == set(files) and published.unchanged == 0
    assert published.url == f"{hub.url}/owner/model/tree/step-000001"
    assert_whole(hub, files)


def test_an_unchanged_push_sends_nothing_and_commits_nothing(hub, client, files):
    first = push(client, files)
    before = len(hub.requests)
    again = push(client, files)
    assert again.commit == first.commit and again.sent == [] and again.unchanged == 4
    assert {request.split()[0] for request in hub.requests[before:]} == {"GET"}
    other_tag = push(client, files, tag="step-000002")
    assert other_tag.commit == first.commit and len(hub.repo(REPO).history()) == 2
    assert hub.count("^PUT") == 1


def test_only_what_has_changed_is_sent_and_what_is_stale_goes(hub, client, files):
    push(client, {**files, "model-00002-of-00002.safetensors": b"x"})
    files["config.json"] = b'{"step": 2}'
    hub.repo(REPO).commit(
        "main", {**hub.repo(REPO).find("main").files, "theirs.safetensors": File(b"y", True)}, "by hand"
    )
    published = push(client, files, tag="step-000002")
    assert set(published.sent) == {"config.json"} and hub.count("^PUT") == 2
    assert "model-00002-of-00002.safetensors" not in hub.repo(REPO).files()
    assert "model-00002-of-00002.safetensors" in hub.repo(REPO).files("step-000001")
    assert hub.repo(REPO).files()["theirs.safetensors"] == b"y"
    assert_whole(hub, files, "step-000002")


def test_a_branch_of_its_own_and_other_kinds_of_repos(hub, client, files):
    push(client, files)
    older = push(client, {**files, "config.json": b"older"}, branch="checkpoint-000000", tag="step-000000")
    assert hub.repo(REPO).branches["checkpoint-000000"] == older.commit != hub.repo(REPO).branches["main"]
    assert hub.repo(REPO).files()["config.json"] == b"{}"
    hub_runs.publish(client, "owner/data", {"a.json": b"{}"}, "dataset", private=False)
    assert not hub.repo("owner/data", "dataset").private
    assert set(hub.repo("owner/data", "dataset").files()) == {".gitattributes", "a.json"}
    space = hub_runs.publish(client, "team/app", {"app.py": b"x"}, "space")
    assert hub.repo("team/app", "space").settings["sdk"] == "gradio" and space.url == f"{hub.url}/spaces/team/app"


def test_a_tag_moves_when_a_step_was_repeated(hub, client, files):
    push(client, {**files, "model-00002-of-00002.safetensors": b"x"})
    second = push(client, {**files, "config.json": b"repeated"})
    assert hub.repo(REPO).tags == {"step-000001": second.commit}
    assert "model-00002-of-00002.safetensors" not in hub.repo(REPO).files("step-000001")


def test_a_tag_whose_commit_has_a_stale_file_too_moves(hub, client, files):
    """All that is pushed is under the tag already, and the weights of a save with more shards as well."""
    push(client, {**files, "model-00002-of-00002.safetensors": b"x"}, tag="old")
    push(client, files, tag="step-000002")
    repo = hub.repo(REPO)
    repo.tags["step-000001"] = repo.tags["old"]
    assert repo.tags["step-000001"] != push(client, files).commit == repo.tags["step-000001"]
    assert "model-00002-of-00002.safetensors" not in repo.files("step-000001")


CALLS = {
    "look": r"GET .*/revision/main",
    "create": r"POST .*/repos/create",
    "validate": r"POST .*/validate-yaml",
    "preupload": r"POST .*/preupload/",
    "batch": r"POST .*/objects/batch",
    "put": r"^PUT /lfs/",
    "verify": r"POST /lfs/.*/verify",
    "commit": r"POST .*/commit/",
    "list": r"GET .*/tree/",
    "tag": r"POST .*/tag/",
}
FAULTS = {
    **{str(status): {"status": status} for status in (401, 404, 409, 412, 503)},  # 403 is as 401, 500 as 503
    "429": {"status": 429, "headers": {"Retry-After": "30"}},
    "cut": {"cut": True},
    "lost": {"lost": True},
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("call", CALLS)
def test_after_any_failure_at_any_call_nothing_is_half_published_and_a_repetition_completes_it(
    hub, client, files, no_waiting, call, fault
):
    hub.fail(CALLS[call], **FAULTS[fault], times=6)  # the client tries some calls six times by itself
    error = None
    try:
        push(client, files)
    except HubError as caught:
        error = caught
    repo = hub.repos.get(("model", REPO))
    assert hub.faults[0].hits
    if repo and "step-000001" in repo.tags:
        assert_whole(hub, files)
    if error is None:  # harmless: the repo was there, the upload had arrived
        assert "step-000001" in repo.tags
    else:
        assert hub.token not in str(error)
        if fault in ("429", "503", "cut", "lost"):
            assert not error.permanent
        if fault == "401" and error.status:
            assert error.permanent
    if fault == "429" and no_waiting:
        assert set(no_waiting) == {31}
    hub.faults.clear()
    push(client, files)
    assert_whole(hub, files)
    assert [c.subject for c in hub.repo(REPO).history()] == ["step 1", "initial commit"]


@pytest.mark.parametrize("call", ["look", "create", "put", "commit", "list", "tag"])
def test_a_hub_that_hangs_ends_in_an_error_and_a_repetition_completes_it(
    hub, client, files, no_waiting, monkeypatch, call
):
    fault = hub.fail(CALLS[call], hang=True, times=6)
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_TIMEOUT", str(seconds(0.1)))
    with pytest.raises(HubError, match="no usable answer") as caught:
        push(hub_api(hub.url, hub.token), files)
    assert not caught.value.permanent and fault.hits
    hub.faults.clear()
    push(client, files)
    assert_whole(hub, files)


def test_what_the_hub_lists_otherwise_is_not_called_pushed(hub, client, files):
    hub.create(REPO)
    entry = {"type": "file", "path": "model.safetensors", "size": 1024000, "oid": "0" * 40}
    lfs = {"lfs": {"oid": "0" * 64, "size": 1024000, "pointerSize": 134}}
    hub.fail(r"GET .*/tree/", 200, body=json.dumps([{**entry, **lfs}]).encode(), after=1)
    with pytest.raises(HubError, match=r"does not list README.md, config.json, model.safetensors"):
        push(client, files)
    assert not hub.repo(REPO).tags
    push(client, files)
    assert hub.repo(REPO).tags


def test_somebody_elses_commit_in_between_is_not_overwritten_blindly(hub, client, files):
    hub.create(REPO)
    fault = hub.fail(r"POST .*/preupload/", after=99)  # only to count

    def meanwhile(request, found=hub.fault_for):
        if "preupload" in request and fault.hits == 0:
            hub.repo(REPO).commit("main", hub.repo(REPO).find("main").files, "theirs")
        return found(request)

    hub.fault_for = meanwhile
    with pytest.raises(HubError, match="another commit was pushed meanwhile") as caught:
        push(client, files)
    assert not caught.value.permanent and not hub.repo(REPO).tags
    push(client, files)
    assert [c.subject for c in hub.repo(REPO).history()] == ["step 1", "theirs", "initial commit"]


def test_a_stale_file_that_the_hub_keeps_is_not_called_pushed(hub, client, files):
    push(client, {**files, "old.safetensors": b"x"}, tag=None)
    before = api_listing(client)
    hub.fail(r"GET .*/tree/", 200, body=before, after=1)  # as if the deletion had not come through
    with pytest.raises(HubError, match=r"does not list .*old\.safetensors"):
        push(client, files)
    assert not hub.repo(REPO).tags


def api_listing(client) -> bytes:
    entries = client.list_repo_tree(REPO, recursive=True)
    rows = [
        {"type": "file", "path": each.path, "size": each.size, "oid": each.blob_id}
        | ({"lfs": {"oid": each.lfs.sha256, "size": each.size, "pointerSize": 134}} if each.lfs else {})
        for each in entries
        if not isinstance(each, RepoFolder)
    ]
    return json.dumps(rows).encode()


# What people have put there


def by_hand(hub, **files):
    repo = hub.repo(REPO)
    changed = {name.replace("__", "."): File(content, False) for name, content in files.items()}
    repo.commit("main", {**repo.find("main").files, **changed}, "by hand")


def test_a_card_that_somebody_wrote_or_edited_stays(hub, client, files):
    hub.create(REPO)
    by_hand(hub, README__md=b"# written by hand\n", LICENSE=b"theirs")
    assert push(client, {**files, "LICENSE": b"ours"}).kept == ["README.md", "LICENSE"]
    found = hub.repo(REPO).files("step-000001")
    assert (found["README.md"], found["LICENSE"]) == (b"# written by hand\n", b"theirs")
    assert push(client, {**files, "LICENSE": b"ours"}).sent == []


@pytest.mark.parametrize("name", ["README.md", "config.json", "chat_template.jinja"])
def test_what_somebody_has_corrected_stays_until_force_or_its_removal(hub, client, files, name):
    files[name] = b"first"
    push(client, files)
    assert push(client, {**files, name: b"second"}).kept == []
    by_hand(hub, **{name.replace(".", "__"): b"corrected"})
    for step in (2, 3):
        published = push(client, {**files, name: b"%d" % step, "sub/prior.json": b"%d" % step}, tag=f"step-00000{step}")
        assert published.kept == [name] and hub.repo(REPO).files(f"step-00000{step}")[name] == b"corrected"
        assert hub.repo(REPO).files()["sub/prior.json"] == b"%d" % step
    assert push(client, {**files, name: b"3"}, tag="step-000003", force=True).kept == []
    assert hub.repo(REPO).files("step-000003")[name] == b"3"
    by_hand(hub, **{name.replace(".", "__"): b"corrected"})
    without = {path: file for path, file in hub.repo(REPO).find("main").files.items() if path != name}
    hub.repo(REPO).commit("main", without, "removed by hand")
    assert name in push(client, {**files, name: b"4"}, tag="step-000004").sent


def test_weights_are_always_those_of_the_step(hub, client, files):
    push(client, files)
    repo = hub.repo(REPO)
    repo.commit("main", {**repo.find("main").files, "model.safetensors": File(b"theirs", True)}, "by hand")
    assert push(client, files, tag="step-000002").kept == []
    assert_whole(hub, files, "step-000002")


STRANGERS = (
    "tf_model.h5",
    "model.onnx",
    "flax_model.msgpack",
    "weights.npz",
    "tokenizer.json",
    "train.py",
    "config.json",
)


@pytest.mark.parametrize("kind", ["model", "dataset"])
@pytest.mark.parametrize("name", STRANGERS)
def test_a_repo_of_somebody_else_is_refused_by_the_name_of_a_file(hub, client, kind, name):
    hub.create(REPO, kind).commit("main", {name: File(b"x", False), "README.md": File(b"# theirs\n", False)}, "theirs")
    with pytest.raises(HubError, match=f"holds files of something else than a run .{name}.") as caught:
        check_owner(Repo(client, REPO, kind), same_run({"started": "now"}))
    assert caught.value.permanent


def test_a_new_repo_may_have_a_card_and_a_licence(hub, client):
    hub.create(REPO)
    by_hand(hub, README__md=b"# mine\n", LICENSE=b"MIT")
    assert check_owner(Repo(client, REPO), same_run({"started": "now"}))[0] == hub.repo(REPO).branches["main"]


# A Hub that is not one


def test_a_file_that_changes_while_it_is_sent_gets_no_tag(hub, client, files):
    def meanwhile(request, found=hub.fault_for):
        if "/commit/" in request:
            files["model.safetensors"].write_bytes(b"saved again")
        return found(request)

    hub.fault_for = meanwhile
    with pytest.raises(HubError, match="has changed while it was being pushed") as caught:
        push(client, files)
    assert not caught.value.permanent and not hub.repo(REPO).tags
