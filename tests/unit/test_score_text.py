"""Scores are written the same in the report, on the model card and in the Space."""

import re

import pytest
from recorded_runs import GOOD, GREEDY, POOR, PROTOCOL, save_result, write_run

from openrlhf_ebpo.eval import evaluation_report
from openrlhf_ebpo.hub.card import model_card
from openrlhf_ebpo.run.results import find_results
from openrlhf_ebpo.run.score_text import NONE, k_of, majorities, order, passes, percent, points, score, span
from openrlhf_ebpo.space.links import clean
from openrlhf_ebpo.space.pages import evaluation
from openrlhf_ebpo.space.runs import Runs
from openrlhf_ebpo.space.workspace import Workspace


def test_a_score_has_its_error_and_its_interval():
    metric = {"value": 0.68412, "standard_error": 0.00761, "interval": [0.6436, 0.7227]}
    assert score(metric) == "68.4 ± 0.8 (64.4 to 72.3)"
    assert score({**metric, "standard_error": None}) == score({"value": 0.684, "interval": metric["interval"]})
    assert score({**metric, "standard_error": None}) == "68.4 (64.4 to 72.3)" and score(None) == NONE
    assert (percent(0), percent(1), points(0.0312), points(-0.0312)) == ("0.0", "100.0", "+3.1", "−3.1")


def test_names_of_metrics_that_are_none_are_left_alone():
    names = ["pass@8", "maj@4", "pass@1", "pass@16", "pass@²", "pass@x", "maj@", "truncated", "pass@8"]
    assert passes(names) == ["pass@1", "pass@8", "pass@16"] and majorities(names) == ["maj@4"]
    assert [k_of(name) for name in ("pass@16", "maj@4", "pass@²", "pass@-1", "mean@4")] == [16, 4, None, None, None]
    assert sorted(names, key=order)[2:] == ["pass@1", "pass@8", "pass@8", "pass@16", "maj@", "truncated", "maj@4"]


@pytest.mark.parametrize(("protocol", "starts"), [(PROTOCOL, ("66.7 ± ", "16.7 ± ")), (GREEDY, ("66.7 (", "33.3 ("))])
def test_a_result_is_the_same_text_in_report_cards_and_space(tmp_path, protocol, starts):
    run_dir = write_run(tmp_path)
    for task, classes in (("aime24", GOOD), ("amc23", POOR)):
        save_result(run_dir / "eval", task, classes, 3, protocol)
    found = find_results(run_dir)
    written = evaluation_report.write_report([run_dir], tmp_path / "report").read_text()
    card = model_card(run_dir, 3, "owner/tiny")["README.md"].decode()
    page = evaluation.render(clean({}), Workspace(Runs([str(run_dir)])))["table"]
    page = re.sub(r'<small class="vote">.*?</small>', "", page)
    cells = [re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<td>(.*?)</td>", page)]
    texts = [score(result.summary["metrics"]["pass@1"]) for result in found]
    assert texts[0].startswith(starts[0]) and texts[1].startswith(starts[1])
    assert [cell for cell in cells if "(" in cell] == texts
    for text in texts:
        assert f"| {text} |" in written and f"| {text} |" in card


def test_an_error_of_nothing_is_not_shown_and_intervals_have_their_words():
    metric = {"value": 0.0, "standard_error": 0.0, "interval": [0, 0.113], "run_interval": [0, 0.004]}
    assert score(metric) == "0.0 (0.0 to 11.3)" and span({"interval": metric["run_interval"]}) == "0.0 to 0.4"
