"""Reports of made-up results: the numbers in them, and what is refused."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from recorded_runs import GOOD, POOR, PROTOCOL, save_result

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.eval import evaluation_report, metrics, paper, plots
from openrlhf_ebpo.eval.tasks import BENCHMARKS
from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.hub.evaluations import of_run
from openrlhf_ebpo.run import results
from openrlhf_ebpo.run.score_text import score


def table(text: str, heading: str) -> list[list[str]]:
    """Cells of the first table under a heading, head included."""
    lines = text.split(f"## {heading}\n", 1)[1].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = [line for line in lines[start:] if line.startswith("|")][: _length(lines[start:])]
    return [[cell.strip() for cell in line.strip("|").split("|")] for i, line in enumerate(rows) if i != 1]


def _length(lines: list[str]) -> int:
    return next((i for i, line in enumerate(lines) if not line.startswith("|")), len(lines))


def test_what_is_saved_is_read(tmp_path):
    directory = save_result(tmp_path, "aime24", GOOD)
    assert directory == tmp_path / "default" / "aime24" / "step-000000"
    file = directory / "samples.parquet"
    rows = pq.read_table(file)
    pq.write_table(rows.take(list(range(len(rows)))[::-1]), file)  # the order of rows does not matter
    (found,) = results.find_results(tmp_path)
    assert (found.task, found.step, found.n, found.summary["schema"]) == ("aime24", 0, 4, results.SCHEMA)
    samples = found.samples
    assert samples.question_ids.tolist() == ["aime24-0", "aime24-1", "aime24-2"]
    assert samples.classes.tolist() == GOOD
    assert (samples.correct == (np.array(GOOD) == 0)).all() and (samples.truncated == (np.array(GOOD) < 0)).all()
    assert samples.lengths.tolist() == [[10] * 4] * 3
    assert rows.schema.equals(results.SAMPLES)


@pytest.mark.parametrize("part", ["", "default", "default/aime24", "default/aime24/step-000000"])
def test_any_part_of_the_results_is_found_also_in_a_run(tmp_path, part):
    save_result(tmp_path / "eval", "aime24", GOOD)
    save_result(tmp_path / "superseded" / "x" / "eval", "aime24", POOR)
    assert len(results.find_results(tmp_path / "eval" / part)) == 1
    assert len(results.find_results(tmp_path)) == 1


def test_one_model(tmp_path):
    more = {"model": "some/model0", "counts": {"errors": 3, "excluded_golds": 5}}
    save_result(tmp_path / "mine", "aime24", GOOD, **more)
    save_result(tmp_path / "mine", "other", POOR, **more)
    path = evaluation_report.write_report([tmp_path / "mine"])
    assert path == tmp_path / "mine" / "default" / "report.md"
    text = path.read_text()
    rows = table(text, "pass@1")
    assert rows[0] == ["task", "mine"] and [row[0] for row in rows[1:]] == ["aime24", "other", "average"]
    metric = metrics.summarise(np.array(GOOD) == 0, *[np.array(GOOD)] * 3)["pass@1"]
    assert rows[1][1] == score(metric) and "66.7 ± 11.8 (" in rows[1][1]
    assert rows[3][1].startswith("41.7 ± ")
    rows = table(text, "pass@k and maj@k")
    assert rows[0] == ["task", "model", "pass@2", "pass@4", "maj@4"]
    assert rows[1][:4] == ["aime24", "mine", "83.3", "100.0"] and rows[1][4].startswith("66.7 (")
    rows = table(text, "Questions and answers")
    assert rows[1] == ["aime24", "mine", "3", "4", "8.3", "1", "8.3", "3", "5"]
    assert "Validation" not in text and "Compared" not in text and "reported" not in text
    assert "| temperature | `1.0` |" in text and "| some/model0 |" in text
    assert not list(path.parent.glob("*.png"))


def test_models_side_by_side_with_a_missing_task_and_the_papers_numbers(tmp_path):
    for task in ("aime24", "amc23"):
        save_result(tmp_path / "base", task, POOR)
    save_result(tmp_path / "mine", "aime24", GOOD)
    save_result(tmp_path / "mine", "math500", GOOD)
    directories = [tmp_path / "base", tmp_path / "mine"]
    text = evaluation_report.write_report(directories, tmp_path / "out", reported="qwen3-8b,4").read_text()
    rows = table(text, "pass@1")
    assert rows[0][:3] == ["task", "base", "mine"] and "GRPO, Qwen3-8B, G = 4 (reported)" in rows[0]
    assert [row[0] for row in rows[1:]] == ["aime24", "amc23", "math500"]  # one task in common is not an average
    assert rows[1][1].startswith("16.7") and rows[1][2].startswith("66.7")
    assert rows[1][3:] == ["50.21", "51.04", "45.63", "37.92", "53.75", "56.04"]
    assert rows[2][2] == rows[3][1] == "–"
    assert "reported by the authors (arXiv 2602.05165), not measured here" in text
    assert "**mine minus base**" in text
    assert table(text, "Compared on the same questions")[1:][0][:3] == ["aime24", "3", "+50.0"]
    assert len(table(text, "Compared on the same questions")) == 2


def test_average_names_its_tasks_where_models_have_different_ones(tmp_path):
    for task in ("aime24", "amc23", "math500"):
        save_result(tmp_path / "base", task, POOR)
    for task in ("aime24", "math500"):
        save_result(tmp_path / "mine", task, GOOD)
    text = evaluation_report.write_report(
        [tmp_path / "base", tmp_path / "mine"], tmp_path / "out", reported="Qwen3-8B,4"
    ).read_text()
    last = table(text, "pass@1")[-1]
    assert last[0] == "average of aime24, math500" and last[3] == f"{(50.21 + 65.60) / 2:.2f}"


def test_several_steps_of_a_run(tmp_path):
    for step, classes in ((0, POOR), (10, GOOD), (20, [*GOOD[:2], [0, 0, 0, 0]])):
        save_result(tmp_path / "eval", "aime24", classes, step)
        save_result(tmp_path / "eval", "amc23", classes, step)
    path = evaluation_report.write_report([tmp_path], reported="Qwen3-14B,4")
    text = path.read_text()
    assert table(text, "pass@1")[0][:3] == ["task", "step 0", "step 20"]
    assert "EBPO-topic, Qwen3-14B, G = 4 (reported)" in text
    assert "**step 20 minus step 0**" in text
    (picture,) = re.findall(r"!\[.*?\]\((.*?)\)", text.partition("## Validation curve")[2])
    assert (path.parent / picture).read_bytes().startswith(b"\x89PNG")


def test_several_runs_with_several_steps(tmp_path):
    for name, last in (("grpo", POOR), ("ebpo", GOOD)):
        save_result(tmp_path / name / "eval", "aime24", POOR, 0)
        save_result(tmp_path / name / "eval", "aime24", last, 10)
    path = evaluation_report.write_report([tmp_path / "grpo", tmp_path / "ebpo"], tmp_path / "out")
    assert [cell.split()[0] for cell in table(path.read_text(), "pass@1")[1]] == ["aime24", "16.7", "66.7"]
    assert "**ebpo, step 10 minus grpo, step 10**" in path.read_text()
    assert {each.name for each in path.parent.iterdir()} == {"report.md", evaluation_report.PICTURE}


def test_the_validation_curve_has_each_task_each_metric_and_the_average_of_what_all_steps_have(tmp_path):
    pytest.importorskip("matplotlib")
    for name, last in (("grpo", POOR), ("ebpo", GOOD)):
        for step, classes in ((0, POOR), (10, last)):
            for task in ("aime24", "amc23", *(["math500"] if step else [])):
                save_result(tmp_path / name / "eval", task, classes, step)
    models = evaluation_report.gather([tmp_path / "grpo", tmp_path / "ebpo"], None)
    figure = plots.validation(evaluation_report.curves(models))
    metrics_shown = ("pass@1", "maj@4", "pass@4")
    rows = ["aime24", "amc23", "math500", "average of aime24, amc23"]
    assert [axes.get_title(loc="left") for axes in figure.axes] == [f"{r}: {m}" for r in rows for m in metrics_shown]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["grpo", "ebpo"]
    steps, scores = figure.axes[9].lines[1].get_data()
    assert list(steps) == [0, 10] and list(scores) == pytest.approx([100 * 2 / 12, 100 * 8 / 12])
    figure.canvas.draw()


def test_greedy_has_no_curve(tmp_path):
    save_result(tmp_path, "aime24", [[0], [1]], protocol={**PROTOCOL, "name": "greedy", "n": 1})
    path = evaluation_report.write_report([tmp_path])
    assert table(path.read_text(), "pass@1")[1][1] == "50.0 (9.5 to 90.5)"
    assert "pass@k and maj@k" not in path.read_text()


def test_protocols_do_not_share_a_table(tmp_path):
    other = {**PROTOCOL, "name": "default+temperature=0.6", "temperature": 0.6}
    save_result(tmp_path / "a", "aime24", GOOD)
    save_result(tmp_path / "b", "aime24", GOOD, protocol=other)
    with pytest.raises(UsageError, match=r"different protocols.*temperature is 1\.0 and 0\.6"):
        evaluation_report.write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    save_result(tmp_path / "a", "aime24", POOR, protocol=other)
    with pytest.raises(UsageError, match=r"different protocols.*--protocol"):
        evaluation_report.write_report([tmp_path / "a"])
    text = evaluation_report.write_report([tmp_path / "a"], protocol=other["name"]).read_text()
    assert table(text, "pass@1")[1][1].startswith("16.7")
    with pytest.raises(UsageError, match=r"no results of --protocol greedy; it has default, default\+temperature"):
        evaluation_report.write_report([tmp_path / "a"], protocol="greedy")
    assert not (tmp_path / "out").exists()


def test_other_questions_do_not_share_a_row(tmp_path):
    save_result(tmp_path / "a", "aime24", GOOD)
    other = {"name": "aime24", "source": "there", "questions": 3, "fingerprint": "another"}
    save_result(tmp_path / "b", "aime24", GOOD, task=other)
    with pytest.raises(UsageError, match=r"aime24 .*'of aime24' and 'another'"):
        evaluation_report.write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "out")


def test_questions_that_one_model_lacks_are_not_compared(tmp_path):
    save_result(tmp_path / "a", "aime24", GOOD)
    task = {"name": "aime24", "source": "here", "questions": 3, "fingerprint": "of aime24"}
    save_result(tmp_path / "b", "aime24", GOOD[:2], task=task)
    with pytest.raises(UsageError, match=r"aime24: a and b .*'aime24-2'"):
        evaluation_report.write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "out")


def test_a_wrong_number_of_samples_is_named(tmp_path):
    directories = [tmp_path / "a", tmp_path / "b"]
    file, _ = (save_result(directory, "aime24", GOOD) / "samples.parquet" for directory in directories)
    whole = pq.read_table(file)
    pq.write_table(whole.slice(1), file)
    with pytest.raises(UsageError, match=r"samples\.parquet: question 'aime24-0' has 3 samples, 4 are needed"):
        evaluation_report.write_report(directories, tmp_path / "out")
    pq.write_table(whole.drop_columns(["class"]), file)
    with pytest.raises(UsageError, match="columns question_id"):
        evaluation_report.write_report(directories, tmp_path / "out")
    file.unlink()
    with pytest.raises(UsageError, match="is missing"):
        evaluation_report.write_report(directories, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_read_is_said(tmp_path):
    with pytest.raises(UsageError, match="not a directory"):
        results.find_results(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"no evaluation results.*openrlhf-ebpo eval"):
        results.find_results(tmp_path)
    summary = save_result(tmp_path, "aime24", GOOD) / "summary.json"
    write_json(summary, {**json.loads(summary.read_text()), "schema": 99})
    with pytest.raises(UsageError, match="schema 99, this version reads schema 1"):
        results.find_results(tmp_path)
    summary.write_text("{")
    with pytest.raises(UsageError, match="damaged"):
        results.find_results(tmp_path)
    write_json(summary, {"schema": 1, "model": "m", "step": 0, "task": {}})
    with pytest.raises(UsageError, match="damaged: it has no protocol, metrics"):
        results.find_results(tmp_path)
    whole = json.loads((save_result(tmp_path / "b", "amc23", GOOD) / "summary.json").read_text())
    metric = {"value": 0.5}
    metrics_of = [
        {**whole["metrics"], **each}
        for each in ({"pass@1": 1}, {"maj@4": metric}, {"mean_length": "<b>"}, {"questions": 10**400})
    ]
    for wrong in ({"task": []}, {"step": "1"}, {"protocol": "p"}, *({"metrics": each} for each in metrics_of)):
        write_json(summary, {**whole, **wrong})
        with pytest.raises(UsageError, match=f"damaged: {next(iter(wrong))} cannot be read"):
            results.find_results(tmp_path)
    write_json(summary, {"pass@1": 0.5})
    with pytest.raises(UsageError, match="schema None, this version reads schema 1"):
        results.find_results(tmp_path)
    summary.write_text("[]")
    with pytest.raises(UsageError, match="damaged: it is not a JSON object"):
        results.find_results(tmp_path)


def test_results_with_further_fields_are_read(tmp_path):
    """Of tasks that are not benchmarks here, with settings and fields that are not written here."""
    protocol = {**PROTOCOL, "shots": 4, "shots_file": "train.jsonl@123"}
    old = {"tokens": {"prompt": 3, "generated": 9}, "passes": [{"gpus": 1}], "cost": {"gpu_hours": 1.0}}
    for task in ("gpqa_diamond", "file-choice"):
        save_result(tmp_path / "run" / "eval", task, GOOD, protocol=protocol, seconds={"generation": 1}, **old)
    text = evaluation_report.write_report([tmp_path / "run"]).read_text()
    assert "| gpqa_diamond |" in text and "| shots | `4` |" in text
    assert {each.task for each in of_run(tmp_path / "run")} == {"file-choice", "gpqa_diamond"}


def test_names(tmp_path):
    one, other = tmp_path / "one" / "run", tmp_path / "other" / "run"
    assert evaluation_report.labels_of([one, other]) == ["one/run", "other/run"]
    assert evaluation_report.labels_of([one]) == ["run"]
    with pytest.raises(UsageError, match="a directory is given twice: "):
        evaluation_report.gather([one, one], None)


def test_the_papers_averages():
    """As the paper prints them; the last digit of its own rounding is left free."""
    averages = {
        ("Qwen3-8B,4", "GRPO"): 58.72,
        ("Qwen3-8B,4", "EBPO-topic"): 64.39,
        ("Qwen3-14B,4", "GRPO"): 59.88,
        ("Qwen3-14B,4", "EBPO-topic"): 61.75,
        ("LLaMA3.1-8B,4", "GRPO"): 9.00,
        ("LLaMA3.1-8B,4", "EBPO-topic"): 9.97,
        ("Qwen3-8B,8", "GRPO"): 54.26,
        ("Qwen3-8B,8", "EBPO-topic"): 65.54,
        ("Qwen3-8B,16", "GRPO"): 63.16,
        ("Qwen3-8B,16", "EBPO-topic"): 64.64,
        ("Qwen3-8B,4", "Dr. GRPO"): 56.27,
        ("Qwen3-8B,4", "DAPO"): 52.63,
        ("Qwen3-8B,4", "EntropyMech"): 49.18,
        ("Qwen3-14B,4", "Dr. GRPO"): 60.16,
        ("Qwen3-14B,4", "DAPO"): 61.34,
        ("Qwen3-14B,4", "EntropyMech"): 54.02,  # printed as 54.42, which its five numbers do not give
        ("LLaMA3.1-8B,4", "Dr. GRPO"): 8.89,
        ("LLaMA3.1-8B,4", "DAPO"): 7.50,
        ("LLaMA3.1-8B,4", "EntropyMech"): 6.39,
        ("Qwen3-8B,8", "DAPO"): 46.69,
        ("Qwen3-8B,16", "DAPO"): 56.36,
        ("Qwen3-8B,32", "DAPO"): 56.90,
        ("Qwen3-8B,32", "GRPO"): 62.91,
        ("Qwen3-8B,32", "EBPO-topic"): 62.41,
    }
    for (choice, method), average in averages.items():
        (values,) = [v for title, v in paper.reported(choice).items() if title.startswith(f"{method},")]
        assert np.mean(list(values.values())) == pytest.approx(average, abs=0.011)


def test_every_reported_number_has_its_source():
    published = json.loads(Path(paper.__file__).with_name("reported.json").read_text())
    assert {row["source"] for row in published["rows"]} == set(published["sources"])
    assert all(set(row["pass@1"]) <= set(BENCHMARKS) for row in published["rows"])


def test_reported_rows_are_found_or_listed():
    assert paper.reported("meta-llama/Llama-3.1-8B,4") == paper.reported("LLaMA3.1-8B,4")
    with pytest.raises(UsageError, match="'Qwen3-8B,4'"):
        paper.reported("Qwen3-8B,5")


def test_sources_and_what_to_know_of_them_are_in_the_report(tmp_path):
    task = {"name": "amc23", "source": "a/b@1", "questions": 3, "fingerprint": "f"}
    save_result(tmp_path, "amc23", GOOD, task={**task, "notes": ["46 rows"], "skipped": [f"row {i}" for i in range(9)]})
    text = evaluation_report.write_report([tmp_path]).read_text()
    assert "| amc23 | a/b@1 | 46 rows; row 0; row 1; row 2; row 3; … and 5 more in summary.json |" in text


def test_the_command(tmp_path, capsys):
    save_result(tmp_path, "aime24", GOOD)
    evaluation_report.main([str(tmp_path), "--output", str(tmp_path / "out")])
    assert capsys.readouterr().out == f"report: {tmp_path / 'out' / 'report.md'}\n"
    with pytest.raises(SystemExit, match=r"error: .*nowhere is not a directory"):
        evaluation_report.main([str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit, match=r"error: the report cannot be written: .*report\.md"):
        evaluation_report.main([str(tmp_path), "--output", str(tmp_path / "out" / "report.md")])
