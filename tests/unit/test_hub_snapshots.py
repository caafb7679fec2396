"""What is queued is whole and inert, and what is sent is what was queued."""

import os
import re
from pathlib import Path

import pytest
from commands import refused
from hub_runs import REPO, model_of, queue

from openrlhf_ebpo.cli import hub as hub_cli
from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.hub import outbox
from openrlhf_ebpo.hub.push import drain
from openrlhf_ebpo.seams.remote_code import trusted


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_waiting_file_that_changes_without_changing_its_size_is_not_pushed(hub, api, make_run, file):
    run_dir = make_run()
    model = model_of(run_dir, 4)
    queue(run_dir, 4)
    path = model / file if file == "model.safetensors" else outbox.items(run_dir)[0].path / "files" / file
    before = path.stat()
    with open(path, "r+b") as opened:  # of the weights through the name that the checkpoint has
        opened.seek(-2, 2)
        opened.write(b"~")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    error = drain(run_dir, api, sleep=pytest.fail)
    assert error.permanent and file in str(error) and re.search("not (as it was )?(as )?queued", str(error))
    assert not hub.repos or (not hub.repo(REPO).tags and file not in hub.repo(REPO).files())


def zeros(model: Path) -> None:
    (model / "model.safetensors").write_bytes(bytes(1_200_000))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (zeros, "model.safetensors is damaged or cut off"),
        (
            lambda model: write_json(model / "config.json", {"auto_map": {"AutoConfig": "evil/repo--own.Config"}}),
            "evil/repo--own.Config",
        ),
    ],
)
def test_a_model_that_is_not_whole_or_not_inert_is_neither_queued_nor_shown_as_fit(use_hub, make_run, damage, said):
    run_dir = make_run()
    damage(model_of(run_dir, 4))
    for more in ((), ("--dry_run",)):
        assert said in refused(hub_cli.main, "push", run_dir, "--repo", REPO, *more)
    assert outbox.items(run_dir) == [] and not use_hub.repos


def test_with_the_flag_a_model_that_needs_code_is_pushed(use_hub, make_run):
    run_dir = make_run()
    write_json(model_of(run_dir, 4) / "config.json", {"auto_map": {"AutoConfig": "own.Config"}})
    try:
        hub_cli.main(["push", str(run_dir), "--repo", REPO, "--trust_remote_code"])
    finally:
        trusted.answer = False
    assert b"own.Config" in use_hub.repo(REPO).files()["config.json"]
