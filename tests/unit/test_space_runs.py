"""The Space finds runs in folders and on the Hub, by their names, and refuses others."""

import functools
import shutil
import socket
from pathlib import Path

import pytest
from space_runs import learning_run

from openrlhf_ebpo.space import hub
from openrlhf_ebpo.space import runs as runs_module
from openrlhf_ebpo.space.errors import RunError
from openrlhf_ebpo.space.groups import Index
from openrlhf_ebpo.space.links import address, clean, parse_address
from openrlhf_ebpo.space.runs import Run, Runs, describe, inside, keys
from openrlhf_ebpo.space.workspace import Workspace

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    path = learning_run(tmp_path_factory.mktemp("learnt") / "ebpo", steps=12, seed=3, name="ebpo", prompts=10)
    return Run("ebpo", path, 0)


# runs


def test_a_folder_that_may_not_be_read_does_not_hide_the_runs_beside_it(tmp_path, monkeypatch):
    for name in ("lost+found", "ours"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text('{"step": 1}\n')
    is_file = Path.is_file

    def refused(path):  # tests may run as root, who may read everything
        if path.parent.name == "lost+found":
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refused)
    assert Runs([str(tmp_path)]).listed() == ["ours"]


def test_runs_are_found_below_folders_in_a_stable_order(learnt, tmp_path):
    (tmp_path / "a" / "run").mkdir(parents=True)
    (tmp_path / "a" / "run" / "run.json").write_text("{}")
    (tmp_path / "b" / "x").mkdir(parents=True)
    (tmp_path / "b" / "x" / "metrics.jsonl").touch()
    (tmp_path / "a" / "run" / "superseded" / "y").mkdir(parents=True)
    (tmp_path / "a" / "run" / "superseded" / "y" / "metrics.jsonl").touch()
    runs = Runs([str(tmp_path), str(learnt.path)])
    assert runs.listed() == ["a", "x", "ebpo"]
    assert runs.get("a").path == tmp_path / "a" / "run"


@pytest.mark.parametrize(
    "key", ["../secret", "/etc", "stranger/run", "owner/../x", "", "a\x00b", "tests/unit", "owner/a\n"]
)
def test_what_is_not_given_is_refused_and_not_fetched(key, monkeypatch):
    monkeypatch.chdir(ROOT)
    runs = Runs(["tests", "owner/other"], fetch=lambda *_: pytest.fail("fetched"))
    with pytest.raises(RunError, match=r"(?s)no run called .* the owner of this app names the runs"):
        runs.get(key)


def test_a_path_cannot_lead_out_of_its_run(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "secret.json").write_text("{}")
    (tmp_path / "run" / "run.json").symlink_to(tmp_path / "secret.json")
    run = Run("r", tmp_path / "run", 0)
    for parts in (("..", "secret.json"), ("run.json",), ("/etc/passwd",)):
        with pytest.raises(RunError, match="leads out"):
            inside(run, *parts)
    (tmp_path / "run" / "metrics.jsonl").mkdir()  # as a repo of the Hub may have it
    with pytest.raises(RunError, match="is not a file"):
        inside(run, "metrics.jsonl")


@pytest.mark.parametrize(
    ("text", "said"), [("{", "damaged"), ("[]", "no run"), ('{"schema": 9}', "schema 9"), ("[" * 10**5, "damaged")]
)
def test_a_run_json_that_cannot_be_used_says_why(tmp_path, text, said):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunError, match=said):
        describe(Run("r", tmp_path, 0))


# the Hub


def test_only_names_of_a_run_are_downloaded_within_the_limits():
    mib = 2**20
    files = [
        *(
            ("run.json", 100),
            ("metrics.jsonl", mib),
            ("README.md", 10),
            ("model.safetensors", 10),
            ("evil.pkl", 1),
            ("../run.json", 1),
        ),
        *(
            ("rollouts/step-000001.parquet", 40 * mib),
            ("rollouts/step-000002.parquet", 40 * mib),
            ("rollouts/step-000003.parquet", 900 * mib),
        ),
        *(
            ("eval/default+n=8/aime24/step-000010/summary.json", 10),
            ("eval/../../x/step-000001/summary.json", 1),
            ("prior.json", None),
        ),
    ]
    names, left_out = hub.select_files(files, total=50 * mib, single=512 * mib)
    assert names == [
        "README.md",
        "eval/default+n=8/aime24/step-000010/summary.json",
        "metrics.jsonl",
        "run.json",
        "rollouts/step-000002.parquet",
    ]
    assert len(left_out) == 3 and "900 MiB" in left_out[1]


def test_it_starts_on_a_machine_that_is_too_busy_to_answer_at_once(monkeypatch, capsys):
    gradio = pytest.importorskip("gradio")
    from openrlhf_ebpo.space.main import parse, serve

    monkeypatch.setattr(gradio.networking, "url_ok", lambda url: False)
    monkeypatch.setattr(gradio.Blocks, "block_thread", lambda demo: None)
    try:
        serve(parse([]))
    finally:
        gradio.close_all()
    assert "Open http://127.0.0.1:" in capsys.readouterr().out


def test_runs_come_from_the_environment_too(monkeypatch):
    from openrlhf_ebpo.space.main import parse

    monkeypatch.setenv("EBPO_SPACE_RUNS", "a/b, c/d")
    found = parse([])
    assert found.runs == ["a/b", "c/d"] and not found.login
    assert parse(["--runs", "e/f"]).login


