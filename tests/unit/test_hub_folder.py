"""hub push --folder: a push into a folder of this machine, without a Hub."""

import hashlib
import json

import pytest
from commands import refused
from hub_runs import REPO

from openrlhf_ebpo.cli import hub as hub_cli


@pytest.fixture(autouse=True)
def no_hub(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody answers there


def push(run_dir, folder, *flags):
    hub_cli.main(["push", str(run_dir), "--repo", REPO, "--step", "2", "--folder", str(folder), *flags])


def test_a_folder_holds_what_the_repo_would_each_file_with_its_hash(make_run, tmp_path, capsys):
    run_dir, folder = make_run(), tmp_path / "pushed" / "model"
    push(run_dir, folder)
    listed = json.loads((folder / "sha256.json").read_text())["files"]
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert there == listed.keys() | {"README.md", "sha256.json"}
    assert {"model.safetensors", "config.json", "prior.json", "run.json"} <= there and "optimizer.bin" not in there
    for name, row in listed.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == row["sha256"], name
    assert "nothing was sent" in capsys.readouterr().out and not (run_dir / "hub").exists()


def test_what_is_in_the_folder_stays(make_run, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(SystemExit, match=r"--folder .*mine is there already"):
        push(make_run(), tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_push_that_is_refused_leaves_no_folder(make_run, tmp_path):
    run_dir = make_run()
    secret = {"key": "hf_" + "a" * 34}
    (run_dir.parent / "ckpt" / "global_step2_hf" / "tokenizer_config.json").write_text(json.dumps(secret))
    with pytest.raises(SystemExit, match=r"tokenizer_config\.json"):
        push(run_dir, tmp_path / "model")
    assert not list(tmp_path.glob("model*"))


def test_a_folder_needs_a_repo_for_its_card_and_no_dry_run(make_run, tmp_path):
    run_dir = make_run()
    words = refused(hub_cli.main, "push", run_dir, "--folder", tmp_path / "model")
    assert "say where to push, with --repo owner/name" in words
    with pytest.raises(SystemExit, match="--folder writes files and --dry_run writes none"):
        push(run_dir, tmp_path / "model", "--dry_run")
