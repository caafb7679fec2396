"""research/figures.py: the catalogue, resuming after a kill, one figure from measuring to the page, refusals."""

import csv
import itertools
import json
import math
import os
import re
import signal
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import write_rows

import figures as command
from lab import learner, measured, orders, policy, real, tasks, warm_starts
from lab.baseline_error import clustered
from lab.cells import Cell
from lab.measured import Job
from lab.plots import Panel, Series
from lab.statistics import Interval, interval
from openrlhf_ebpo.errors import ReportedError, UsageError
from paper import page, real_stack, reported
from paper.catalogue import FULL, QUICK, Content, Size, Verdict, compared

ROOT = Path(__file__).parents[2]
RESEARCH = ROOT / "research"
TOY = Size("quick", 2, 4, 4)


@dataclass(frozen=True)
class Square(Job):
    """Its seeds squared; dies once where `dies_at` comes, and writes down what it measured."""

    root: str
    dies_at: int = -1
    title = "square"
    at_once = 1

    def one(self, seed, work):
        mark = Path(self.root) / "died"
        if self.dies_at == seed and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with open(Path(self.root) / "calls", "a") as calls:
            calls.write(f"{seed}\n")
        return {"square": [float(seed**2)]}


# The catalogue


def test_every_figure_that_is_promised_is_there():
    promised = "gradient_norm kl entropy validation group_size prior topic curriculum all_fail mse real_stack"
    assert set(command.FIGURES) == set(promised.split())
    assert [name for name, figure in command.FIGURES.items() if figure.real] == ["real_stack"]


@pytest.mark.parametrize("name", command.FIGURES)
@pytest.mark.parametrize("size", [QUICK, FULL], ids=["quick", "full"])
def test_a_figure_says_what_is_run_and_its_units_can_be_kept(name, size):
    figure = command.FIGURES[name]
    jobs = figure.jobs(figure.fewer(size))
    identities = [measured.key(job.identity) for job in jobs]
    assert len(set(identities)) == len(jobs) > 1
    assert identities == [measured.key(json.loads(identity)) for identity in identities]
    assert all(job.title for job in jobs)
    text = page.setting(figure, size)
    assert "{" not in text and len(figure.alt) > 40 and not figure.claim.endswith(".")


def test_the_page_shows_every_figure_and_its_pictures_are_small():
    text = (ROOT / "docs/results/figures.md").read_text()
    for name, figure in command.FIGURES.items():
        picture = ROOT / f"docs/images/figures/{name}.png"
        if figure.real and not picture.exists():
            continue
        assert f"(../images/figures/{name}.png)" in text and f"## {figure.title}" in text
        assert picture.stat().st_size < 150_000 and picture.with_suffix(".csv").exists()


# Units of work


def test_a_killed_command_goes_on_where_it_was(tmp_path):
    code = (
        "import sys; sys.path += sys.argv[2:]\nfrom pathlib import Path\nfrom test_figures import Square, measured\n"
        "measured.measure([Square(sys.argv[1], dies_at=2)], range(4), Path(sys.argv[1]))"
    )
    argv = [sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parent), str(ROOT / "tests"), str(RESEARCH)]
    assert subprocess.run(argv, capture_output=True).returncode == -signal.SIGKILL
    with open(tmp_path / measured.FILE, "a") as file:
        file.write('{"job": {"kind": "Squ')  # a line that the kill has torn
    found = measured.measure([job := Square(str(tmp_path), dies_at=2)], range(4), tmp_path)
    assert (tmp_path / "calls").read_text().split() == ["0", "1", "2", "3"]
    assert found.values(job, "square").ravel().tolist() == [0, 1, 4, 9]


def test_more_seeds_add_to_what_is_there(tmp_path):
    job = Square(str(tmp_path))
    measured.measure([job], range(2), tmp_path)
    assert measured.measure([job, job], range(3), tmp_path).values(job, "square").ravel().tolist() == [0, 1, 4]
    assert measured.measure([job], range(2), tmp_path).values(job, "square").shape == (2, 1)
    assert (tmp_path / "calls").read_text().split() == ["0", "1", "2"]
    measured.measure([job], range(2), tmp_path, force=True)
    assert len([*tmp_path.glob(f"{measured.FILE}*")]) == 2


