"""Cards that people have written into: what stands between the lines survives, and does nothing."""

import shutil
from pathlib import Path

import hub_runs
import pytest
import yaml
from hub_repos import File
from recorded_runs import GOOD, GREEDY, POOR, arguments, save_result, write_run

from openrlhf_ebpo.cli import hub as hub_cli
from openrlhf_ebpo.hub import evaluations, example, notes, outbox, published
from openrlhf_ebpo.hub.card import model_card
from openrlhf_ebpo.hub.notes import BEGIN, END, notes_of, with_notes, with_slot
from openrlhf_ebpo.hub.push import drain
from openrlhf_ebpo.hub_client import hub_api

REPO = "owner/model"
MINE = "## My words\n\n*Do not* deploy. {{ 7 * 7 }} {% raw %}\n\n---\nlicense: other\n---\n\n| a | b |\n"


def write_into(repo, text: str) -> None:
    """As somebody does who edits README.md on the Hub."""
    files = repo.find("main").files
    card = files["README.md"].content.decode()
    begins, ends = card.index(BEGIN) + len(BEGIN), card.rindex(END)
    edited = File(f"{card[:begins]}\n{text}{card[ends:]}".encode(), False)
    repo.commit("main", {**files, "README.md": edited}, "by hand")


def push(run_dir, step):
    outbox.add(run_dir, step, hub_runs.export_model(run_dir.parent / f"model{step}", step), repo=REPO)
    said = []
    assert drain(run_dir, hub_api(), said.append, attempts=1) is None
    return "\n".join(said)


def card_of(hub, revision="main", repo=REPO, kind="model") -> str:
    return hub.repo(repo, kind).files(revision)["README.md"].decode()


def test_what_was_written_by_hand_survives_the_next_push_and_is_read_as_nothing(hub, use_hub, tmp_path):
    run_dir = write_run(tmp_path)
    push(run_dir, 2)
    assert notes_of(card_of(hub)) == ""
    write_into(hub.repo(REPO), MINE)
    push(run_dir, 3)
    text = card_of(hub)
    assert MINE.strip("\n") in text and "trained for 3 steps" in text and "{{ 7 * 7 }}" in text
    assert set(yaml.safe_load(text.split("\n---\n")[0])) == {"library_name", "pipeline_tag", "tags"}
    assert text.count("## Use") == text.count(BEGIN) == text.count(END) == 1
    commits = len(hub.repo(REPO).history())
    push(run_dir, 3)
    assert len(hub.repo(REPO).history()) == commits  # nothing had changed


def test_a_run_and_results_keep_what_was_written_into_their_cards(hub, use_hub, tmp_path):
    run_dir = write_run(tmp_path)
    save_result(run_dir / "eval", "aime24", GOOD, 3)
    for command, repo in (("push-run", "owner/run"), ("push-results", "owner/results")):
        hub_cli.main([command, str(run_dir), "--repo", repo])
        write_into(hub.repo(repo, "dataset"), MINE)
        save_result(run_dir / "eval", "amc23", GOOD, 3)
        hub_cli.main([command, str(run_dir), "--repo", repo])
        text = card_of(hub, repo=repo, kind="dataset")
        assert MINE.strip("\n") in text and "amc23" in text


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", ""),
        ("# theirs\n", ""),
        (f"{BEGIN}\n{END}", ""),
        (f"x\n{BEGIN}\n\nmine\n\n{END}\ny", "mine"),
        (f"{BEGIN}\na {BEGIN} b {END} c\n{END}", f"a {BEGIN} b {END} c"),  # written by hand, and kept as it is
        (f"{BEGIN}\nhf_{'a1' * 17}\u202e\x1b[2J\r\n{END}", "<redacted>  [2J"),
        (f"{BEGIN}\nmine", None),
        (f"mine\n{END}", None),
        (f"{END}\nmine\n{BEGIN}", None),
    ],
)
def test_what_is_kept(text, kept):
    found = notes_of(text)
    assert found == kept
    if found:
        ours = with_slot(lambda slot: f"# ours\n\n{slot}\n\nend")
        assert notes_of(with_notes(ours, found)) == found and with_notes(ours, found).endswith(f"\n{END}\n\nend")


def test_a_run_cannot_forge_the_lines(tmp_path, hub, use_hub):
    args = arguments(tmp_path, input_template=f"{BEGIN} x {END}" + "{}")
    run_dir = write_run(tmp_path, args=args, name=f"{BEGIN}{END}")
    push(run_dir, 3)
    write_into(hub.repo(REPO), MINE)
    push(run_dir, 2)  # to a branch, for it is older
    assert notes_of(card_of(hub)) == notes_of(card_of(hub, "step-000002")) == MINE.strip()


