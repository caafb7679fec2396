"""The first page, without a browser: cards, seeds, dimmed and hidden runs; and the table of scores."""

import itertools
import json
import os
import re
import shutil
import time
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from panels import board
from recorded_runs import GOOD, save_result
from space_runs import evaluation as evaluation_of
from space_runs import hostile_run, learning_run, troubled_run

from openrlhf_ebpo import space
from openrlhf_ebpo.space import results
from openrlhf_ebpo.space.app import changes_of, fingerprint
from openrlhf_ebpo.space.headline import SEEDS
from openrlhf_ebpo.space.links import clean
from openrlhf_ebpo.space.overview_card import VERDICT
from openrlhf_ebpo.space.pages import PAGES, evaluation, overview
from openrlhf_ebpo.space.run_table import RUN_COLUMNS, bar
from openrlhf_ebpo.space.runs import AT_ONCE, Runs
from openrlhf_ebpo.space.warnings import RULES
from openrlhf_ebpo.space.workspace import ALL_HIDDEN, Workspace


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        learning_run(folder / f"ebpo-{seed}", steps=12, seed=seed, name="ebpo", prompts=4, pace=1.3)
        learning_run(
            folder / f"grpo-{seed}", steps=12, seed=seed, name="g", prompts=4, pace=0.2, estimator="group_norm"
        )
    learning_run(folder / "at-work", steps=6, seed=7, name="at work", prompts=2, status="running")
    troubled_run(folder / "troubled")
    hostile_run(folder / "evil", megabytes=0.05)
    return folder


@pytest.fixture
def workspace(folder):
    return Workspace(Runs([str(folder)]))


def cards(workspace, **view) -> dict[str, str]:
    found = overview.render(clean(view), workspace)["cards"]
    return dict(re.findall(r'<article class="run-card[^>]*aria-label="([^"]*)".*?>(.*?)</article>', found, re.S))


def sets(text: str) -> list[dict]:
    found = re.findall(r'data-set="([^"]*)"', text)
    return [json.loads(unescape(each)) for each in found]


def test_a_card_says_state_outcome_and_what_changed(workspace):
    found = cards(workspace, runs="ebpo-1,grpo-1")
    assert "held-out pass@1, mean of 2 tasks, base model to step 12" in found["ebpo-1"]
    assert VERDICT["better"] in found["ebpo-1"] and "paired over 30 questions" in found["ebpo-1"]
    assert "What EBPO changed" in found["ebpo-1"] and "pushed down" in found["ebpo-1"]
    assert "What GRPO left out" in found["grpo-1"] and "of responses got no advantage" in found["grpo-1"]
    assert ">complete<" in found["grpo-1"]


def test_a_training_that_goes_silent_is_told_though_no_file_changes(folder, workspace):
    lock = folder / "at-work" / "training.lock"
    lock.touch()
    view = clean({"runs": "at-work"})
    assert ">training<" in overview.render(view, workspace)["cards"]
    stamp = fingerprint(workspace, view)
    os.utime(lock, (time.time() - 5,) * 2)
    assert fingerprint(workspace, view) == stamp, "a lock that is held is touched all the time"
    os.utime(lock, (time.time() - 3600,) * 2)
    assert fingerprint(workspace, view) != stamp
    found = overview.render(view, workspace)["cards"]
    assert "no sign of life" in found and "No sign of life since" in found
    lock.unlink()


@pytest.mark.parametrize("place", ["eval", "."])
def test_a_new_result_is_noticed_in_a_run_and_in_a_folder_of_results(tmp_path, place):
    save_result(tmp_path / "all" / "a" / place, "aime24", GOOD)
    opened = Workspace(Runs([str(tmp_path / "all")]))
    view = clean({"runs": "a", "tab": "evaluation"})
    stamp = fingerprint(opened, view)
    assert fingerprint(opened, view) == stamp
    save_result(tmp_path / "all" / "a" / place, "aime25", GOOD)
    assert fingerprint(opened, view) != stamp


def test_a_failed_run_says_why_and_its_warnings_lead_to_what_shows_them(workspace):
    found = cards(workspace, runs="troubled")["troubled"]
    assert "RuntimeError: the loss is not finite at step 40" in found
    for title in ("Entropy collapse", "Gradient spike", "Truncated answers", "Rollout engine and trainer disagree"):
        assert title in found
    assert "at step 31" in found and "and 1 more" in found
    panels = [each["metric"] for each in sets(found) if each.get("tab") == "dynamics"]
    groups = [each for each in sets(found) if each.get("tab") == "samples"]
    assert "policy/entropy" in panels and "vllm_kl" in panels
    truncated = next(each for each in groups if each["kind"] == "truncated")
    assert clean(truncated)["run"] == "troubled" and truncated["steps"].endswith("-40")
    for wish in groups:
        assert "notes" in PAGES["samples"].render(clean({**wish, "runs": "troubled"}), workspace)


