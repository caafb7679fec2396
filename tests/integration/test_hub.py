"""A training pushes while it trains, through faults; a second one starts from what was pushed, while the Hub is
down."""

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from patience import wait_until

from openrlhf_ebpo.run.run_log import read_metrics, read_run

FAST = {"OPENRLHF_EBPO_HUB_PAUSE": "0.2", "OPENRLHF_EBPO_HUB_TIMEOUT": "5"}


@pytest.fixture(scope="module")
def story(train, command, tmp_path_factory):
    """First 2 steps, each saved and pushed; a commit is refused, an upload cut off, the
    answer to a tag lost. Then a second training takes one step from the pulled weights and prior of step 2, and the Hub
    is down until it has ended."""
    from hub_server import HubServer

    output = tmp_path_factory.mktemp("hub")
    hub = HubServer().start()
    environment = {**hub.environment, **FAST, "HF_HOME": str(output / "hf_home")}
    saving = {"ckpt__save_steps": 1, "ckpt__save_hf": True}
    try:
        hub.fail(r"^PUT /lfs/", cut=True)
        hub.fail(r"POST .*/commit/", status=503)
        hub.fail(r"POST .*/tag/", lost=True)
        argv = command(output / "first", data__max_samples=16, hub__repo="owner/first", **saving)
        first = train(argv, **environment)
        first.succeed()
        requests = list(hub.requests)
        pulled = output / "pulled"
        subprocess.run(
            ["openrlhf-ebpo", "hub", "pull", "owner/first@2", str(pulled)],
            env={**os.environ, **environment},
            check=True,
        )
        goes_on = command(
            output / "second",
            actor__model_name_or_path=str(pulled),
            algo__advantage__ebpo__init_prior=str(pulled / "prior.json"),
            data__max_samples=8,
            hub__repo="team/second",
            **saving,
        )
        hub.stop()
        second = train(goes_on, **environment)
        wait_until(lambda: "training is complete" in second.output)
        hub.start()
        second.succeed()
        yield SimpleNamespace(hub=hub, output=output, first=first, second=second, requests=requests)
    finally:
        hub.stop()


def run_of(story, name: str) -> Path:
    return story.output / name / "model" / "run"


def assert_pushed(story, repo: str, step: int, model: Path) -> None:
    found = story.hub.repo(repo).files(f"step-{step:06d}")
    names = {path.name for path in model.iterdir() if path.is_file()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "prior.json"} <= names
    for name in names:
        assert found[name] == (model / name).read_bytes(), name
    assert {"README.md", "run.json"} <= set(found)


@pytest.mark.nightly  # daily: unit/test_hub_push.py, unit/test_hub_upload.py
def test_every_saved_step_is_on_the_hub_under_a_tag_in_spite_of_faults(story):
    repo = story.hub.repo("owner/first")
    assert all(fault.hits for fault in story.hub.faults)
    assert repo.private and list(repo.tags) == ["step-000001", "step-000002"]
    assert set(repo.branches) == {"main"}
    assert [commit.subject for commit in repo.history()] == ["step 2", "step 1", "initial commit"]
    for step in (1, 2):
        assert_pushed(story, "owner/first", step, story.output / "first" / "ckpt" / f"global_step{step}_hf")
    assert not any(path.endswith(".pt") for path in repo.files())


@pytest.mark.nightly  # daily: unit/test_hub_training.py
def test_the_training_knew_and_ended_well(story):
    run_dir = run_of(story, "first")
    assert read_run(run_dir)["status"] == "complete"
    assert "all 2 saved steps are pushed and verified at owner/first" in story.first.output


@pytest.mark.nightly  # daily: unit/test_hub_training.py, unit/test_hub_push.py
def test_a_hub_that_is_down_for_a_training_is_a_warning_and_the_pushes_come_after_it(story):
    run_dir = run_of(story, "second")
    assert "warning: the Hub cannot be reached" in story.second.output
    assert read_run(run_dir)["status"] == "complete"
    assert "all 1 saved steps are pushed and verified at team/second" in story.second.output
    assert list(story.hub.repo("team/second").tags) == ["step-000001"]
    assert_pushed(story, "team/second", 1, story.output / "second" / "ckpt" / "global_step1_hf")


@pytest.mark.nightly  # daily: unit/test_hub_pull.py, integration/test_train_and_resume.py
def test_the_second_training_went_on_from_what_the_first_had_pushed(story):
    run_dir = run_of(story, "second")
    assert [row["step"] for row in read_metrics(run_dir)] == [1]
    folder = story.output / "pulled"
    assert read_run(run_dir)["model"] == str(folder)
    assert (folder / "model.safetensors").read_bytes() == story.hub.repo("owner/first").files()["model.safetensors"]
    first, second = (json.loads((run_of(story, name) / "prior.json").read_text()) for name in ("first", "second"))
    assert (first["batches"], second["batches"]) == (2, 3)
    assert second["rewards"]["count"] == first["rewards"]["count"] + 32


@pytest.mark.nightly  # daily: unit/test_hub_training.py, unit/test_hub_client.py
@pytest.mark.parametrize(
    ("changes", "words"),
    [({"hub__repo": "stranger/model"}, "not for stranger"), ({"hub__repo": "owner/first"}, "holds another run")],
)
def test_what_cannot_work_stops_before_anything_starts(story, command, tmp_path, changes, words):
    argv = command(tmp_path, **{"ckpt__save_steps": 1, "ckpt__save_hf": True, **changes})
    environment = {**os.environ, **story.hub.environment, **FAST, "HF_HOME": str(tmp_path)}
    done = subprocess.run(["openrlhf-ebpo", "train", *argv], env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and words in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "model").exists()