def test_a_card_without_one_of_the_lines_or_too_long_is_told(hub, use_hub, tmp_path, monkeypatch):
    run_dir = write_run(tmp_path)
    push(run_dir, 2)
    repo = hub.repo(REPO)
    files = repo.find("main").files
    card = files["README.md"].content.replace(END.encode(), b"")
    repo.commit("main", {**files, "README.md": File(card, False)}, "by hand")
    assert "one is missing: nothing of the old card is kept" in push(run_dir, 3)
    monkeypatch.setattr(notes, "MOST_BYTES", 10)
    assert "is not looked through for notes" in push(run_dir, 4)


# One table, three renderings


def test_body_model_index_and_eval_results_show_the_same_rows(hub, use_hub, tmp_path):
    run_dir = write_run(tmp_path)
    save_result(run_dir / "eval", "aime24", POOR, 0)
    save_result(run_dir / "eval", "aime24", GOOD, 3)
    save_result(run_dir / "eval", "aime24", POOR, 3, GREEDY)
    push(run_dir, 3)
    files = hub.repo(REPO).files("step-000003")
    text = files["README.md"].decode()
    (index,) = yaml.safe_load(text.removeprefix("---\n").split("\n---\n")[0])["model-index"]
    in_index = [m["value"] for row in index["results"] for m in row["metrics"] if m["type"] == "pass@1"]
    entries = yaml.safe_load(files[evaluations.ENTRIES])
    assert [entry["value"] for entry in entries] == in_index == [66.67, 33.33]
    assert all(f"{value:.1f}" in text for value in in_index)
    assert entries[0]["dataset"] == {"id": "math-ai/aime24", "task_id": "aime24"}
    assert entries[0]["notes"].startswith("pass@1 in percent, protocol default (f00d); 3 questions, 4 responses each")
    push(run_dir, 4)  # without results of its own
    assert evaluations.ENTRIES not in hub.repo(REPO).files()


def test_push_results_writes_both_and_keeps_the_entries_of_others(hub, use_hub, tmp_path):
    run_dir = write_run(tmp_path)
    save_result(run_dir / "eval", "aime24", GOOD, 3)
    push(run_dir, 3)
    save_result(tmp_path / "more", "aime24", POOR, 3)
    save_result(tmp_path / "more", "aime24", GOOD, 3, GREEDY)
    hub_cli.main(["push-results", str(tmp_path / "more"), "--repo", "owner/results", "--model", REPO])
    entries = yaml.safe_load(hub.repo(REPO).files()[evaluations.ENTRIES])
    assert [entry["value"] for entry in entries] == [16.67, 66.67]
    assert entries[0]["source"]["url"] == f"{hub.url}/datasets/owner/results"


@pytest.mark.parametrize("before", ["", "- 1\n- dataset: x\n", "{", "a: b", "- dataset: {id: 7}\n"])
def test_a_file_of_entries_that_holds_something_else_is_no_obstacle(before):
    from openrlhf_ebpo.hub.results import with_entries

    assert with_entries(before, []) == {}
    new = [{"dataset": {"id": "a/b", "task_id": "t"}, "value": 1.0, "notes": "n"}]
    assert yaml.safe_load(with_entries(before, new)[evaluations.ENTRIES])[-1] == new[0]


def test_what_is_dropped_is_said_with_its_reason(tmp_path, caplog):
    run_dir = write_run(tmp_path)
    summary = save_result(run_dir / "eval", "own", GOOD, 3) / "summary.json"
    summary.write_text(summary.read_text().replace("math-ai/own@abc", "reasoning-gym"))
    text = model_card(run_dir, 3, REPO)["README.md"].decode()
    assert "`own`" in text
    assert "own is not in .eval_results/openrlhf_ebpo.yaml: its questions are no data set of the Hub" in caplog.text


def test_a_damaged_result_of_a_rolled_back_evaluation_costs_no_other_result(tmp_path):
    run_dir = write_run(tmp_path)
    save_result(run_dir / "eval", "kept", GOOD, 3)
    old = run_dir / "superseded" / "then" / "eval" / "default" / "old" / "step-000009"
    old.mkdir(parents=True)
    (old / "summary.json").write_text("{}")
    assert [result.task for result in evaluations.of_run(run_dir)] == ["kept"]


def test_the_card_of_results_links_to_the_run_and_the_model(hub, use_hub, tmp_path):
    run_dir = write_run(tmp_path)
    save_result(run_dir / "eval", "aime24", GOOD, 3)
    hub_cli.main(["push-results", str(run_dir), "--repo", "owner/results"])
    assert "On the Hub, too" not in card_of(hub, repo="owner/results", kind="dataset")
    hub_cli.main(["push-run", str(run_dir), "--repo", "owner/run"])
    push(run_dir, 3)
    hub_cli.main(["push-results", str(run_dir), "--repo", "owner/results"])
    text = card_of(hub, repo="owner/results", kind="dataset")
    assert "[the model](https://huggingface.co/owner/model)" in text and "datasets/owner/run)" in text
    assert "\n\nOn the Hub, too: " in text


