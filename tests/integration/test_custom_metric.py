"""examples/metric: a custom metric, from the reward function to the page, with nothing in the package changed."""

import json
from pathlib import Path

import pytest

from openrlhf_ebpo.run.run_log import read_metrics
from openrlhf_ebpo.space.links import clean
from openrlhf_ebpo.space.pages import dynamics
from openrlhf_ebpo.space.runs import Runs
from openrlhf_ebpo.space.workspace import Workspace

pytestmark = pytest.mark.nightly  # daily: unit/test_catalogue.py, unit/test_space_dynamics.py

EXAMPLE = Path(__file__).parents[2] / "examples" / "metric"
NAME = "own/distinct_characters"


def test_a_metric_from_outside_is_logged_described_and_shown(train, command, tmp_path):
    flags = {"reward__remote_url": EXAMPLE / "reward.py"}
    train(command(tmp_path, data__max_samples=16, **flags)).succeed()
    run_dir = tmp_path / "model" / "run"
    rows = read_metrics(run_dir)
    assert len(rows) == 2 and all(0 < row[NAME] <= 1 for row in rows)

    board = json.loads(dynamics.render(clean({}), Workspace(Runs([str(run_dir)])))["board"])
    ((section, panel),) = [(s, p) for s in board["sections"] for p in s["panels"] if p["id"] == NAME]
    assert panel["title"] == NAME and "More metrics" in section["title"]  # a lone panel joins the section before