def test_a_run_comes_from_the_hub(use_hub, api, learnt, tmp_path, monkeypatch):
    api.create_repo("owner/run", repo_type="dataset")
    api.upload_folder(repo_id="owner/run", repo_type="dataset", folder_path=learnt.path)
    api.upload_file(repo_id="owner/run", repo_type="dataset", path_or_fileobj=b"import os", path_in_repo="evil.py")
    runs = Runs(["owner/run", "owner/nothing"], functools.partial(hub.fetch, cache=tmp_path / "cache"))
    run = runs.get("owner/run")
    assert len(Index(run).read()[0]) == 120 and describe(run)["name"] == "ebpo"
    assert not list((tmp_path / "cache").rglob("*.py"))
    api.upload_file(
        repo_id="owner/run",
        repo_type="dataset",
        path_or_fileobj=b'{"schema": 1, "name": "later"}',
        path_in_repo="run.json",
    )
    api.delete_file("rollouts/step-000012.parquet", repo_id="owner/run", repo_type="dataset")
    assert describe(runs.get("owner/run"))["name"] == "ebpo", "not asked again at once"
    monkeypatch.setattr(runs_module, "_AGAIN", 0.0)
    assert describe(runs.get("owner/run"))["name"] == "later" and Index(run).read()[0].step.max() == 11
    with pytest.raises(RunError, match="neither a directory here nor a data set repo"):
        runs.get("owner/nothing")


def test_a_private_run_is_read_with_the_login_of_who_names_it_on_the_command_line(use_hub, api, learnt, tmp_path):
    """The variable of a Space names runs too: its other secrets, as HF_TOKEN, are not used for them."""
    api.create_repo("owner/run", repo_type="dataset", private=True)
    api.upload_file(
        repo_id="owner/run", repo_type="dataset", path_or_fileobj=learnt.path / "run.json", path_in_repo="run.json"
    )
    with pytest.raises(RunError, match=r"\(a private one: EBPO_SPACE_HF_TOKEN\)"):
        hub.fetch("owner/run", tmp_path / "cache")
    folder, _ = hub.fetch("owner/run", tmp_path / "cache", login=True)
    assert (folder / "run.json").is_file()


def test_a_hub_that_fails_leaves_both_readings_of_a_name(monkeypatch):
    from huggingface_hub import HfApi

    def unreachable(*_, **__):
        raise ConnectionError

    monkeypatch.setattr(HfApi, "repo_info", unreachable)
    with pytest.raises(RunError, match=r"not a directory here.*data set repo of the Hub.*\./owner/name"):
        hub.fetch("owner/name")


# the start


def test_a_file_as_a_run_is_an_error_at_the_start(tmp_path, capsys):
    from openrlhf_ebpo.space.main import parse

    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        parse(["--runs", str(tmp_path / "file")])
    assert "is a file" in capsys.readouterr().err


def test_a_port_in_use_is_an_error_at_the_start_and_0_is_the_first_free_one(capsys):
    from openrlhf_ebpo.space.main import parse

    assert parse(["--port", "0"]).port is None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit):
            parse(["--port", str(port)])
    assert f"--port {port}" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["runs/later", "./later", "{tmp}/later", "{tmp}", "later", "a/b/later", "new/later"])
def test_a_folder_without_a_run_is_awaited_and_shown_once_it_has_one(tmp_path, monkeypatch, learnt, given):
    from openrlhf_ebpo.space.main import parse
    from openrlhf_ebpo.space.pages import overview

    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (named,) = parse(["--runs", given.format(tmp=tmp_path)]).runs
    runs = Runs([named])
    workspace, view = Workspace(runs), clean({})
    is_repo = given == "new/later"  # reads as owner/name until the folder exists
    assert runs.listed() == ([named] if is_repo else []) and runs.awaited() == ([] if is_repo else [named])
    assert is_repo or "Waiting for a run" in overview.PAGE.show(view, workspace)["notes"]
    shutil.copytree(learnt.path, tmp_path / named, dirs_exist_ok=True)
    runs._scanned = 0.0
    assert len(runs.listed()) == 1 and runs.get(runs.listed()[0]).path == (tmp_path / named).resolve()
    assert named not in runs.awaited() and "Waiting for a run" not in overview.PAGE.show(view, workspace)["notes"]


# names of runs


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["/o/ebpo/model/run", "/o/grpo/model/run"], ["ebpo", "grpo"]),
        (["/o/ebpo/run"], ["ebpo"]),
        (["/a/seed/run", "/b/seed/run"], ["a/seed", "b/seed"]),
        (["/q/run", "/q/model/run"], ["q/run", "model/run"]),
        (["/a/b", "/c/a/b"], ["/a/b", "c/a/b"]),
        (["/o/lr,1e-6", "/o/lr_1e-6"], ["lr,1e-6", "lr_1e-6"]),
        (["/model", "/run"], ["model", "run"]),
    ],
)
def test_names_of_runs_tell_them_apart_and_can_be_linked(paths, names):
    found = list(keys([Path(path) for path in paths], {}).values())
    assert found == names and len(set(found)) == len(paths)
    assert clean(parse_address(address(clean({"runs": found}))))["runs"] == found


def test_a_name_stays_when_another_run_comes(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name / "model" / "run").mkdir(parents=True)
    (tmp_path / "a" / "model" / "run" / "run.json").write_text("{}")
    runs = Runs([str(tmp_path)])
    assert runs.listed() == ["a"]
    (tmp_path / "b" / "model" / "run" / "run.json").write_text("{}")
    (tmp_path / "b" / "a").mkdir()
    (tmp_path / "b" / "a" / "metrics.jsonl").write_text("")
    runs._scanned = 0
    found = runs.listed()
    assert found[0] == "a" and sorted(found[1:]) == ["b", "b/a"]
    assert runs.get("a").path == (tmp_path / "a" / "model" / "run").resolve()


def test_a_given_repository_keeps_its_name(tmp_path):
    assert keys([tmp_path / "owner" / "ebpo"], {}, ["ebpo"]) == {tmp_path / "owner" / "ebpo": "owner/ebpo"}
