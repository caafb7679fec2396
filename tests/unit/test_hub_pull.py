"""Pulling from the test server: only what is safe, and only what was pushed."""

import json
import os
import re
import signal
import threading

import hub_runs
import numpy as np
import pytest
from commands import refused
from hub_repos import File, git_hash
from hub_runs import publish, pull
from patience import seconds, wait_until
from safetensors.numpy import save

from openrlhf_ebpo.cli import hub as hub_cli
from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub.content import digest, local_file
from openrlhf_ebpo.hub.pull import MAX_AT_ONCE, PART
from openrlhf_ebpo.hub_client import HubError, hub_api

REPO = "owner/model"
WEIGHTS = save({"w": np.ones(2)})
SMALL = {"config.json": b"{}", "tokenizer.json": b"{}"}


@pytest.fixture
def client(hub, monkeypatch):
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_PAUSE", "0.01")
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_TIMEOUT", str(seconds(30)))  # a busy machine may send nothing for seconds
    return hub_api(hub.url, hub.token)


@pytest.fixture
def pushed(client, tmp_path):
    """A repo with steps 1 and 2; returns the contents of step 2."""
    for step in (1, 2):
        model = hub_runs.export_model(tmp_path / "model", step)
        files = {p.name: p for p in model.iterdir() if p.suffix != ".bin"} | {"README.md": b"# card\n"}
        tag = f"step-00000{step}"
        publish(client, REPO, files, message=tag, tag=tag)
    return {name: f if isinstance(f, bytes) else f.read_bytes() for name, f in files.items() if "full" not in name}


def edit(hub, files):
    """A commit by hand."""
    repo = hub.repo(REPO)
    changed = {name: File(content, name.endswith("safetensors")) for name, content in files.items()}
    repo.commit("main", {**repo.find("main").files, **changed}, "edit")


def files_in(folder):
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    return {name: content for name, content in found.items() if not name.startswith((".cache", PART))}


def test_a_pull_brings_safe_files_only_and_a_second_one_downloads_nothing(hub, client, pushed, tmp_path):
    folder = tmp_path / "new" / "folder"
    pulled = pull(client, REPO, folder)
    assert files_in(folder) == pushed
    assert pulled.commit == hub.repo(REPO).branches["main"] and not (folder / PART).exists()
    assert not (folder / ".cache").exists()


def test_a_pull_that_is_cut_off_never_leaves_files_of_two_revisions(hub, client, pushed, tmp_path):
    folder = tmp_path / "pulled"
    hub.fail(r"HEAD .*/model.safetensors", 403, times=99)
    with pytest.raises(HubError):
        pull(client, REPO, folder)
    assert not files_in(folder)
    hub.faults.clear()
    pull(client, REPO, folder, revision="step-000001")
    assert json.loads((folder / "config.json").read_text())["step"] == 1 and not (folder / PART).exists()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", {"auto_map": {"AutoConfig": "evil/code--own.Config"}}),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["own.Slow", None]}}),
    ],
)
def test_a_model_that_brings_its_own_code_is_not_called_good_nor_to_be_measured_next(
    client, use_hub, pushed, tmp_path, capsys, file, content
):
    files = {"config.json": b"{}", "tokenizer.json": b"{}", file: json.dumps(content).encode()}
    publish(client, "owner/own", {**files, "own.py": b"raise SystemExit", "model.safetensors": WEIGHTS})
    hub_cli.main(["pull", "owner/own", str(tmp_path / "own")])
    out = capsys.readouterr().out
    assert f"warning: the model comes with custom code: {file}: Auto" in out and "own." in out
    assert "--trust_remote_code" in out and "eval --model" not in out and "verified" not in out
    assert not (tmp_path / "own" / "own.py").exists()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"model.safetensors": File(WEIGHTS[:-1], False)}, "model.safetensors is damaged or cut off"),
        ({"tokenizer.json": File(b"{", False), "model.safetensors": File(WEIGHTS, False)}, "tokenizer.json"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_model_that_was_pushed_in_pieces_is_not_called_good(hub, use_hub, tmp_path, capsys, files, said):
    hub.create("owner/bad").commit("main", {"config.json": File(b"{}", False), **files}, "m")
    assert said in refused(hub_cli.main, "pull", "owner/bad", tmp_path / "bad")
    assert "eval --model" not in capsys.readouterr().out
    assert not (tmp_path / "bad" / "config.json").exists()


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"pytorch_model.bin": File(b"pickle", False)}, "pytorch_model.bin"),
        ({"m.gguf": File(b"GGUF", False)}, "m.gguf"),
        ({"a b/config.json": File(b"{}", False), "a b/model.safetensors": File(WEIGHTS, False)}, "a b/"),
        ({"checkpoints/last/model.bin": File(b"pickle", False)}, "checkpoints/last/"),
        ({}, "no weights"),
    ],
    ids=["pickle", "gguf", "subfolder", "pickle in a subfolder", "none"],
)
def test_weights_that_pull_does_not_take_are_refused_before_the_download(hub, use_hub, tmp_path, files, found):
    hub.create("owner/other").commit("main", {"config.json": File(b"{}", False), **files}, "m")
    message = refused(hub_cli.main, "pull", "owner/other", tmp_path / "other")
    assert found in message and "--trust_remote_code" not in message
    assert not (tmp_path / "other").exists() and not hub.count("GET .*(/resolve/|/lfs/)")


