"""The panels of the page Dynamics, without a browser."""

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from marked_runs import BROKEN, marked_run
from panels import board, values
from space_runs import learning_run

from openrlhf_ebpo.run.catalogue import Metric
from openrlhf_ebpo.space.figures import pack
from openrlhf_ebpo.space.lines import Axes, Line, checkpoint_panel, line_panel
from openrlhf_ebpo.space.links import clean
from openrlhf_ebpo.space.metric_panels import SPEED, tokens_per_second
from openrlhf_ebpo.space.metrics import Metrics
from openrlhf_ebpo.space.pages import configuration, dynamics, samples
from openrlhf_ebpo.space.runs import Runs
from openrlhf_ebpo.space.text import HTML
from openrlhf_ebpo.space.workspace import Workspace


def drawn(*lines: Line, **more) -> dict:
    return line_panel(Metric("m", "M"), list(lines), Axes("step", 0.1, **more))


def metrics(steps: int = 40, **columns) -> Metrics:
    along = np.arange(1, steps + 1)
    return Metrics(along, {name: np.broadcast_to(np.asarray(v, float), steps) for name, v in columns.items()})


# lines


def test_an_absurd_step_does_not_squeeze_the_axis():
    y = np.linspace(1, 2, 400)
    y[100] = 1e12
    panel = drawn(Line("a", 0, np.arange(400), y))
    low, high = panel["figure"]["layout"]["yaxis"]["range"]
    assert 0.9 < low < 1 and 2 < high < 2.2
    raw, bold = (values(trace["y"]) for trace in panel["figure"]["data"][:2])
    assert raw.max() == pytest.approx(1e12) and bold.max() < 2.01, "it stays out of the moving mean"
    for other in (drawn(Line("a", 0, np.arange(400), y), log=True), drawn(Line("a", 0, np.arange(400), y % 2))):
        assert "range" not in other["figure"]["layout"]["yaxis"], "on a log scale there is room"


def test_what_is_pointed_at_is_the_step_itself_and_a_cut_axis_says_so():
    y = np.full(100, 0.3) + 0.01 * np.sin(np.arange(100))
    y[57] = 40.0
    panel = drawn(Line("a", 0, np.arange(1, 101), y))
    (read,) = [trace for trace in panel["figure"]["data"] if "meta" in trace]
    assert values(read["y"]).max() == 40.0, "the raw line"
    assert panel["note"].startswith("axis cut: 40 at step 58")
    whole = drawn(Line("a", 0, np.arange(1, 101), y), whole=True)
    assert "range" not in whole["figure"]["layout"]["yaxis"] and "axis cut" not in whole["note"]


@pytest.mark.parametrize("count", [16, 300])
def test_every_checkpoint_keeps_its_error_bar(count):
    """A base model far below all checkpoints is not an outlier, and of many checkpoints none is left out."""
    y = np.append(20.0, 60 + 0.001 * np.arange(count - 1))
    (trace,) = checkpoint_panel("t", [Line("a", 0, np.arange(count), y, y - 3, y + 5)])["figure"]["data"]
    assert values(trace["x"]).tolist() == list(range(count)) and values(trace["y"])[0] == 20
    error = trace["error_y"]
    assert [values(error[end]).tolist() for end in ("array", "arrayminus")] == [[5.0] * count, [3.0] * count]


def test_what_float32_does_not_hold_reaches_the_page():
    assert values(pack(np.array([1.0, 1e300]))).tolist() == [1.0, 1e300]


def test_seeds_are_one_line_with_a_band_and_each_where_asked_for(tmp_path):
    for seed in (1, 2, 3):
        learning_run(tmp_path / f"seed{seed}", steps=20, seed=seed, name="x", prompts=2)
    learning_run(tmp_path / "other", steps=20, seed=1, name="o", prompts=2, estimator="group_norm")
    shown = Workspace(Runs([str(tmp_path)]))
    found = page(shown, smooth=0)
    panel = found["rollout/reward_mean"]
    assert [v["name"] for v in panel["values"]] == ["other", "seed*"]
    band = next(trace for trace in panel["figure"]["data"] if trace.get("fill") == "toself")
    mean = next(trace for trace in panel["figure"]["data"] if trace.get("name", "").startswith("seed*"))
    single = [shown.open(f"seed{seed}").metrics.series("rollout/reward_mean")[1] for seed in (1, 2, 3)]
    assert values(mean["y"]) == pytest.approx(np.mean(single, 0), abs=1e-6) and len(values(band["y"])) == 40
    said = json.loads(dynamics.render(clean({"tab": "dynamics"}), shown)["board"])["sections"][0]["note"]
    assert "95 % t-interval of the mean" in said
    each = page(shown, seeds="each")["rollout/reward_mean"]
    assert len(each["values"]) == 4 and not any(trace.get("fill") for trace in each["figure"]["data"])