def test_the_first_seeds_of_every_job_come_first(tmp_path):
    """So that what is there after half of the time can be compared."""
    jobs = [Square(str(tmp_path)), Square(str(tmp_path), dies_at=-2)]
    measured.measure(jobs, [3, 1], tmp_path)
    assert (tmp_path / "calls").read_text().split() == ["3", "3", "1", "1"]


def test_what_another_laboratory_measured_is_not_mixed_in(tmp_path, monkeypatch):
    measured.measure([Square(str(tmp_path))], range(2), tmp_path)
    monkeypatch.setattr(measured, "SETTINGS", {"laboratory": 2})
    with pytest.raises(UsageError, match="laboratory: 1 there, 2 now"):
        measured.measure([], range(2), tmp_path)


@pytest.mark.parametrize("line", ['{"job": {}}', "[1]", '{"job": {}, "seeds": [0, 1], "measured": [{}]}'])
def test_a_line_that_is_no_measurement_is_told_and_nothing_is_lost(tmp_path, line):
    measured.measure([Square(str(tmp_path))], range(2), tmp_path)
    with open(tmp_path / measured.FILE, "a") as file:
        file.write(f"{line}\n")
    with pytest.raises(
        UsageError, match=r"has a line that is not a measurement .*: take it out, or begin again with --force"
    ):
        measured.measure([], range(2), tmp_path)
    assert (tmp_path / measured.FILE).read_text().endswith(f"{line}\n")


