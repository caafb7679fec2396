"""research/gpu_share.py: its rows are all of a step, each second once."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.files import append_json_line, write_json

PHASES = {
    "generating": 6.0,
    "rewards": 1.0,
    "log-probabilities": 2.0,
    "checking_samples": 0.01,
    "advantages": 0.02,
    "making_experience": 0.5,
    "training": 10.0,
    "syncing_weights": 0.3,
    "run_log": 0.04,
}


@pytest.fixture
def bench(monkeypatch):
    return importlib.import_module("gpu_share")


def recorded(bench, folder: Path, responses: int, training: float = 10.0) -> Path:
    """A run of six steps of 20 seconds and two with a checkpoint; rewards come a quarter of a second late."""
    (folder / "run").mkdir(parents=True)
    now = 0.0
    for step in range(1, bench.STEPS + 1):
        saving = 5.0 if step == bench.SAVED_AT + 1 else 0.0
        now += 20.0 + saving
        phases = {f"phase/{name}": seconds for name, seconds in {**PHASES, "training": training}.items()}
        row = {"step": step, "time": now, **phases, "phase/saving": saving}
        append_json_line(folder / "run" / "metrics.jsonl", row)
        for _ in range(responses):
            append_json_line(folder / "rewards.jsonl", [now - 15, now - 14.75])
    return folder


def test_the_rows_add_up_to_the_clock_and_what_is_unexplained_is_one_of_them(bench, tmp_path):
    steps = bench.steps_of(recorded(bench, tmp_path, 4), 4)
    assert len(steps) == 5  # the first warms up
    for step in steps:
        clock = step.pop("clock")
        assert clock == pytest.approx(25.0 if step["checkpoint"] else 20.0)
        assert set(step) | {bench.METRICS} == set(bench.ORDER) and sum(step.values()) == pytest.approx(clock)
        assert step["generation"] == 6.75 and step["rewards, waited for"] == 0.25
        assert step["unexplained"] == pytest.approx(20.0 - sum(PHASES.values()))


def test_the_share_is_of_a_step_without_saving_and_policy_metrics_are_on_minus_off(bench, tmp_path):
    arms = {
        name: bench.steps_of(recorded(bench, tmp_path / name, 4, training), 4)
        for name, training in (("on", 10.0), ("off", 9.9))
    }
    for shift, (on, off) in enumerate(zip(arms["on"], arms["off"], strict=True)):  # an interval needs some noise
        for step in (on, off):
            step["training"] += shift / 100
            step["clock"] += shift / 100
    found = bench.summary(arms)
    assert found["share"] == pytest.approx(0.07 / 20.02)
    assert found["policy_metrics"]["mean"] == pytest.approx(0.1)
    assert found["policy_metrics"]["low"] < 0.1 < found["policy_metrics"]["high"]
    assert found["share_with_policy_metrics"] == pytest.approx(0.17 / 20.02)
    assert sum(found["rows"].values()) == pytest.approx(found["clock"]) and found["clock"] == pytest.approx(21.02)
    size = bench.asdict(bench.TINY)
    text = bench.report({**found, "size": size, "machine": "a machine", "versions": {"torch": "2"}})
    assert "0.35% of a step without saving, under 1%" in text and "| weight sync | 0.3000 |" in text
    found["share"] = 0.02
    assert "NOT under 1%" in bench.report({**found, "size": size, "machine": "a machine", "versions": {}})
    bench.draw(tmp_path / "share.png", "parts of a step", bench.panels(found["rows"]), "")
    assert (tmp_path / "share.png").read_bytes().startswith(b"\x89PNG")


def test_a_training_without_all_of_its_steps_and_rewards_is_not_summed_up(bench, tmp_path):
    recorded(bench, tmp_path, 4)
    with pytest.raises(ReportedError, match=r"6 steps and 24 rewards, and not 6 steps and 48 rewards: remove it"):
        bench.steps_of(tmp_path, 8)


def test_a_folder_of_another_size_or_of_something_else_is_left_alone(bench, tmp_path):
    write_json(tmp_path / "ours" / "size.json", bench.asdict(bench.TINY))
    with pytest.raises(ReportedError, match=r"was begun with .*name another folder"):
        bench.prepare(tmp_path / "ours", bench.Size())
    (tmp_path / "theirs" / "on").mkdir(parents=True)
    with pytest.raises(ReportedError, match="holds something else: name a new folder"):
        bench.prepare(tmp_path / "theirs", bench.TINY)
    assert (tmp_path / "theirs" / "on").is_dir()


def test_a_finished_training_is_not_repeated_and_one_that_was_not_finished_begins_anew(bench, tmp_path, monkeypatch):
    launched = []
    monkeypatch.setattr(bench, "launch", lambda command, flags, log: launched.append(flags))
    write_json(tmp_path / "on" / "run" / "run.json", {"status": "complete"})
    write_json(tmp_path / "off" / "run" / "run.json", {"status": "failed"})
    for arm in bench.ARMS:
        bench.train(tmp_path, arm, bench.TINY, eager=True)
    (flags,) = launched
    assert flags["advantage_estimator"] == "group_norm" and flags["vllm.enforce_eager"]
    assert flags["data.max_len"] == bench.PROMPT + bench.TINY.tokens
    assert sorted(path.name for path in (tmp_path / "off").iterdir()) == ["agent.py", "reward.py"]


def test_the_large_model_has_half_a_billion_weights_and_a_word_for_every_character(bench, tmp_path, monkeypatch):
    sizes = {}
    monkeypatch.setattr(bench.tiny_model, "build", lambda directory, texts, **found: sizes.update(found, texts=texts))
    bench.make_model(tmp_path, bench.Size())
    words = len(set(sizes.pop("texts"))) + 3
    assert words == bench.WORDS
    attention = (
        sizes["hidden_size"] * sizes["head_dim"] * 2 * (sizes["num_attention_heads"] + sizes["num_key_value_heads"])
    )
    weights = sizes["num_hidden_layers"] * (attention + 3 * sizes["hidden_size"] * sizes["intermediate_size"])
    assert weights + words * sizes["hidden_size"] == pytest.approx(0.5e9, rel=0.01)
    assert json.loads(json.dumps(bench.vocabulary(bench.WORDS))) == bench.vocabulary(bench.WORDS)
