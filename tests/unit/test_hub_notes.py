"""Cards that people have written into: what stands between the lines survives, and does nothing."""

from pathlib import Path

import hub_runs
import pytest
import yaml
from hub_repos import File
from recorded_runs import GOOD, GREEDY, POOR, arguments, save_result, write_run

from openrlhf_ebpo.cli import hub as hub_cli
from openrlhf_ebpo.hub import evaluations, notes, outbox
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
    for folder, repo in ((run_dir, "owner/run"), (run_dir / "eval", "owner/results")):
        hub_cli.main(["push-run", str(folder), "--repo", repo])
        write_into(hub.repo(repo, "dataset"), MINE)
        save_result(run_dir / "eval", "amc23", GOOD, 3)
        hub_cli.main(["push-run", str(folder), "--repo", repo])
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
    monkeypatch.setattr(notes, "MAX_CARD_BYTES", 10)
    assert "is not looked through for notes" in push(run_dir, 4)


# One table, two renderings


def test_body_and_model_index_show_the_same_rows(hub, use_hub, tmp_path):
    run_dir = write_run(tmp_path)
    save_result(run_dir / "eval", "aime24", POOR, 0)
    save_result(run_dir / "eval", "aime24", GOOD, 3)
    save_result(run_dir / "eval", "aime24", POOR, 3, GREEDY)
    push(run_dir, 3)
    text = hub.repo(REPO).files("step-000003")["README.md"].decode()
    (index,) = yaml.safe_load(text.removeprefix("---\n").split("\n---\n")[0])["model-index"]
    in_index = [m["value"] for row in index["results"] for m in row["metrics"] if m["type"] == "pass@1"]
    assert in_index == [66.67, 33.33] and all(f"{value:.1f}" in text for value in in_index)


def test_a_damaged_result_of_a_rolled_back_evaluation_costs_no_other_result(tmp_path):
    run_dir = write_run(tmp_path)
    save_result(run_dir / "eval", "kept", GOOD, 3)
    old = run_dir / "superseded" / "then" / "eval" / "default" / "old" / "step-000009"
    old.mkdir(parents=True)
    (old / "summary.json").write_text("{}")
    assert [result.task for result in evaluations.of_run(run_dir)] == ["kept"]


# Citation


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