@pytest.mark.parametrize("kept", [True, False])
def test_a_warning_of_held_out_questions_leads_to_where_they_are(tmp_path, kept):
    run = learning_run(tmp_path / "gamed", steps=40, seed=1, name="gamed", prompts=2, pace=1.3)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(run / "eval")
    for step, rate in ((1, 0.9), (40, 0.1)):
        rows[step - 1]["eval_held_pass1"] = rate
        if kept:
            evaluation_of(run, "aime24", step, rate, seed=1)
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = cards(Workspace(Runs([str(tmp_path)])))["gamed"].split("Held-out falls while")[1]
    assert sets(found)[0]["tab"] == ("evaluation" if kept else "dynamics")


def test_the_first_line_counts_runs_and_warnings(workspace):
    found = overview.render(clean({"runs": "ebpo-1,troubled"}), workspace)["sum"]
    assert '2 runs: <b class="bad">1 failed, 1 complete</b>' in found and re.search(r"\d warnings<", found)
    alone = overview.render(clean({"runs": "ebpo-1"}), workspace)["sum"]
    assert "1 run: <b" in alone and "1 warning<" in alone
    quiet = overview.render(clean({"runs": "evil"}), workspace)["sum"]
    assert f"No warnings ({len(RULES)} checks)" in quiet


def test_seeds_stand_together_and_are_paired_with_those_of_grpo(workspace):
    found = overview.render(clean({"runs": "ebpo-1,grpo-1,ebpo-2,grpo-2"}), workspace)
    rows = re.findall(r'<th scope="row">(.*?)</tr>', found["seeds"])
    assert [name in row for name, row in zip(("ebpo-*", "grpo-*"), rows, strict=True)] == [True, True]
    assert all("held-out pass@1" in row and "<td>2</td>" in row and re.search(r"<b>\+.* to \+", row) for row in rows)
    said = found["headline"]
    assert "EBPO against GRPO" in said and "range" in said and "2 seeds" in said and SEEDS[1] not in said
    assert overview.render(clean({"runs": "ebpo-1,grpo-1"}), workspace)["seeds"] == ""


def test_the_headline_says_who_won_over_what_and_that_it_is_one_seed(workspace):
    said = overview.render(clean({"runs": "ebpo-1,grpo-1"}), workspace)["headline"]
    assert "EBPO did better than GRPO" in said and SEEDS[1] in said and "30 questions of 2 tasks" in said
    assert re.search(r"\+\d+\.\d points</b>.*95% CI \+\d", said)
    backwards = overview.render(clean({"runs": "grpo-1,ebpo-1"}), workspace)["headline"]
    assert "EBPO did better than GRPO" in backwards
    assert overview.render(clean({"runs": "ebpo-1"}), workspace)["headline"] == ""
    assert overview.render(clean({"runs": "ebpo-1,ebpo-2"}), workspace)["headline"] == "", "one configuration"


def changed_run(source, target, **sections):
    copy = shutil.copytree(source, target)
    about = json.loads((copy / "run.json").read_text())
    for section, values in sections.items():
        about["args"][section] |= values
    (copy / "run.json").write_text(json.dumps(about))
    return copy


@pytest.mark.parametrize(
    "sections", [{"actor": {"model_name_or_path": "other"}}, {"data": {"prompt_dataset": "other"}}]
)
def test_runs_of_another_model_or_data_are_not_compared(folder, tmp_path, sections):
    shutil.copytree(folder / "grpo-1", tmp_path / "grpo")
    changed_run(folder / "ebpo-1", tmp_path / "ebpo", **sections)
    assert overview.render(clean({}), Workspace(Runs([str(tmp_path)])))["headline"] == ""


def test_without_evaluations_the_training_rewards_are_compared(folder, tmp_path):
    for name, pace in (("ebpo", 1.3), ("grpo", 0.1)):
        estimator = "ebpo" if name == "ebpo" else "group_norm"
        learning_run(tmp_path / name, steps=30, seed=1, name=name, prompts=4, pace=pace, estimator=estimator)
        shutil.rmtree(tmp_path / name / "eval")
    said = overview.render(clean({}), Workspace(Runs([str(tmp_path)])))["headline"]
    assert "training reward" in said and "over steps 26 to 30" in said and SEEDS[1] in said
    assert "By training reward: no held-out answers" in said and "EBPO earned more training reward than GRPO" in said
    assert 'class="better"' in said or "Warnings:" in said


