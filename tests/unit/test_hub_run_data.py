"""A run directory as a data set repo, spoken to by the unmodified client: what goes, what stays, what can be read."""

import argparse
import json
import re
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hub_repos import File
from recorded_runs import GOOD, GREEDY, POOR, save_result, write_run, write_steps

from openrlhf_ebpo.cli import main
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.hub import evaluations, run_data
from openrlhf_ebpo.hub.run_data import FACTS, data_card
from openrlhf_ebpo.hub_client import HubError
from openrlhf_ebpo.run.run_log import read_metrics, read_rollouts, read_run
from openrlhf_ebpo.run.run_writer import roll_back
from openrlhf_ebpo.upstream.controller.rollouts import SCHEMA

REPO = "owner/tiny-run"


@pytest.fixture
def push(api, monkeypatch, no_waiting):
    """The command, given a run directory and more flags."""
    monkeypatch.setattr(run_data, "hub_api", lambda: api)
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_PAUSE", "0.01")

    def command(run_dir, *flags, repo=REPO):
        parser = argparse.ArgumentParser()
        run_data.add_flags(parser)
        run_data.run(parser.parse_args([str(run_dir), "--repo", repo, *flags]))

    return command


def card_of(hub) -> dict:
    return yaml.safe_load(hub.repo(REPO, "dataset").files()["README.md"].decode().split("\n---\n")[0])


def test_a_pushed_run_is_a_run_directory_and_a_data_set(tmp_path, hub, hub_environment, push, capsys):
    run_dir = write_run(tmp_path)
    save_result(run_dir / "eval", "aime24", POOR, 0)
    save_result(run_dir / "eval", "aime24", GOOD, 3)
    save_result(run_dir / "eval", "file-q", GOOD, 3, {**GREEDY, "name": "default+n=1,temperature=0.0"})
    push(run_dir)
    assert f"run run is at {hub.url}/datasets/{REPO} (" in capsys.readouterr().out
    repo = hub.repo(REPO, "dataset")
    assert repo.private
    for path, content in repo.files().items():
        target = tmp_path / "copy" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    copy = tmp_path / "copy"
    assert read_metrics(copy) == read_metrics(run_dir)
    assert read_rollouts(copy, 2) == read_rollouts(run_dir, 2)
    assert [each.summary for each in evaluations.of_run(copy)] == [each.summary for each in evaluations.of_run(run_dir)]
    assert read_run(copy)["args"]["actor"]["model_name_or_path"] == "base"
    assert json.loads((copy / "prior.json").read_text())["rewards"]["count"] == 9
    main(["replay", str(copy)])
    assert "bit for bit: 3 steps" in capsys.readouterr().out
    assert str(tmp_path) not in "".join(c.decode() for p, c in repo.files().items() if p.endswith((".json", ".jsonl")))
    assert loaded(hub_environment, tmp_path) == {"rollouts train": 12, "eval train": 27}
    body = repo.files()["README.md"].decode().split("\n---\n", 1)[1]
    assert "pass@1 " in body and f'datasets.load_dataset("{REPO}", "rollouts")' in body and "## Licence" in body