def test_a_prior_alone_can_be_pulled(client, use_hub, tmp_path):
    publish(client, "owner/prior", {"prior.json": b"{}"})
    hub_cli.main(["pull", "owner/prior", str(tmp_path / "prior")])
    assert (tmp_path / "prior" / "prior.json").read_bytes() == b"{}"


@pytest.mark.parametrize("path", ["model.bin", "code.py", "sub/x.pt", "x.pkl", ".hidden.json", "weights.npy", "run.sh"])
def test_what_is_not_on_the_list_of_safe_types_stays_there(client, hub, pushed, tmp_path, path):
    repo = hub.repo(REPO)
    repo.commit("main", {**repo.find("main").files, path: File(b"x", False)}, "by another client")
    pulled = pull(client, REPO, tmp_path / "pulled")
    assert path in pulled.skipped and not (tmp_path / "pulled" / path).exists()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_corrupted_download_is_repeated_and_in_the_end_an_error(hub, client, pushed, tmp_path, name):
    place = r"GET /lfs/" if name.endswith("safetensors") else f"GET .*/resolve/.*/{name}"
    hub.fail(place, corrupt=True)
    pull(client, REPO, tmp_path / "pulled")
    assert hub.faults[0].hits == 2 and files_in(tmp_path / "pulled")[name] == pushed[name]
    hub.fail(place, corrupt=True, times=99)
    with pytest.raises(HubError, match=f"{name} of owner/model arrived damaged"):
        pull(client, REPO, tmp_path / "again")
    assert not files_in(tmp_path / "again")
    hub.faults.clear()
    pull(client, REPO, tmp_path / "again")
    assert files_in(tmp_path / "again")[name] == pushed[name]


@pytest.mark.parametrize(
    ("where", "how"),
    [
        *((where, {"status": 503}) for where in (r"GET .*/revision/", r"GET .*/tree/", r"HEAD .*/resolve/")),
        *((r"GET /lfs/", how) for how in ({"status": 503}, {"status": 429}, {"cut": True}, {"lost": True})),
    ],
)
def test_failures_that_may_pass_are_retried(hub, client, pushed, tmp_path, no_waiting, where, how):
    hub.fail(where, **how)
    pull(client, REPO, tmp_path / "pulled")
    assert hub.faults[0].hits and files_in(tmp_path / "pulled")["model.safetensors"] == pushed["model.safetensors"]


def test_what_somebody_corrected_comes_as_it_is_there_and_a_tag_as_it_was_pushed(client, hub, pushed, tmp_path):
    edit(hub, {"chat_template.jinja": b"corrected"})
    pull(client, REPO, tmp_path / "pulled")
    assert (tmp_path / "pulled" / "chat_template.jinja").read_bytes() == b"corrected"
    pull(client, REPO, tmp_path / "tagged", revision="step-000002")
    assert (tmp_path / "tagged" / "chat_template.jinja").read_bytes() == pushed["chat_template.jinja"]