def test_a_headline_by_a_gamed_reward_names_the_warning_and_is_not_green(tmp_path):
    """The reward goes from 7 to 95 % by answers of two tokens."""
    for name, estimator in (("ebpo", "ebpo"), ("grpo", "group_norm")):
        run = learning_run(tmp_path / name, steps=20, seed=1, name=name, prompts=2, estimator=estimator)
        shutil.rmtree(run / "eval")
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for row in rows:
            gained = (row["step"] - 1) / 19 if name == "ebpo" else 0
            row |= {"rollout/reward_mean": 0.07 + 0.88 * gained, "response_length": 60 - 58 * gained}
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = overview.render(clean({}), Workspace(Runs([str(tmp_path)])))
    assert "EBPO earned more training reward than GRPO" in found["headline"]
    assert "Length has changed with the reward; GRPO:" in found["headline"], "those of EBPO come first"
    assert 'class="doubted"' in found["headline"] and 'class="better"' not in found["headline"] + found["cards"]


@pytest.mark.parametrize("better", [True, False])
def test_of_three_seeds_the_interval_is_over_seeds(folder, tmp_path, better):
    paces = {"ebpo": 1.3, "grpo": 0.2} if better else {"ebpo": 0.5, "grpo": 0.52}
    for name, pace in paces.items():
        for seed in (1, 2, 3):
            estimator = "ebpo" if name == "ebpo" else "group_norm"
            learning_run(
                tmp_path / f"{name}-{seed}", steps=4, seed=seed, name=name, prompts=2, pace=pace, estimator=estimator
            )
    said = overview.render(clean({}), Workspace(Runs([str(tmp_path)])))["headline"]
    assert ("EBPO did better than GRPO" if better else "No difference shown between EBPO and GRPO") in said
    assert "over 3 seeds, paired by seed" in said and (better or "could not be seen" in said)


def test_a_first_seed_without_evaluations_does_not_hide_what_the_others_measured(tmp_path):
    for seed in (1, 2, 3):
        learning_run(tmp_path / f"seed{seed}", steps=10, seed=seed, name="x", prompts=2)
    shutil.rmtree(tmp_path / "seed1" / "eval")
    shown = overview.render(clean({}), Workspace(Runs([str(tmp_path)])))["seeds"]
    assert "held-out pass@1" in shown and "2 of 3" in shown and "not at the same step yet" not in shown


def test_all_configurations_are_shown_in_turn_and_share_a_colour(tmp_path):
    for name in ("ebpo", "grpo"):
        for seed in range(AT_ONCE):
            place = tmp_path / f"{name}-{seed:02d}"
            place.mkdir()
            args = {"train": {"seed": seed}, "algo": {"advantage": {"estimator": name}}}
            (place / "run.json").write_text(json.dumps({"schema": 1, "args": args}))
    workspace = Workspace(Runs([str(tmp_path)]))
    chosen = workspace.chosen(clean({}))
    assert len(chosen) == AT_ONCE and sum(key.startswith("grpo") for key in chosen) == AT_ONCE // 2
    opened, _ = workspace.open_all(clean({}))
    assert {run.run.number for run in opened if run.run.key.startswith("ebpo")} == {0}
    assert {run.run.number for run in opened if run.run.key.startswith("grpo")} == {1}
    assert workspace.open("grpo-00").run.number == 1
    chips, table = bar(workspace, clean({}))
    assert chips.count('class="chip') == 2 and f"{AT_ONCE} of {2 * AT_ONCE} runs" in chips and "10 seeds" in chips
    hidden = sets(chips)[0]["hidden"]
    assert len(hidden) == AT_ONCE // 2 and all(key.startswith("ebpo") for key in hidden)
    assert table == "" and {"table": True} in sets(chips)


def names(table: str) -> list[str]:
    return [
        re.sub(r"<[^>]+>", "", each).strip() for each in re.findall(r'<th scope="row">.*?</button>(.*?)</th>', table)
    ]