def test_a_band_that_reaches_zero_stays_whole_on_a_log_scale():
    y = np.array([2.0, 3.0, 4.0])
    line = Line("a", 0, np.arange(3), y, band=(np.array([1.0, -1.0, 0.0]), y + 1))
    band = drawn(line, log=True)["figure"]["data"][0]
    assert values(band["y"]).tolist() == pytest.approx([3, 4, 5, 0.2, 0.2, 1])
    assert values(drawn(line)["figure"]["data"][0]["y"]).tolist() == [3, 4, 5, 0, -1, 1]


def test_a_metric_called_speed_has_a_panel_of_its_own(tmp_path):
    path = learning_run(tmp_path / "run", steps=3, seed=1, name="run", prompts=2)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    (path / "metrics.jsonl").write_text("".join(json.dumps({**row, "speed": 7.0}) + "\n" for row in rows))
    sections = json.loads(dynamics.render(clean({}), Workspace(Runs([str(path)])))["board"])["sections"]
    ids = [panel["id"] for section in sections for panel in section["panels"]]
    assert "speed" in ids and SPEED.name in ids and len(set(ids)) == len(ids)


def test_a_run_whose_directory_vanishes_says_so(tmp_path):
    path = learning_run(tmp_path / "gone", steps=2, seed=1, name="x", prompts=2)
    shown = Workspace(Runs([str(tmp_path)]))
    assert "gone" not in str(dynamics.render(clean({}), shown)["notes"])
    shutil.rmtree(path)
    assert "gone: its directory is gone" in str(dynamics.render(clean({}), shown)["notes"])


def page(shown: Workspace, **view) -> dict:
    return board(dynamics.render(clean(view), shown))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of numbers at the ends of floats
@pytest.mark.parametrize("name", [None, *BROKEN])
def test_dynamics_shows_whatever_a_run_holds(tmp_path, name):
    path = marked_run(tmp_path / "run")
    if name:
        BROKEN[name](path)
    shown = Workspace(Runs([str(path)]))
    found = dynamics.render(clean({"x": "time"}), shown)
    assert json.loads(found["board"])["unit"] == "hours" and "onerror=" not in str(found["notes"])
    found = configuration.render(clean({}), shown)["settings"]
    assert isinstance(found, HTML) and "<img" not in found and "<script" not in found


def test_a_cluster_that_no_shown_run_has_can_be_taken_away(tmp_path):
    path = learning_run(tmp_path / "run", steps=2, seed=3, name="run", prompts=10)
    for file in (path / "rollouts").iterdir():
        pq.write_table(pq.read_table(file).drop_columns("cluster"), file)
    found = samples.render(clean({"cluster": "Algebra"}), Workspace(Runs([str(path)])))
    assert found["controls"]["cluster"]["visible"] and found["controls"]["cluster"]["choices"][0][1] == ""


def test_tokens_per_second_know_no_step_before_a_gap():
    columns = {"response_length": 100.0, "rollout/num_samples": 8.0}
    assert np.nanmax(tokens_per_second(metrics(time=1e9 + 10 * np.arange(40.0), **columns))) == 80
    gap = Metrics(
        np.array([1, 2, 5]), {"time": np.array([0.0, 4.0, 100.0]), **{k: np.full(3, v) for k, v in columns.items()}}
    )
    assert np.nan_to_num(tokens_per_second(gap), nan=-1).tolist() == [-1, 200, -1]
    assert np.isnan(tokens_per_second(metrics(kl=1.0))).all()
