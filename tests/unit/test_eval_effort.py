"""What an evaluation took, in summary.json and in the report."""

from argparse import Namespace
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from recorded_runs import GOOD, save_result

from openrlhf_ebpo.eval import effort, report, run

FIRST = {"began": "2026-01-01T10:00", "seconds": 1800, "engines": 4, "gpus": 8}
SECOND = {**FIRST, "began": "2026-01-02T10:00", "seconds": 900, "engines": 8}


def test_each_pass_counts_once_with_its_latest_stamp():
    stamps = [SECOND, {**FIRST, "seconds": 30}, FIRST, {**FIRST, "seconds": 700}]
    assert effort.merged(stamps) == [FIRST, SECOND] and effort.seconds_of([FIRST, SECOND]) == 2700
    assert effort.merged([]) == []


def test_gpu_hours_are_known_where_every_pass_says_its_gpus():
    assert effort.gpu_hours([FIRST, SECOND]) == 6 and effort.gpu_hours([{**FIRST, "gpus": 0}]) == 0
    assert effort.gpu_hours([]) is None


@pytest.mark.parametrize(("cpu", "gpus"), [(True, 0), (False, 8)])
def test_an_evaluation_holds_the_gpus_of_its_engines(monkeypatch, cpu, gpus):
    monkeypatch.setattr(run, "is_cpu_stack", lambda: cpu)
    monkeypatch.setattr(run.generate, "respond", lambda *_: None)
    monkeypatch.setattr(run.models, "full", lambda path, _: nullcontext(path))
    monkeypatch.setattr(run.engines, "flag_values", vars)
    job = SimpleNamespace(model=SimpleNamespace(path="m"))
    run.generate_missing([job], None, None, None, Namespace(num_engines=2, tensor_parallel_size=4))
    assert (job.effort.engines, job.effort.gpus) == (2, gpus)


def test_tokens_of_prompts_count_once_and_only_where_all_are_counted():
    records = [{"lengths": [3, 4], "prompt_tokens": 10}, {"lengths": [5, 0], "prompt_tokens": 20}]
    assert effort.tokens(records) == {"prompt": 30, "generated": 12}
    assert effort.tokens([*records, {"lengths": [1, 1]}]) == {"prompt": None, "generated": 14}


def test_the_report_adds_up_what_the_tasks_of_a_model_took_together(tmp_path):
    """Passes are of all tasks: a task that was finished later has one more."""
    save_result(tmp_path / "a", "aime24", GOOD, passes=[FIRST], tokens={"prompt": 1000, "generated": 300})
    save_result(tmp_path / "a", "amc23", GOOD, passes=[{**FIRST, "seconds": 1700}, SECOND], tokens={"prompt": 500})
    save_result(tmp_path / "old", "aime24", GOOD)
    text = report.write_report([tmp_path / "a", tmp_path / "old"], tmp_path / "out").read_text()
    assert "\n| a | 1,500 | 240 | 0.09 | 0:45:00 | 2 | 4, 8 | 8 | 6.00 |\n" in text
    assert "\n| old | 1" not in text and "all of these" not in text  # the old one says nothing of its time
    assert "Tokens and time" not in report.write_report([tmp_path / "old"], tmp_path / "out").read_text()


def test_every_step_is_counted_though_the_tables_show_the_first_and_the_last(tmp_path):
    for step, each in enumerate((FIRST, SECOND, {**FIRST, "began": "2026-02-01"})):
        save_result(tmp_path / "a", "aime24", GOOD, passes=[each], tokens={"prompt": 10}, step=step)
    text = report.write_report([tmp_path / "a"], tmp_path / "out").read_text()
    assert all(f"\n| step {step} | 10 | 120 |" in text for step in range(3))
    assert "\n| all of these | 30 | 360 |" in text