def test_the_table_has_every_run_and_sorts_by_any_column(tmp_path):
    for seed in range(AT_ONCE + 2):
        place = tmp_path / f"run-{seed:02d}"
        place.mkdir()
        args = {"train": {"seed": seed}, "actor": {"lr": float(seed)}}
        (place / "run.json").write_text(json.dumps({"schema": 1, "args": args, "started": f"2026-01-{30 - seed:02d}"}))
        (place / "metrics.jsonl").write_text(json.dumps({"step": 1, "reward": 0.5 - seed / 100}) + "\n")
    shown = Workspace(Runs([str(tmp_path)]))
    chips, table = bar(shown, clean({"table": 1}))
    assert 'class="chip' not in chips, "of many configurations the table says which is which"
    assert len(names(table)) == AT_ONCE + 2 and table.count("not read</td>") == 2 and "run-21" in table
    first = {
        each: names(bar(shown, clean({"table": 1, "sort": each}))[1])[0]
        for each in ("-run", "seed", "started", "reward")
    }
    assert first == {"-run": "run-21", "seed": "run-00", "started": "run-21", "reward": "run-19"}
    for column in RUN_COLUMNS:
        turned = [each["sort"] for each in sets(bar(shown, clean({"table": 1, "sort": column}))[1]) if "sort" in each]
        assert f"-{column}" in turned and len(turned) == len(RUN_COLUMNS)
    (add, _) = [each["add"] for each in sets(table) if "add" in each]
    chosen = shown.chosen(clean({}))
    after = changes_of({"add": add}, chosen, ["run-07"])["runs"]
    assert add in after and "run-07" not in after and len(after) == AT_ONCE, "a hidden one leaves"


@pytest.mark.parametrize("page", ["overview", "dynamics", "samples", "evaluation"])
def test_a_hidden_run_is_nowhere_but_in_the_bar(workspace, page):
    view = clean({"runs": "ebpo-1,grpo-1", "hidden": "grpo-1"})
    found = PAGES[page].render(view, workspace)
    assert "grpo-1" not in " ".join(str(each) for each in found.values())
    everything = PAGES[page].render(clean({"runs": "grpo-1", "hidden": "grpo-1"}), workspace)
    assert ALL_HIDDEN in everything["notes"]


def test_a_click_on_the_dot_hides_and_shows_again(workspace):
    view = clean({"runs": "ebpo-1,grpo-1", "hidden": "grpo-1"})
    states = []
    for _ in range(2):
        view = clean({**view, **sets(bar(workspace, view)[0])[0]})
        states.append(view["hidden"])
    assert states == [["grpo-1", "ebpo-1"], ["grpo-1"]]


def test_hostile_and_empty_runs_have_cards(workspace, tmp_path):
    assert len(cards(workspace, runs="evil")) == 1
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "run.json").write_text('{"schema": 1, "status": "running"}')
    found = overview.render(clean({}), Workspace(Runs([str(tmp_path)])))["cards"]
    assert "no step yet" in found and "Nothing to compare yet" in found and "No metrics yet" in found


def test_a_folder_of_evaluations_is_not_called_a_training(tmp_path):
    for step, rate in ((0, 0.1), (40, 0.9)):
        evaluation_of(tmp_path / "model", "aime24", step, rate, seed=1)
    found = overview.render(clean({}), Workspace(Runs([str(tmp_path)])))["cards"]
    assert "held-out pass@1, aime24, base model to step 40" in found and "run.json is missing" in found
    assert "EBPO" not in found and "unknown model" not in found and "no step" not in found


def table(workspace, **view) -> str:
    return evaluation.render(clean({"runs": "ebpo-1,grpo-1", **view}), workspace)["table"]


def test_the_table_says_what_changed_and_whether_chance_explains_it(workspace):
    found = table(workspace)
    assert found.split("</thead>")[0].count("base model<small>of all</small>") == 1, "the base model once"
    assert "30 questions of 2 tasks" in found and "better by more than chance would explain, over " in found
    changes, differences = (re.findall(f"<small>{name}</small> <b", found) for name in ("change", "difference"))
    assert (len(changes), len(differences)) == (6, 3), "two tasks and the average: two runs, and between them"


def test_seeds_of_a_configuration_are_one_column_and_never_compared_with_each_other(workspace):
    found = table(workspace, runs="ebpo-1,grpo-1,ebpo-2,grpo-2")
    head = re.findall(r'<th scope="col">(.*?)</th>', found)
    assert len(head) == 4 and "ebpo-*" in head[2] and "step 12, 2 seeds" in head[2] and "grpo-*" in head[3]
    assert found.count("over 2 seeds") == 2 * 9, "6 changes and 3 differences, each as text and in a title"
    assert "t-interval over seeds" in found and "Differences are to" in found
    shown = evaluation.render(clean({"runs": "ebpo-1,grpo-1,ebpo-2,grpo-2"}), workspace)
    panels = {panel["id"]: panel for panel in board(shown).values()}
    for panel in panels.values():
        assert {value["name"].partition(" ")[0] for value in panel["values"]} == {"ebpo-*", "grpo-*"}
    each = table(workspace, runs="ebpo-1,grpo-1,ebpo-2,grpo-2", seeds="each")
    assert "ebpo-2" in each and "t-interval" not in each
    alone = table(workspace, runs="ebpo-1,ebpo-2", seeds="each")
    assert "<small>difference</small>" not in alone and "<small>change</small>" in alone


