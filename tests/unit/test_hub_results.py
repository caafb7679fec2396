"""Evaluation results: as a data set repo of their own, and in the card of the model that they are of."""

from __future__ import annotations

import argparse
import subprocess
import sys

import hub_runs
import pytest
import yaml
from hub_repos import File
from recorded_runs import GOOD, GREEDY, POOR, PROTOCOL, save_result, write_run

from openrlhf_ebpo.cli import hub as hub_cli
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import append_json_line
from openrlhf_ebpo.hub import data_repo, run_data
from openrlhf_ebpo.space.links import clean
from openrlhf_ebpo.space.pages import evaluation
from openrlhf_ebpo.space.runs import Runs
from openrlhf_ebpo.space.workspace import Workspace

REPO, MODEL = "owner/tiny-results", "owner/tiny"


@pytest.fixture
def push(api, monkeypatch, no_waiting):
    """Results as a data set."""
    monkeypatch.setattr(data_repo, "hub_api", lambda: api)
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_PAUSE", "0.01")

    def call(folder, *flags, repo=REPO):
        parser = argparse.ArgumentParser()
        run_data.add_flags(parser)
        run_data.run(parser.parse_args([str(folder), "--repo", repo, *flags]))

    return call


def front_matter(content: bytes) -> dict:
    return yaml.safe_load(content.decode().split("\n---\n")[0])


def test_results_of_two_protocols_side_by_side_and_never_mixed(tmp_path, hub, hub_environment, push, capsys):
    save_result(tmp_path, "aime24", POOR, 0)
    save_result(tmp_path, "aime24", GOOD, 5)
    save_result(tmp_path, "aime24", GOOD, 5, GREEDY)
    push(tmp_path)
    assert "; private)" in capsys.readouterr().out and hub.repo(REPO, "dataset").private
    files = hub.repo(REPO, "dataset").files()
    places = [f"eval/{place}/{name}" for place in ("default/aime24/step-000000", "default/aime24/step-000005",
              "greedy/aime24/step-000005") for name in ("summary.json", "samples.parquet")]  # fmt: skip
    assert set(places) | {"README.md", run_data.EVALUATIONS} <= set(files)
    assert not any(b"/data/" in content for content in files.values())
    card = files["README.md"].decode()
    assert card.count("### Protocol") == 2 and "| pass@1 before training | pass@1 | maj@4 | pass@4 |" in card
    names = [entry["config_name"] for entry in front_matter(files["README.md"])["configs"]]
    assert names == ["evaluations", "eval-default-aime24", "eval-greedy-aime24"]
    program = (
        "from datasets import load_dataset\n"
        f"table = load_dataset({REPO!r}, 'evaluations', split='train').to_pandas()\n"
        "found = table[table.metric == 'pass@1'].set_index(['protocol', 'step']).value.round(3).to_dict()\n"
        f"print(found, len(load_dataset({REPO!r}, 'eval-greedy-aime24', split='step_000005')))"
    )
    done = subprocess.run([sys.executable, "-c", program], env=hub_environment, capture_output=True, text=True)
    assert done.stdout.strip() == "{('default', 0): 0.167, ('default', 5): 0.667, ('greedy', 5): 0.667} 3", done.stderr


def test_a_later_push_adds_and_a_repeated_one_sends_nothing(tmp_path, hub, push, capsys):
    save_result(tmp_path / "one", "aime24", GOOD)
    push(tmp_path / "one")
    commits = len(hub.repo(REPO, "dataset").history())
    push(tmp_path / "one")
    assert "nothing had changed" in capsys.readouterr().out
    assert len(hub.repo(REPO, "dataset").history()) == commits
    save_result(tmp_path / "one", "amc23", POOR)
    push(tmp_path / "one")
    files = hub.repo(REPO, "dataset").files()
    assert {f"eval/default/{task}/step-000000/samples.parquet" for task in ("aime24", "amc23")} <= set(files)
    names = [entry["config_name"] for entry in front_matter(files["README.md"])["configs"]]
    assert names == ["evaluations", "eval-default-aime24", "eval-default-amc23"]