# One figure, from measuring to the page


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Random weights for a warm start, and a few held-out words."""
    heldout, training = tasks.words()
    monkeypatch.setattr(tasks, "words", lambda: (heldout[:4], training))
    start = lambda directory, shape, task, examples, start, seeds: policy.initial(shape, seeds)  # noqa: E731
    monkeypatch.setattr(warm_starts, "warm_start", start)
    monkeypatch.setattr(command, "QUICK", TOY)
    before = torch.get_num_threads()
    yield tmp_path / "out"
    torch.set_num_threads(before)


def test_a_figure_is_measured_drawn_and_written(toy, capsys):
    command.make({"gradient_norm": command.FIGURES["gradient_norm"]}, TOY, toy, force=False)
    width, height = struct.unpack(">II", (toy / "gradient_norm.png").read_bytes()[16:24])
    assert 650 < width < 800 and height > 300
    with open(toy / "gradient_norm.csv", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert tuple(rows[0]) == page.COLUMNS and len(rows) == 3 * 2 * 4
    assert {row["series"] for row in rows} == {"GRPO", "EBPO"} and {row["seeds"] for row in rows} == {"2"}
    assert all(float(row["low"]) <= float(row["mean"]) <= float(row["high"]) for row in rows)
    text = (toy / "gradient_norm.md").read_text()
    for part in (
        "![Gradient norm over",
        "reported by the authors",
        "What was run",
        "smallest visible",
        "gradient_norm.csv",
    ):
        assert part in text
    assert text in (toy / page.PAGE).read_text()
    assert "gradient_norm.png" in capsys.readouterr().out
    before = (toy / measured.FILE).read_text()
    command.make({"entropy": command.FIGURES["entropy"]}, TOY, toy, force=False)  # of the same trainings
    assert (toy / measured.FILE).read_text() == before
    shown = (toy / page.PAGE).read_text()
    assert "gradient_norm.png" in shown and "entropy.png" in shown


def test_the_page_in_docs_is_made_of_what_the_command_wrote(tmp_path):
    docs, made = tmp_path / "docs", tmp_path / "made"
    docs.mkdir()
    made.mkdir()
    page = docs / "results/figures.md"
    page.parent.mkdir()
    page.write_text(
        "before\n<!-- figures: written by `python research/figures.py --docs docs` -->\nold\n<!-- end of figures -->\nafter\n"
    )
    for name in ("mse", "kl"):
        (made / f"{name}.md").write_text(f"## {name}\n\n![a]({name}.png) [b]({name}.csv)\n")
        for kind in ("png", "csv"):
            (made / f"{name}.{kind}").write_text(name)
    command.write_docs(made, docs)
    text = page.read_text()
    assert "old" not in text and text.startswith("before\n") and text.endswith("after\n")
    assert text.index("(../images/figures/kl.png)") < text.index("(../images/figures/mse.csv)")
    assert (docs / "images/figures/mse.csv").read_text() == "mse"


def test_reported_numbers_are_marked_and_have_no_interval(tmp_path):
    theirs = Series("theirs", "reported", ["a", "b"], np.array([[1.0, 2.0]]), reported=True)
    ours = Series("ours", "EBPO", ["a", "b"], np.array([[1.0, 2.0], [3.0, 2.0]]))
    page.write_csv(tmp_path / "x.csv", Content([Panel("t", "x", "y", [theirs, ours], bars=True)]))
    rows = [row.split(",") for row in (tmp_path / "x.csv").read_text().splitlines()]
    assert rows[1][6:] == ["", "", "", "reported by the authors"]
    assert rows[4][6:] == ["2", "2", "2", "measured here"] and float(rows[3][6]) < 2 < float(rows[3][7])


def test_the_papers_averages_are_those_of_its_tables():
    leads = [reported.average("EBPO-topic", g) - reported.average("GRPO", g) for g in (4, 8, 16, 32)]
    assert leads == pytest.approx([5.67, 11.28, 1.48, -0.50]) and reported.average("EBPO-naive") == 60.0


def test_a_training_on_the_real_stack_is_read_from_its_run_directory(tmp_path):
    rows = [{"step": step, **dict.fromkeys(real.METRICS, step / 2)} for step in range(1, 11)]
    write_rows(tmp_path / "run" / "metrics.jsonl", rows)
    record = real.curves(tmp_path / "run", 10)
    assert record == {name: [step / 2 for step in range(1, 11)] for name in real.METRICS}
    assert set(real_stack.TITLES) <= set(record)
    points, means = real_stack.windows(np.array([record["policy/entropy"]]))
    assert (list(points), means.tolist()) == ([2.5, 7.5], [[1.5, 4.0]])
    with pytest.raises(ReportedError, match=r"has 10 of 60 steps with all metrics: remove .* and repeat"):
        real.curves(tmp_path / "run", 60)


# Statistics


def test_intervals_and_what_could_have_been_seen():
    found = interval(np.array([1.0, 2.0, 3.0]))
    assert found.mean == 2 and found.half == pytest.approx(4.302653 / math.sqrt(3), rel=1e-5)
    assert found.visible == pytest.approx((4.302653 + 1.060660) / math.sqrt(3), rel=1e-5)
    assert (found.sign, found._replace(half=1.0).sign, Interval(-2, 1, 1).sign) == (0, 1, -1)
    with pytest.raises(ValueError, match="two values"):
        interval(np.array([1.0]))


def test_a_difference_is_held_against_what_the_paper_says():
    seen, unseen = Interval(0.2, 0.1, 0.15), Interval(0.2, 0.3, 0.4)
    assert [compared("x", seen, expected).verdict for expected in (1, -1, 0)] == [Verdict.AGREES, Verdict.DIFFERS, None]
    assert compared("x", unseen, 1).verdict is Verdict.UNSEEN
    assert compared("a minus b", seen, 1, "points", 2).text == "a minus b: +0.20 ± 0.10 points (smallest visible 0.15)"


# The laboratory


def words_of(name: str, steps: int, monkeypatch) -> list[str]:
    monkeypatch.setattr(orders, "BATCHES", 4)
    cell, shape = Cell(0.05, steps=steps, rollouts=32), tasks.shape(8)
    steps_of_words = orders.batches(name, cell, [3], policy.initial(shape, [3]), shape)
    return [word for words, _ in steps_of_words for word in words[0]]


def test_topics_follow_each_other_and_every_pass_has_the_same_words(monkeypatch):
    by_topic, shuffled = (words_of(name, 8, monkeypatch) for name in ("by topic", "shuffled passes"))
    assert by_topic[:32] == by_topic[32:] and sorted(by_topic) == sorted(shuffled) and by_topic != shuffled
    changes = sum(orders.topic(one) != orders.topic(other) for one, other in itertools.pairwise(by_topic[:32]))
    assert changes == len({*map(orders.topic, by_topic)}) - 1
    assert sorted(shuffled[:32]) == sorted(shuffled[32:]) and shuffled[:32] != shuffled[32:]


def test_easy_to_hard_is_one_pass_in_the_order_of_success(monkeypatch):
    easy, once = (words_of(name, 4, monkeypatch) for name in ("easy to hard", "shuffled once"))
    assert sorted(easy) == sorted(once) and len(set(easy)) == 32
    shape = tasks.shape(8)
    rates = policy.success(shape, policy.initial(shape, [3]), *learner.examples("backward", [easy]))[0]
    assert (rates.diff() <= 0).all() and rates[0] > rates[-1]


def test_all_orders_draw_responses_with_the_same_numbers(monkeypatch):
    cell, shape = Cell(0.05, steps=2, rollouts=32), tasks.shape(8)
    both = [
        next(orders.batches(name, cell, [0, 1], policy.initial(shape, [0, 1]), shape))[1]
        for name in ("drawn", "by topic")
    ]
    assert torch.equal(*both)


def test_clusters_in_order_are_alone_in_a_step():
    source, rng = clustered(5, 2.0, ordered=True), np.random.default_rng(0)
    seen = [set(source(rng, t).clusters) for t in range(15)]
    assert seen == [{str(t // 3)} for t in range(15)]
    assert len(set(clustered(5, 2.0)(rng, 0).clusters)) == 5


@pytest.mark.parametrize("lr", [0.0, 1e-2])
def test_kl_per_step_is_that_of_the_policy_before_and_after(lr):
    shape = policy.Shape(8, 8, width=8)
    weights = policy.initial(shape, [0]).requires_grad_()
    words, uniforms = next(learner.draws(Cell(0.0, steps=1, rollouts=8, group=2), [0], 0))
    prompts, _ = learner.examples("backward", words)
    rollouts = policy.generate(shape, weights, prompts, uniforms)
    before = policy.log_probs(shape, weights, prompts, rollouts.tokens)[1].detach()
    adam = torch.optim.AdamW([weights], lr=lr, weight_decay=0.0)
    advantages = torch.linspace(-1, 1, rollouts.mask[..., 0].numel()).view(rollouts.mask.shape[:3])
    kl = learner.update(shape, weights, adam, prompts, rollouts, advantages, 0.0)["kl"]
    after = policy.log_probs(shape, weights, prompts, rollouts.tokens)[1].detach()
    each = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=before), torch.distributions.Categorical(logits=after)
    )
    assert kl.item() == pytest.approx(each[rollouts.mask].mean().item(), rel=1e-3, abs=1e-7)
    assert (kl.item() > 1e-5) == (lr > 0)


# Refusals


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--seeds", "1"], "--seeds is 1; give 2 or more: an interval needs them"),
        (["--only", "real_stack"], "--only real_stack trains on the real stack, for minutes a seed: add --full"),
        (["--output", "file"], "--output file is a file; name a directory"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_mistake_is_a_line(argv, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(SystemExit) as ended:
        command.main(argv)
    assert ended.value.code == f"error: {said}" and [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_mistyped_figure_is_answered_with_those_that_there_are(capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(["--only", "entrpy"])
    assert re.search(r"invalid choice: 'entrpy' .*entropy", capsys.readouterr().err)


@pytest.mark.parametrize(("names", "flags"), [("NEEDED", []), ("OF_THE_STACK", ["--full"])])
def test_a_package_that_is_missing_is_named_before_anything_is_measured(names, flags, tmp_path, monkeypatch):
    monkeypatch.setattr(command, names, ("torch", "no_such_package"))
    with pytest.raises(SystemExit) as ended:
        command.main([*flags, "--output", str(tmp_path / "out")])
    assert ended.value.code.startswith(
        "error: no_such_package is not installed: use the environment that scripts/setup"
    )
    assert not (tmp_path / "out").exists()


def test_a_warm_start_that_could_not_be_saved_whole_is_not_there(tmp_path, monkeypatch):
    """A kill while it is written must not stop every later command."""

    def cut(crossings, path):
        Path(path).write_bytes(b"cut")
        raise KeyboardInterrupt

    monkeypatch.setattr(warm_starts, "supervised", lambda *rest: [{0.05: torch.zeros(3)}])
    saved = torch.save
    monkeypatch.setattr(torch, "save", cut)
    wanted = (tmp_path, tasks.shape(), "reverse", "right", 0.05, [0])
    with pytest.raises(KeyboardInterrupt):
        warm_starts.warm_start(*wanted)
    assert not [*tmp_path.iterdir()]
    monkeypatch.setattr(torch, "save", saved)
    assert warm_starts.warm_start(*wanted).tolist() == [[0.0, 0.0, 0.0]]