def test_the_t_interval_is_over_seeds(tmp_path):
    for seed in (1, 2, 3):
        learning_run(tmp_path / f"s{seed}", steps=4, seed=seed, name="x", prompts=2)
    opened = Workspace(Runs([str(tmp_path)]))
    runs = [opened.open(key).run for key in opened.runs.listed()]
    by_run = [results.find(run)[0] for run in runs]
    (pooled,) = [r for r in results.average_seeds("s*", by_run) if (r.task, r.step) == ("aime24", 4)]
    values = [r.metrics["pass@1"]["value"] for own in by_run for r in own if (r.task, r.step) == ("aime24", 4)]
    half = 4.30265 * np.std(values, ddof=1) / 3**0.5
    assert pooled.metrics["pass@1"]["value"] == pytest.approx(np.mean(values))
    ends = np.clip([np.mean(values) - half, np.mean(values) + half], 0, 1)
    assert pooled.metrics["pass@1"]["interval"] == pytest.approx(ends.tolist()) and len(pooled.parts) == 3


def test_a_step_that_few_seeds_have_is_left_out_and_said(folder, tmp_path):
    for seed in (1, 2, 3):
        learning_run(tmp_path / f"s{seed}", steps=4, seed=seed, name="x", prompts=2)
    evaluation_of(tmp_path / "s1", "aime24", 9, 0.9, seed=1)
    opened = Workspace(Runs([str(tmp_path)]))
    shown = evaluation.render(clean({}), opened)["table"]
    assert "step 4, 3 seeds" in shown and "step 9" not in shown and "half of the seeds lack" in shown
    shutil.rmtree(tmp_path / "s3")
    shutil.rmtree(next(tmp_path.glob("s2/eval/*/aime24/step-000004")))
    shutil.rmtree(next(tmp_path.glob("s2/eval/*/amc23/step-000004")))
    apart = evaluation.render(clean({}), Workspace(Runs([str(tmp_path)])))["table"]
    assert "step 3, 2 seeds" in apart and "half of the seeds lack" in apart, "to the last step of both"
    ends = [
        [results.Result(run, "p", "t", step, {}, 1, 1, "") for step in (0, end)] for run, end in (("a", 10), ("b", 12))
    ]
    assert len(results.average_seeds("*", ends)) == 4, "without a step in common but the base model they stay apart"


def test_questions_can_be_searched(workspace):
    shown = evaluation.render(clean({"runs": "ebpo-1", "find": "QUESTION 7:"}), workspace)["questions"]
    assert shown.count("<li>") == 1 and "Question 7:" in shown
    none = evaluation.render(clean({"runs": "ebpo-1", "find": "not a question"}), workspace)["questions"]
    assert "No question of" in none and "<li>" not in none


def test_damaged_samples_leave_the_scores(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder / "ebpo-1", copy)
    for path in copy.glob("eval/*/*/*/samples.parquet"):
        path.write_bytes(b"damaged")
    found = evaluation.render(clean({}), Workspace(Runs([str(tmp_path)])))
    assert "aime24" in found["table"] and "<small>change</small>" not in found["table"]
    assert "damaged" in found["notes"]


CONES = {  # what is left of linear RGB (Machado, Oliveira and Fernandes 2009, severity 1)
    "normal": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
LMS = [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]
LAB = [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize(("theme", "page"), [(0, "#ffffff"), (1, "#1b1d1c")])
def test_colours_of_runs_are_told_apart_by_colour_blind_readers(theme, page):
    style = (Path(space.__file__).parent / "static" / "style.css").read_text()
    runs = [linear(found) for found in re.findall(r"--run-\d: (#\w{6})", style)[8 * theme : 8 * theme + 8]]
    luminance = [float(each @ [0.2126, 0.7152, 0.0722]) for each in (*runs, linear(page))]
    for each in luminance[:-1]:
        lighter, darker = max(each, luminance[-1]), min(each, luminance[-1])
        assert (lighter + 0.05) / (darker + 0.05) >= 2.9
    for cones in CONES.values():
        seen = [np.array(LAB) @ np.cbrt(np.array(LMS) @ np.clip(np.array(cones) @ each, 0, 1)) for each in runs]
        assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 0.1