def test_names_that_leave_the_folder_or_steer_a_terminal_are_skipped_and_shown_as_text(
    use_hub, pushed, tmp_path, capsys
):
    repo = use_hub.repo(REPO)
    names = ("../evil.json", "a/../../evil.json", "/evil.json", "\x1b[2Jevil.json", "a:evil.json", "a//evil.json")
    evil = dict.fromkeys(names, repo.find("main").files["config.json"])
    repo.commit("main", {**repo.find("main").files, **evil}, "evil")
    hub_cli.main(["pull", REPO, str(tmp_path / "pulled")])
    out = capsys.readouterr().out
    assert "\x1b" not in out and r"\x1b[2Jevil.json" in out and all(name in out for name in names[:3])
    assert not list(tmp_path.rglob("*evil*"))


def test_a_local_disk_error_is_not_retried(client, hub, pushed, tmp_path):
    repo = hub.repo(REPO)
    long = "x" * 300 + ".json"
    repo.commit("main", {**repo.find("main").files, long: repo.find("main").files["config.json"]}, "long")
    with pytest.raises(HubError, match=r"this machine, not the Hub, has a problem: .*File name too long") as caught:
        pull(client, REPO, tmp_path / "pulled", report=pytest.fail)
    assert caught.value.permanent
    with pytest.raises(SystemExit) as stopped:
        command("hub", "", lambda parser: None, lambda args: (tmp_path / "nothing" / "here").mkdir())([])
    assert stopped.value.code.startswith("error: [Errno 2] No such file or directory")


def test_of_a_gated_repo_the_hubs_own_words_are_shown(client, hub, pushed, tmp_path):
    hub.fail(
        r"/resolve/", 403, headers={"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"}, times=9
    )
    with pytest.raises(HubError, match=r"no right to do this \(403: .*restricted") as caught:
        pull(client, REPO, tmp_path / "pulled")
    assert caught.value.permanent