def test_other_results_are_never_overwritten(tmp_path, hub, push):
    save_result(tmp_path / "one", "aime24", GOOD)
    push(tmp_path / "one")
    before = hub.repo(REPO, "dataset").files()
    save_result(tmp_path / "model", "aime24", POOR, settings={"model": "another@456"})
    save_result(tmp_path / "rules", "aime24", POOR, protocol={**PROTOCOL, "fingerprint": "0dd"})
    save_result(tmp_path / "others", "amc23", POOR)
    with pytest.raises(UsageError, match=r"default/aime24/step-000000 \(model_identity 'global_step0_hf@123' there"):
        push(tmp_path / "model")
    with pytest.raises(UsageError, match="protocol_fingerprint 'f00d' there, '0dd' here"):
        push(tmp_path / "rules")
    with pytest.raises(UsageError, match="has eval/default/aime24/step-000000, which is not in this folder"):
        push(tmp_path / "others")
    assert hub.repo(REPO, "dataset").files() == before
    save_result(tmp_path / "one", "aime24", POOR)  # the same model and task, sampled again
    push(tmp_path / "one")
    assert hub.repo(REPO, "dataset").files()[run_data.EVALUATIONS] != before[run_data.EVALUATIONS]


def test_a_runs_data_set_is_no_place_for_other_results(tmp_path, hub, push):
    run_dir = write_run(tmp_path)
    save_result(run_dir / "eval", "aime24", GOOD, 3)
    push(run_dir)
    save_result(tmp_path / "base", "aime24", GOOD)
    with pytest.raises(UsageError, match="holds a run"):
        push(tmp_path / "base")
    push(run_dir / "eval", repo="owner/elsewhere")
    assert "eval/default/aime24/step-000003/summary.json" in hub.repo("owner/elsewhere", "dataset").files()


def test_a_copy_from_the_hub_shows_the_results(tmp_path, hub, push):
    save_result(tmp_path / "base", "aime24", GOOD)
    push(tmp_path / "base")
    for name, content in hub.repo(REPO, "dataset").files().items():
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / name).write_bytes(content)
    found = evaluation.render(clean({}), Workspace(Runs([str(tmp_path / "copy")])))
    assert "aime24" in found["table"] and found["notes"] == ""


def test_an_evaluation_that_came_later_gets_into_the_models_card_by_another_push(tmp_path, hub, use_hub, capsys):
    run_dir = write_run(tmp_path)
    model = hub_runs.export_model(tmp_path / "ckpt" / "global_step3_hf", 3)
    append_json_line(run_dir / "checkpoints.jsonl", {"step": 3, "tag": "global_step3", "model": str(model)})
    hub_cli.main(["push", str(run_dir), "--repo", MODEL])
    assert b"model-index" not in hub.repo(MODEL).files()["README.md"]
    save_result(run_dir / "eval", "aime24", GOOD, 3)
    save_result(run_dir / "eval", "amc23", GOOD, 3, model="openai:http://host#name")  # whose weights nobody knows
    hub_cli.main(["push", str(run_dir), "--repo", MODEL])
    assert "(1 of " in capsys.readouterr().out.splitlines()[-1]  # the card alone
    card = hub.repo(MODEL).files("step-000003")["README.md"]
    (row,) = front_matter(card)["model-index"][0]["results"]
    assert row["dataset"]["name"] == "aime24" and row["metrics"][0]["value"] == 66.67 and b"amc23" not in card


def test_the_command_of_before_says_what_to_type(tmp_path, capsys):
    with pytest.raises(SystemExit, match=r"push-results is retired: `hub push RUN_DIR --repo .*`hub push-run`"):
        hub_cli.main(["push-results", str(tmp_path)])


def test_dry_run_sends_nothing_and_no_results_are_an_error(tmp_path, hub, push, capsys):
    with pytest.raises(UsageError, match="no run"):
        push(tmp_path)
    save_result(tmp_path, "aime24", GOOD, 5)
    push(tmp_path, "--dry_run")
    assert "default/aime24/step-000005/samples.parquet" in capsys.readouterr().out and not hub.repos


def test_questions_that_are_not_to_be_put_online_are_warned_of(tmp_path, hub, push, capsys):
    save_result(tmp_path, "aime24", GOOD, 5)
    push(tmp_path, "--dry_run")
    assert "warning" not in capsys.readouterr().out
    save_result(tmp_path, "gpqa_diamond-first2", GOOD, 5)
    push(tmp_path, "--dry_run")
    assert (
        "warning: gpqa_diamond-first2: its publishers ask" in (said := capsys.readouterr().out)
        and f"keep {REPO}" in said
    )


def test_a_data_set_of_somebody_else_is_not_overwritten(tmp_path, hub, push):
    save_result(tmp_path, "aime24", GOOD, 5)
    hub.create(REPO, "dataset").commit("main", {"data.csv": File(b"1,2", False)}, "theirs")
    with pytest.raises(UsageError, match=r"holds something that is not a table of results \(data\.csv\)"):
        push(tmp_path)
    assert set(hub.repo(REPO, "dataset").files()) == {"data.csv"}
