"""What an evaluation took, in summary.json and in the report."""

from __future__ import annotations

import pytest
from recorded_runs import GOOD, save_result

from openrlhf_ebpo.eval import effort, report

FIRST = {"began": "2026-01-01T10:00", "seconds": 1800, "engines": 4, "gpus": 8, "gpu": "H100", "price_per_hour": None}
SECOND = {**FIRST, "began": "2026-01-02T10:00", "seconds": 900, "engines": 8}


def test_each_pass_counts_once_with_its_latest_stamp():
    stamps = [SECOND, {**FIRST, "seconds": 30}, FIRST, {**FIRST, "seconds": 700}]
    assert effort.merged(stamps) == [FIRST, SECOND] and effort.seconds_of([FIRST, SECOND]) == 2700
    assert effort.merged([]) == []


@pytest.mark.parametrize(
    ("passes", "expected"),
    [
        ([FIRST, SECOND], {"gpu_hours": 6, "total": None}),
        ([{**FIRST, "price_per_hour": 1}, {**SECOND, "price_per_hour": 3}], {"gpu_hours": 6, "total": 10}),
        ([{**FIRST, "price_per_hour": 1}, SECOND], {"gpu_hours": 6, "total": None}),
        ([{**FIRST, "gpus": 0, "price_per_hour": 2}], {"gpu_hours": 0, "total": 1}),  # of the machine
        ([{**FIRST, "gpus": None, "price_per_hour": 2}], {"gpu_hours": None, "total": 1}),  # of a server elsewhere
        ([], {"gpu_hours": None, "total": None}),
    ],
)
def test_the_price_is_of_a_gpus_hour_or_of_the_machines(passes, expected):
    assert effort.cost(passes) == expected


def test_what_generates():
    assert effort.hardware("m", 2, 4, cuda=False, price=None) == dict.fromkeys(effort.HARDWARE) | {
        "engines": 2,
        "gpus": 0,
    }
    assert effort.hardware("m", 2, 4, cuda=True, price=1.5)["gpus"] == 8
    served = effort.hardware("openai:http://here/v1#m", 1, 1, cuda=True, price=2.0)
    assert served == dict.fromkeys(effort.HARDWARE) | {"price_per_hour": 2.0}


def test_a_machine_without_the_tool_has_no_gpus_name(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert effort.gpu_name() is None


def test_tokens_of_prompts_count_once_and_only_where_all_are_counted():
    records = [{"lengths": [3, 4], "prompt_tokens": 10}, {"lengths": [5, 0], "prompt_tokens": 20}]
    assert effort.tokens(records) == {"prompt": 30, "generated": 12}
    assert effort.tokens([*records, {"lengths": [1, 1]}]) == {"prompt": None, "generated": 14}


def test_the_report_adds_up_what_the_tasks_of_a_model_took_together(tmp_path):
    """Passes are of all tasks: a task that was finished later has one more."""
    first, second = ({**each, "price_per_hour": 2} for each in (FIRST, SECOND))
    save_result(tmp_path / "a", "aime24", GOOD, passes=[first], tokens={"prompt": 1000, "generated": 300})
    save_result(tmp_path / "a", "amc23", GOOD, passes=[{**first, "seconds": 1700}, second], tokens={"prompt": 500})
    save_result(tmp_path / "old", "aime24", GOOD)
    text = report.write_report([tmp_path / "a", tmp_path / "old"], tmp_path / "out").read_text()
    assert "\n| a | 1,500 | 240 | 0.09 | 0:45:00 | 2 | 4, 8 | 8 x H100 | 6.00 | 12.00 |\n" in text
    assert "\n| old | 1" not in text  # says nothing of its time
    save_result(tmp_path / "free", "aime24", GOOD, passes=[FIRST], tokens={"prompt": 1000, "generated": 300})
    text = report.write_report([tmp_path / "free"], tmp_path / "out").read_text()
    assert "| 8 x H100 | 4.00 | – |" in text and "all of these" not in text
    assert "Tokens, time and cost" not in report.write_report([tmp_path / "old"], tmp_path / "out").read_text()


def test_every_step_is_counted_though_the_tables_show_the_first_and_the_last(tmp_path):
    for step, each in enumerate((FIRST, SECOND, {**FIRST, "began": "2026-02-01"})):
        save_result(tmp_path / "a", "aime24", GOOD, passes=[each], tokens={"prompt": 10}, step=step)
    text = report.write_report([tmp_path / "a"], tmp_path / "out").read_text()
    assert all(f"\n| step {step} | 10 | 120 |" in text for step in range(3))
    assert "\n| all of these | 30 | 360 |" in text
