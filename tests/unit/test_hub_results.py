"""Evaluation results: as a data set repo of their own (push-run), and in a model's card (push-results)."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest
import yaml
from hub_repos import File
from huggingface_hub import ModelCard
from recorded_runs import GOOD, GREEDY, POOR, PROTOCOL, save_result, write_run

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub import data_repo, results, run_data
from openrlhf_ebpo.space.links import clean
from openrlhf_ebpo.space.pages import evaluation
from openrlhf_ebpo.space.runs import Runs
from openrlhf_ebpo.space.workspace import Workspace

REPO, MODEL = "owner/tiny-results", "owner/tiny"
CARD = """---
license: mit  # ours
tags: [mine]
my_field: {kept: true}
model-index:
- name: Tiny
  results:
  - task: {type: text-generation}
    dataset: {name: AIME 2024, type: math-ai/aime24, config: somebody's}
    metrics: [{type: pass@1, value: 12.5, verified: false}]
    source: {url: https://example.org, name: theirs}
---

# My own words

---

| stay | here |
"""


@pytest.fixture
def command(api, monkeypatch, no_waiting):
    for module in (data_repo, results):
        monkeypatch.setattr(module, "hub_api", lambda: api)
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_PAUSE", "0.01")

    def call(module, *argv):
        parser = argparse.ArgumentParser()
        module.add_flags(parser)
        module.run(parser.parse_args(list(map(str, argv))))

    return call


@pytest.fixture
def push(command):
    """Results as a data set."""
    return lambda folder, *flags, repo=REPO: command(run_data, folder, "--repo", repo, *flags)


@pytest.fixture
def write(command):
    """Results into the model's card."""
    return lambda folder, *flags: command(results, folder, "--model", MODEL, *flags)


def model(hub, card: str = CARD):
    repo = hub.create(MODEL)
    repo.commit("main", {"README.md": File(card.encode(), False), "config.json": File(b"{}", False)}, "model")
    return repo


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


def test_the_form_of_before_says_what_to_type(tmp_path, command):
    save_result(tmp_path, "aime24", GOOD, 5)
    for flags, found in ((["--repo", REPO, "--model", MODEL], f"--repo {REPO}"), ([], "no --model")):
        with pytest.raises(UsageError, match=f"{found}.*openrlhf-ebpo hub push-run .* --repo OWNER/NAME"):
            command(results, tmp_path, *flags)


def test_a_copy_from_the_hub_shows_the_results(tmp_path, hub, push):
    save_result(tmp_path / "base", "aime24", GOOD)
    push(tmp_path / "base")
    for name, content in hub.repo(REPO, "dataset").files().items():
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / name).write_bytes(content)
    found = evaluation.render(clean({}), Workspace(Runs([str(tmp_path / "copy")])))
    assert "aime24" in found["table"] and found["notes"] == ""


def test_the_models_card_gets_a_row_each_protocol_and_keeps_everything_else(tmp_path, hub, write, capsys):
    repo = model(hub)
    save_result(tmp_path, "aime24", POOR, 0)
    save_result(tmp_path, "aime24", GOOD, 5)
    save_result(tmp_path, "aime24", POOR, 5, GREEDY)
    write(tmp_path)
    assert "card of owner/tiny: 5 results of step 5 written" in capsys.readouterr().out
    content = repo.files()["README.md"]
    assert content.decode().endswith(CARD.split("\n---\n", 1)[1]) and repo.files()["config.json"] == b"{}"
    found = front_matter(content)
    assert found["license"] == "mit" and found["tags"] == ["mine"] and found["my_field"] == {"kept": True}
    (index,) = found["model-index"]
    theirs, default, greedy = index["results"]
    assert index["name"] == "Tiny" and theirs["source"]["name"] == "theirs" and theirs["metrics"][0]["value"] == 12.5
    assert (default["dataset"]["config"], greedy["dataset"]["config"]) == ("default (f00d)", "greedy (beef)")
    assert [m["value"] for m in default["metrics"] if m["type"] == "pass@1"] == [66.67]
    assert default["metrics"][0]["args"]["interval_95"][1] > 90 and default["dataset"]["args"]["n"] == 4
    assert "source" not in default
    assert len(ModelCard(content.decode()).data.eval_results) == 6
    commits = len(repo.history())
    write(tmp_path)
    assert "were there already" in capsys.readouterr().out and len(repo.history()) == commits
    assert repo.files()["README.md"] == content


def test_a_new_value_takes_the_place_of_the_old_one(tmp_path, hub, write):
    repo = model(hub, "# A card without metadata\n")
    save_result(tmp_path, "aime24", POOR, 5)
    write(tmp_path)
    save_result(tmp_path, "aime24", GOOD, 5)
    write(tmp_path, "--step", "5")
    content = repo.files()["README.md"]
    ((row,),) = [index["results"] for index in front_matter(content)["model-index"]]
    assert [(metric["type"], metric["value"]) for metric in row["metrics"] if metric["type"] == "pass@1"] == [
        ("pass@1", 66.67)
    ]
    assert len(row["metrics"]) == 3 and content.decode().endswith("# A card without metadata\n")


def test_the_row_names_the_data_set_of_the_run(tmp_path, hub, push, write):
    repo, run_dir = model(hub), write_run(tmp_path)
    save_result(run_dir / "eval", "aime24", GOOD, 3)
    push(run_dir)
    write(run_dir)
    (index,) = front_matter(repo.files()["README.md"])["model-index"]
    assert index["results"][-1]["source"]["url"] == f"{hub.url}/datasets/{REPO}"


def test_dry_run_and_what_is_wrong(tmp_path, hub, push, write, capsys):
    with pytest.raises(UsageError, match="no evaluation results"):
        write(tmp_path)
    save_result(tmp_path, "aime24", GOOD, 5)
    write(tmp_path, "--dry_run")
    push(tmp_path, "--dry_run")
    said = capsys.readouterr().out
    assert "default/aime24/step-000005/samples.parquet" in said and "3 results of step 5 would be written" in said
    assert not hub.repos
    with pytest.raises(UsageError, match="--model owner/tiny: no such model"):
        write(tmp_path)
    with pytest.raises(UsageError, match=r"--step 7: there are results of step 5"):
        write(tmp_path, "--step", "7")
    assert not hub.repos  # all of that is found before anything is sent
    model(hub, "---\n- a list\n---\n")
    with pytest.raises(UsageError, match="metadata of its card cannot be read"):
        write(tmp_path)


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
    with pytest.raises(UsageError, match=r"holds something that is no table of results \(data\.csv\)"):
        push(tmp_path)
    assert set(hub.repo(REPO, "dataset").files()) == {"data.csv"}


def test_results_of_another_step_do_not_get_into_a_models_card_unasked(tmp_path, hub, write):
    save_result(tmp_path, "aime24", POOR, 0)  # the base model's
    repo = model(hub)
    repo.tags["step-000040"] = repo.branches["main"]
    with pytest.raises(UsageError, match="owner/tiny is of step 40, the results are of step 0"):
        write(tmp_path)
    write(tmp_path, "--step", "0")
    assert b"pass@1 in percent" in hub.repo(MODEL).files()["README.md"]


def test_a_newer_steps_card_is_not_replaced_by_an_older_one(tmp_path, hub, write, monkeypatch):
    save_result(tmp_path, "aime24", GOOD, 5)
    repo, make = model(hub), results.with_results

    def interrupted(card, new, name):
        if len(repo.history()) == 2:
            newer = {**repo.find("main").files, "README.md": File(b"# newer\n", False)}
            repo.commit("main", newer, "step 6")
        return make(card, new, name)

    monkeypatch.setattr(results, "with_results", interrupted)
    write(tmp_path)
    card = repo.files()["README.md"]
    assert b"# newer" in card and b"My own words" not in card and b"pass@1 in percent" in card