def loaded(environment, folder) -> dict[str, int]:
    """Rows of every configuration and split, as the unmodified datasets library finds and reads them."""
    program = (
        "import datasets, json\n"
        f"repo = {REPO!r}\n"
        "rows = {}\n"
        "for name in datasets.get_dataset_config_names(repo):\n"
        "    for split, table in datasets.load_dataset(repo, name).items():\n"
        "        rows[f'{name} {split}'] = len(table)\n"
        "row = datasets.load_dataset(repo, 'rollouts', split='train')[3]\n"
        "assert row['prompt'] == '2 + 2?' and row['valid'] is False and row['raw_reward'] is None, row\n"
        "print(json.dumps(rows))\n"
    )
    environment = {**environment, "HF_DATASETS_CACHE": str(folder / "cache"), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_only_what_is_new_goes(tmp_path, hub, push, capsys):
    run_dir = write_run(tmp_path)
    push(run_dir)
    commits, uploads = len(hub.repo(REPO, "dataset").history()), hub.count("PUT /lfs/")
    push(run_dir)
    assert "(0 of 8 files sent now" in capsys.readouterr().out
    assert (len(hub.repo(REPO, "dataset").history()), hub.count("PUT /lfs/")) == (commits, uploads)
    write_steps(run_dir, [4])
    push(run_dir)
    assert "(4 of 9 files sent now" in capsys.readouterr().out  # one rollout file, and what grows
    assert hub.count("PUT /lfs/") == uploads + 1


def test_what_a_resumed_run_rolled_back_goes_and_a_foreign_run_is_refused(tmp_path, hub, push):
    run_dir = write_run(tmp_path / "a")
    push(run_dir)
    roll_back(run_dir, 2)
    push(run_dir)
    files = hub.repo(REPO, "dataset").files()
    assert "rollouts/step-000002.parquet" in files and "rollouts/step-000003.parquet" not in files
    assert not any("superseded" in path for path in files) and "checkpoints.jsonl" not in files
    other = write_run(tmp_path / "b", name="another")
    write_json(other / "run.json", {**read_run(other), "started": "2026-01-01T00:00:00+00:00"})
    with pytest.raises(UsageError, match=r"holds another run \(tiny, .*another repo"):
        push(other)
    assert hub.repo(REPO, "dataset").files() == files


def test_a_run_that_is_still_written_goes_up_to_its_last_whole_line(tmp_path, hub, push):
    run_dir = write_run(tmp_path)
    write_json(run_dir / "run.json", {**read_run(run_dir), "status": "running", "ended": None})
    with open(run_dir / "metrics.jsonl", "a") as file:
        file.write('{"step": 4, "rollout/rew')
    (run_dir / "rollouts" / ".step-000004.parquet.77.tmp").write_bytes(b"PAR1")
    (run_dir / "eval" / "default" / "aime24" / "step-000003").mkdir(parents=True)
    (run_dir / "eval" / "default" / "aime24" / "step-000003" / "progress.jsonl").write_text("{}\n")
    push(run_dir)
    files = hub.repo(REPO, "dataset").files()
    assert [json.loads(line)["step"] for line in files["metrics.jsonl"].splitlines()] == [1, 2, 3]
    assert not [path for path in files if "tmp" in path or path.startswith("eval/")]
    names = [entry["config_name"] for entry in card_of(hub)["configs"]]
    assert names == ["rollouts"]


def test_a_damaged_record_is_named(tmp_path, hub, push):
    run_dir = write_run(tmp_path)
    (run_dir / "prior.json").write_text("[" * 100_000)
    with pytest.raises(UsageError, match=r"prior\.json is damaged"):
        push(run_dir)
    assert not hub.repos


def test_results_of_an_evaluation_are_a_data_set_too_and_grow(tmp_path, hub, push):
    results = tmp_path / "results"
    save_result(results, "aime24", POOR, 0)
    (results / "notes.txt").write_text("NEEDLE")
    push(results)
    assert [entry["config_name"] for entry in card_of(hub)["configs"]] == ["eval"]
    save_result(results, "aime24", GOOD, 3)
    push(results)
    there = hub.repo(REPO, "dataset").files()
    assert {path.rpartition("/")[0] for path in there} == {
        "",
        "default/aime24/step-000000",
        "default/aime24/step-000003",
    }
    assert "notes.txt" not in there
    other = tmp_path / "other"
    save_result(other, "math500", GOOD, 3)
    with pytest.raises(UsageError, match="choose another repo"):
        push(other)
    with pytest.raises(UsageError, match="holds files of something else than a run"):
        push(write_run(tmp_path))
    assert hub.repo(REPO, "dataset").files() == there


def test_a_run_before_its_first_step(tmp_path, hub, push):
    run_dir = write_run(tmp_path, steps=1)
    for path in [run_dir / "metrics.jsonl", run_dir / "checkpoints.jsonl", *(run_dir / "rollouts").iterdir()]:
        path.unlink()
    push(run_dir)
    assert set(hub.repo(REPO, "dataset").files()) >= {"run.json", "README.md", "prior.json"}
    assert "configs" not in card_of(hub) and card_of(hub)["viewer"] is False


def test_dry_run_lists_sizes_sends_nothing_and_needs_neither_a_token_nor_the_hub(
    tmp_path, hub, push, monkeypatch, capsys
):
    run_dir = write_run(tmp_path)
    push(run_dir, "--dry_run")
    said = capsys.readouterr().out
    for name in ("run.json", "rollouts/step-000003.parquet", "README.md"):
        assert name in said
    assert "bytes" in said and f"would go to {REPO}; nothing was sent" in said
    assert not hub.requests


def test_public_only_when_asked(tmp_path, hub, push):
    push(write_run(tmp_path), "--public")
    assert not hub.repo(REPO, "dataset").private


def test_a_table_with_a_secret_stops_the_push_until_it_is_said_to_hold_none(tmp_path, hub, push):
    run_dir = write_run(tmp_path, error="FileNotFoundError: gold.json hf_" + "a1" * 20)
    with pytest.raises(
        UsageError, match=r"step-000001\.parquet holds what looks like a secret .*--not_secret rollouts/"
    ):
        push(run_dir)
    assert not hub.repos
    push(run_dir, "--not_secret", *(f"rollouts/step-00000{step}.parquet" for step in (1, 2, 3)))
    assert "rollouts/step-000001.parquet" in hub.repo(REPO, "dataset").files()


def test_hostile_prompts(tmp_path, hub, push):
    hostile = "--- \n| a | <script> `x` ```\n---\n"
    run_dir = write_run(tmp_path, prompts=(hostile, hostile), name=hostile)
    push(run_dir)
    files = hub.repo(REPO, "dataset").files()
    table = pq.read_table(pa.BufferReader(files["rollouts/step-000001.parquet"]))
    assert table.schema == SCHEMA and table["prompt"][0].as_py() == hostile
    body = files["README.md"].decode().split("\n---\n", 1)[1]
    assert "<script>" not in body and card_of(hub)["pretty_name"] == "tiny-run"


@pytest.mark.parametrize(
    "hostile", ["[l](javascript:alert(1))", "<img src=x onerror=a>", "x`\n\n# h\n| a |", "{{ 7 * 7 }}"]
)
def test_hostile_text_in_any_field_of_a_data_card_is_code(tmp_path, hostile):
    run_dir = write_run(tmp_path)
    run = read_run(run_dir)
    run["args"]["hub"] = {"repo": f"owner/{hostile}"}
    run["args"]["algo"]["advantage"]["estimator"] = hostile
    write_json(run_dir / "run.json", {**run, **dict.fromkeys((*FACTS, "id"), hostile)})
    save_result(run_dir / "eval", f"t{hostile}".replace("/", "."), GOOD, 3)
    text = data_card(run_dir, REPO, {"rollouts/step-000001.parquet": b"x"})
    front, body = text.removeprefix("---\n").split("\n---\n", 1)
    assert set(yaml.safe_load(front)) <= {"license", "pretty_name", "task_categories", "tags", "configs"}
    shown = re.sub(r"`[^`\n]+`", "", re.sub(r"(?ms)^(`{3,})\w+\n.*?^\1$", "", body))
    assert hostile not in shown and "<img" not in shown and "](javascript" not in shown and "{{" not in shown
    assert re.findall(r"(?m)^#+ .*", shown) == ["# tiny-run", "## Licence", "## Citation"]


def test_what_is_wrong_is_said(tmp_path, hub, push):
    with pytest.raises(UsageError, match=r"no run\.json"):
        push(tmp_path)
    run_dir = write_run(tmp_path)
    with pytest.raises(UsageError, match="owner/name"):
        push(run_dir, repo="tiny")
    with pytest.raises(UsageError, match="not for somebody"):
        push(run_dir, repo="somebody/tiny")
    (run_dir / "rollouts" / "step-000002.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(UsageError, match=r"step-000002\.parquet cannot be read"):
        push(run_dir)
    assert not hub.repos
    (run_dir / "rollouts" / "step-000002.parquet").unlink()
    hub.fail(r"POST .*/commit/", status=503, times=1)
    push(run_dir)  # tried again
    hub.fail(r"POST .*/preupload/", status=403, times=99)
    write_steps(run_dir, [4])
    with pytest.raises(HubError, match="403"):
        push(run_dir)


def test_a_repo_with_results_or_with_something_else_is_not_overwritten(tmp_path, hub, push):
    for name in ("tables/evaluations.parquet", "images/cat.png"):
        hub.create(REPO, "dataset").commit("main", {name: File(b"theirs", True)}, "theirs")
        with pytest.raises(UsageError, match=rf"holds files of something else than a run \({name}\)"):
            push(write_run(tmp_path / name))
        assert hub.repo(REPO, "dataset").files() == {name: b"theirs"}