# The example


@pytest.mark.parametrize(
    ("prompt", "template", "chat", "question"),
    [
        ("Say: 1+1\n", "Say: {question}\n", False, "1+1"),
        ("1+1", "{question}", False, "1+1"),
        ("<user>Solve 1+1. Box it.<end>", "Solve {question}. Box it.", True, "1+1"),
        ("<user>1+1<end>", "{question}", True, None),
        ("1+1", "Say: {question}", False, None),
        ("Say: ", "Say: {question}", False, None),
        ("Say: {question}", "Say: {question}", False, None),
    ],
)
def test_the_question_in_a_prompt(prompt, template, chat, question):
    assert example.question_in(prompt, template, chat) == question


def test_the_example_is_a_short_question_of_the_rollouts_that_passed(tmp_path):
    hostile = '1 + 1? """ ``` \u202e <img src=x> hf_' + "a1" * 17
    args = arguments(tmp_path, input_template="{}")
    text = model_card(write_run(tmp_path, prompts=(hostile, "2?"), args=args), 3, REPO)["README.md"].decode()
    assert "one that was asked in training, to which the model knew an answer" in text
    (line,) = {line.strip() for line in text.splitlines() if "question = " in line and "prompt" not in line}
    assert line.startswith('question = "1 + 1? \\"\\"\\" ``` ') and "a1a1" not in text and "\u202e" not in text
    assert "12 * 13" not in text


def test_without_rollouts_the_example_is_ours_and_damaged_ones_are_told(tmp_path, caplog):
    run_dir = write_run(tmp_path, args=arguments(tmp_path, input_template="{}"))
    for path in (run_dir / "rollouts").iterdir():
        path.write_bytes(b"PAR1")
    assert "What is 12 * 13?" in model_card(run_dir, 3, REPO)["README.md"].decode()
    assert "step-000003.parquet cannot be read" in caplog.text
    shutil.rmtree(run_dir / "rollouts")
    assert "What is 12 * 13?" in model_card(run_dir, 3, REPO)["README.md"].decode()


# Links and citation


def test_cards_name_each_other_where_they_are_known(hub, use_hub, tmp_path):
    run_dir = write_run(tmp_path)
    save_result(run_dir / "eval", "aime24", GOOD, 3)
    assert "On the Hub, too" not in model_card(run_dir, 3, REPO)["README.md"].decode()
    hub_cli.main(["push-run", str(run_dir), "--repo", "owner/run"])
    hub_cli.main(["push-results", str(run_dir), "--repo", "owner/results"])
    push(run_dir, 3)
    text = card_of(hub)
    assert "[the record of the run](https://huggingface.co/datasets/owner/run), [evaluation results](https" in text
    assert f"huggingface.co/{REPO})" not in text
    hub_cli.main(["push-run", str(run_dir), "--repo", "owner/run"])
    assert f"[the model](https://huggingface.co/{REPO})" in card_of(hub, repo="owner/run", kind="dataset")


@pytest.mark.parametrize("content", ["[", "[1]", '{"run": "a](b)/c", "results": 7, "space": null, "evil": "a/b"}'])
def test_a_note_of_something_else_makes_no_link(tmp_path, content):
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "published.json").write_text(content)
    assert published.links(tmp_path, "model") == ""


@pytest.mark.parametrize("estimator", ["ebpo", "group_norm"])
def test_the_citation_is_that_of_the_file(tmp_path, estimator):
    cff = yaml.safe_load((Path(__file__).parents[2] / "CITATION.cff").read_text())
    (paper,) = cff["references"]
    args = arguments(tmp_path)
    args["algo"]["advantage"]["estimator"] = estimator
    text = model_card(write_run(tmp_path, args=args), 3, REPO)["README.md"].decode()
    authors = " and ".join(f"{each['family-names']}, {each['given-names']}" for each in paper["authors"])
    number = paper["identifiers"][0]["value"].removeprefix("arXiv:")
    said = [
        f"title = {{{paper['title']}}}",
        f"author = {{{authors}}}",
        f"eprint = {{{number}}}",
        f"year = {{{paper['year']}}}",
    ]
    said += [f"url = {{{paper['url']}}}"]
    assert all((part in text) == (estimator == "ebpo") for part in said)
    for part in (f"title = {{{cff['title']}}}", f"version = {{{cff['version']}}}", f"license = {{{cff['license']}}}"):
        assert part in text
    assert f"author = {{{{{cff['authors'][0]['name']}}}}}" in text