def test_a_folder_with_something_else_in_it_is_left_alone(client, pushed, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("mine")
    with pytest.raises(UsageError, match="is not empty: name a new folder"):
        pull(client, REPO, tmp_path / "mine")
    with pytest.raises(UsageError, match="is a file"):
        pull(client, REPO, tmp_path / "mine" / "config.json")
    (tmp_path / "pulled").mkdir()
    (tmp_path / "pulled" / ".DS_Store").touch()
    pull(client, REPO, tmp_path / "pulled")
    with pytest.raises(UsageError, match="is not empty"):
        pull(client, REPO, tmp_path / "pulled")


def test_the_command_says_what_came_and_what_to_do_next(use_hub, pushed, tmp_path, capsys):
    folder = str(tmp_path / "pulled")
    hub_cli.main(["pull", REPO, folder, "--revision", "1"])
    out = capsys.readouterr().out
    assert "all as the Hub lists them" in out and f"eval --model {folder}" in out
    for argv, words in (
        (["owner/none", str(tmp_path / "x")], "the repo owner/none has no model or does not exist"),
        ([REPO, str(tmp_path / "x"), "--revision", "v9"], "no revision v9; it has main, step-000001, step-000002"),
        (["nonsense", str(tmp_path / "x")], "owner/name"),
    ):
        assert words in refused(hub_cli.main, "pull", *argv) and not (tmp_path / "x").exists()


def test_several_files_come_at_a_time_and_no_more(hub, client, tmp_path):
    files = {f"model-{i:05}-of-00020.safetensors": hub_runs.weights(1000, i) for i in range(20)} | SMALL
    publish(client, "owner/shards", files)
    met, first, unchanged = threading.Barrier(MAX_AT_ONCE), iter(range(MAX_AT_ONCE)), hub.fault_for

    def meet(request):  # the first of them wait for each other
        if re.search("HEAD .*/model-", request) and next(first, None) is not None:
            met.wait(seconds(30))
        return unchanged(request)

    hub.fault_for = meet
    hub.most_at_once = 0
    pull(client, "owner/shards", tmp_path / "pulled")
    assert hub.most_at_once == MAX_AT_ONCE
    assert {name: content for name, content in files_in(tmp_path / "pulled").items() if name in files} == files


def test_one_file_that_is_not_to_be_had_ends_all_and_what_came_is_whole(hub, client, tmp_path):
    files = {f"model-{i:05}-of-00009.safetensors": hub_runs.weights(3_000_000, i) for i in range(9)} | SMALL
    publish(client, "owner/shards", files)
    hub.fail(r"HEAD .*/model-00004-of", 403, times=99)
    folder, lines = tmp_path / "pulled", []
    with pytest.raises(HubError, match=r"pulling owner/shards: .* \(403"):
        pull(client, "owner/shards", folder, report=lines.append)
    before = files_in(folder / PART)
    assert all(files[name] == content for name, content in before.items() if name in files) and lines == []
    hub.faults.clear()
    downloads = hub.count("GET /lfs/")
    pull(client, "owner/shards", folder)
    assert hub.count("GET /lfs/") - downloads == len(set(files) - set(before) - set(SMALL))


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_a_pull_that_is_ended_is_not_complete_and_a_repeated_one_completes_it(use_hub, hub, client, tmp_path, sign):
    files = {f"model-{i:05}-of-00009.safetensors": hub_runs.weights(300_000, i) for i in range(9)} | SMALL
    publish(client, "owner/shards", files)
    fault = hub.fail(r"GET /lfs/", stall=True, times=99)
    folder = tmp_path / "pulled"
    pulling = hub_runs.forked("pull", "owner/shards", folder)
    wait_until(lambda: fault.hits)
    os.kill(pulling.pid, sign)
    pulling.join(seconds(8))  # less than any limit of a download
    assert pulling.exitcode == (130 if sign == signal.SIGINT else -sign)
    assert not files_in(folder)
    hub.faults.clear()
    pull(client, "owner/shards", folder)
    assert {name: content for name, content in files_in(folder).items() if name in files} == files


def test_a_pull_that_ends_while_it_puts_the_files_in_place_is_repeated(client, pushed, tmp_path):
    folder = tmp_path / "pulled"
    pull(client, REPO, folder)
    (folder / PART).mkdir()
    (folder / "config.json").replace(folder / PART / "config.json")  # the last one
    (folder / PART / "of another revision.json").write_text("{}")
    pull(client, REPO, folder)
    assert files_in(folder) == pushed


def test_a_file_that_the_hub_claims_to_keep_in_git_is_not_read_as_a_whole(tmp_path):
    (tmp_path / "large").write_bytes(b"x" * (3 << 20))
    assert digest(local_file(tmp_path / "large"), git=True) == git_hash(b"x" * (3 << 20))


def test_an_adapter_names_its_base_and_a_model_how_to_ask_it(client, use_hub, tmp_path, capsys):
    adapter = {
        "adapter_config.json": b'{"base_model_name_or_path": "owner/base"}',
        "adapter_model.safetensors": WEIGHTS,
    }
    publish(client, "owner/adapter", adapter)
    hub_cli.main(["pull", "owner/adapter", str(tmp_path / "adapter")])
    assert "this is a LoRA adapter of owner/base" in capsys.readouterr().out
    run = {"args": {"data": {"apply_chat_template": True, "input_template": None}}}
    publish(client, "owner/chat", {**SMALL, "model.safetensors": WEIGHTS, "run.json": json.dumps(run).encode()})
    hub_cli.main(["pull", "owner/chat", str(tmp_path / "chat")])
    assert f"eval --model {tmp_path / 'chat'} --tasks math500" in (out := capsys.readouterr().out)
    assert "--template TEMPLATE --chat_template" in out
    told = {**run, "instruction": {"template": "{question}"}}
    publish(client, "owner/told", {**SMALL, "model.safetensors": WEIGHTS, "run.json": json.dumps(told).encode()})
    hub_cli.main(["pull", "owner/told", str(tmp_path / "told")])
    assert capsys.readouterr().out.endswith("--output_dir results\n")
