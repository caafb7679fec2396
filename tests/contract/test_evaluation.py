"""Evaluation during training against upstream's own code: an evaluation belongs to the weights of its step, the best
checkpoint is chosen by any of its metrics, and known again after a resume. Only the scores and the model's weights are
made up."""

import json
import math
import time
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deepspeed_engine import Engine

from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.run import manifest
from openrlhf_ebpo.run.heartbeat import Heartbeat
from openrlhf_ebpo.run.run_log import read_metrics, rollouts_path
from openrlhf_ebpo.run.run_writer import RunWriter
from openrlhf_ebpo.upstream.controller import scheduled_evaluation
from openrlhf_ebpo.upstream.controller.scheduled_evaluation import AsynchronousEvaluation, best_so_far
from openrlhf_ebpo.upstream.saving import SaveTimes

N = 4


@pytest.fixture
def trainer(strategy, prompt_args, tmp_path, monkeypatch):
    """trainer(key, **state) -> upstream's trainer with our mixins and a policy that saves; nothing else of it."""
    from openrlhf.trainer import ppo_trainer

    monkeypatch.setattr(ppo_trainer.ray, "get", lambda refs: refs)
    made = ppo_trainer.PPOTrainer.actor_class.__ray_metadata__.modified_class

    def call(method_name, tag=None, client_states=None, metric_value=None, metric_key=None):
        if method_name == "broadcast_to_vllm":
            return []
        assert method_name == "save_checkpoint"
        saved[tag] = client_states
        where = str(tmp_path / "ckpt" / "_actor")
        strategy.save_ckpt(Engine(), where, tag, 2, metric_value=metric_value, metric_key=metric_key)
        return []

    saved: dict = {}

    def build(key: str = ""):
        trainer = object.__new__(made)
        flat = {"ckpt.path": str(tmp_path / "ckpt"), "logger.run_dir": str(tmp_path / "run"), "ckpt.disable_ds": True}
        flat |= {"algo.kl.target": None}
        flat |= {"ckpt.save_hf": False, "ckpt.save_steps": 1, "ckpt.save_minutes": 0, "logger.logging_steps": 1}
        trainer.args = prompt_args(4, N, **flat)
        trainer.run_log, trainer.heart = RunWriter(tmp_path / "run", None), Heartbeat(tmp_path / "run")
        trainer.save_times = SaveTimes(trainer.args.ckpt)
        trainer.eval_steps, trainer.eval_dataloader = 3, "questions"
        trainer.wandb_logger = trainer.tensorboard_logger = None
        trainer.experience_maker = SimpleNamespace(estimator=None)
        trainer.actor_model_group, trainer.critic_model_group = SimpleNamespace(async_run_method=call), None
        trainer.best_eval_metric_key, trainer.best_eval_metric_value = key, float("-inf")
        trainer._latest_eval_metric_value = None
        trainer.saved = saved
        return trainer

    return build


def best(tmp_path: Path) -> set[str]:
    return {
        name
        for name in (path.name for path in (tmp_path / "ckpt" / "_actor").iterdir() if path.is_dir())
        if name.startswith("best")
    }


def scores(pass1: float, pass4: float, other: float = 0.0) -> dict:
    return {"eval_b_pass1": pass1, "eval_b_pass4": pass4, "eval_c_pass4": other}


def test_the_best_checkpoint_follows_any_metric_and_the_first_of_equals_stays(trainer, tmp_path):
    run = trainer("eval_b_pass4")
    for step, each in {1: scores(0.9, 0.2), 2: scores(0.1, 0.4), 3: scores(0.5, 0.4), 4: scores(0.8, 0.3, 0.9)}.items():
        run.save_best_checkpoint(each, step)
    assert best(tmp_path) == {"best_global_step2"}
    assert (
        json.loads((tmp_path / "ckpt/_actor/best_global_step2/metric.json").read_text())["metric_key"] == "eval_b_pass4"
    )


def train(run, values: dict[int, float], first: int = 1) -> None:
    """Steps of a training, until one has no value although it is due: the evaluation is interrupted."""

    def evaluate(step: int) -> dict:
        return {**scores(0, values[step]), "eval_num_samples": 4.0}

    run.evaluate = evaluate
    if first > 1:
        run.resume_evaluations({"global_step": first - 1}, read_metrics(run.args.logger.run_dir))
        run.broadcast_to_vllm()
    for step in range(first, 11):
        run.save_logs_and_checkpoints(step, {}, {"global_step": step})


def values_of_checkpoints(tmp_path: Path) -> dict[str, float | None]:
    saved = (tmp_path / "ckpt" / "_actor").glob("*/metric.json")
    return {path.parent.name: json.loads(path.read_text())["metric_value"] for path in saved}


def evaluated(run) -> dict[int, float]:
    return {row["step"]: row["eval_b_pass4"] for row in read_metrics(run.args.logger.run_dir) if "eval_b_pass4" in row}


def test_an_evaluation_belongs_to_the_checkpoint_of_its_step_and_rotation_keeps_the_better(trainer, tmp_path):
    run = trainer("eval_b_pass4")
    train(run, {3: 0.1, 6: 0.5, 9: 0.2})
    assert evaluated(run) == {3: 0.1, 6: 0.5, 9: 0.2}
    assert values_of_checkpoints(tmp_path) == {"global_step6": 0.5, "best_global_step6": 0.5, "global_step10": None}


def test_the_rollouts_up_to_a_checkpoint_are_on_disk_before_it_counts(trainer, tmp_path):
    """A thread writes them, slowly here; a resume from the checkpoint does not write them again."""
    run, there = trainer(), []
    rollouts = SimpleNamespace(table=lambda *_: (time.sleep(0.5), pa.table({"reward": [1.0]}))[1])
    run.evaluate_if_due = lambda *_: None
    save = run.actor_model_group.async_run_method

    def look_and_save(**how):
        there.append(rollouts_path(tmp_path / "run", 1).exists())
        return save(**how)

    run.actor_model_group.async_run_method = look_and_save
    run.run_log.write_rollouts(1, rollouts)
    run.save_logs_and_checkpoints(1, {}, {"global_step": 1})
    assert there == [True]


def test_minutes_between_saves_count_from_the_last_save(trainer):
    run, now = trainer(), [0.0]
    run.eval_dataloader = None
    run.args.ckpt.save_steps, run.args.ckpt.save_minutes = math.inf, 1
    run.save_times = SaveTimes(run.args.ckpt, lambda: now[0])
    for step, now[0] in ((1, 30.0), (2, 61.0), (3, 90.0), (4, 122.0)):
        run.save_logs_and_checkpoints(step, {}, {"global_step": step})
    assert set(run.saved) == {"global_step2", "global_step4"}


def test_an_evaluation_that_was_interrupted_is_repeated_at_the_resume_and_another_is_not(trainer, tmp_path):
    run = trainer("eval_b_pass4")
    with pytest.raises(KeyError):
        train(run, {3: 0.1})
    assert evaluated(run) == {3: 0.1}
    run = resumed(trainer, 6, "eval_b_pass4")
    with pytest.raises(KeyError):
        train(run, {6: 0.5}, first=7)
    assert evaluated(run) == {3: 0.1, 6: 0.5} and run.saved["best_global_step6"]["global_step"] == 6
    run = resumed(trainer, 9, "eval_b_pass4")
    train(run, {9: 0.2}, first=10)
    train(resumed(trainer, 10, "eval_b_pass4"), {}, first=11)
    assert evaluated(run) == {3: 0.1, 6: 0.5, 9: 0.2}
    assert values_of_checkpoints(tmp_path)["best_global_step6"] == 0.5


@pytest.mark.parametrize(
    ("step", "last", "due"),
    [
        (3, 0, True),
        (4, 3, False),
        (5, 0, True),
        (5, 3, False),
        (7, 3, True),
        (6, 6, False),
        (4, 6, False),
        (2, 0, False),
    ],
)
def test_an_evaluation_is_due_once_a_multiple_has_passed_since_the_last(trainer, step, last, due):
    """With --eval.steps 3: also at a step between, where a resume begins after one that was missed."""
    run, evaluated = trainer(), []
    run.evaluate = lambda step: evaluated.append(step) or {}
    run.evaluated = last
    run.evaluate_if_due(step, {})
    assert evaluated == [step] * due and run.evaluated == (step if due else last)
    run.evaluated, run.eval_dataloader = 0, None
    run.evaluate_if_due(step, {})
    assert len(evaluated) == due, "nothing to evaluate on"


def test_an_evaluation_samples_with_its_own_temperature_and_number(trainer, monkeypatch):
    run, asked = trainer(), {}
    monkeypatch.setattr("openrlhf.trainer.ppo_trainer.compute_eval_metrics", lambda *_: {})
    run.args.data.max_len, run.args.rollout.max_new_tokens, run.args.rollout.top_p = 64, 8, 0.9
    run.args.rollout.temperature, run.args.eval = 1.0, SimpleNamespace(temperature=0.6, n_samples_per_prompt=16)
    run.samples_generator = SimpleNamespace(generate_eval_samples=lambda **settings: asked.update(settings) or [])
    run.evaluate(3)
    own = {"temperature": 0.6, "n_samples_per_prompt": 16}
    assert asked == {"max_len": 64, "max_new_tokens": 8, "top_p": 0.9, **own}


def test_an_evaluation_that_fails_gives_the_engines_back_to_asynchronous_training(monkeypatch):
    calls = []
    lock = SimpleNamespace(**{name: SimpleNamespace(remote=lambda name=name: name) for name in ("acquire", "release")})
    monkeypatch.setattr("ray.get", calls.append)
    with pytest.raises(KeyError), AsynchronousEvaluation.holding_engines(SimpleNamespace(vllm_lock=lock)):
        raise KeyError
    assert calls == ["acquire", "release"]


def test_a_row_of_an_evaluation_is_written_when_all_that_it_leads_to_is_there(trainer, monkeypatch):
    run = trainer("eval_b_pass4")
    monkeypatch.setattr(scheduled_evaluation, "resume", SimpleNamespace(groups=lambda *_: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        run.save_best_checkpoint(scores(0.9, 0.2), 1)
    assert not read_metrics(run.args.logger.run_dir)


def test_no_evaluation_is_left_to_the_generator_of_asynchronous_training():
    from openrlhf.trainer import ppo_trainer_async

    generator = object.__new__(ppo_trainer_async.GenerateSamplesActor.__ray_metadata__.modified_class)
    generator.args = SimpleNamespace(eval=SimpleNamespace(steps=3))
    generator.eval_dataloader, generator._last_eval_step = "questions", -1
    upstreams = next(each for each in type(generator).__mro__ if each.__module__ == ppo_trainer_async.__name__)
    assert upstreams._should_eval(generator, 3) and not generator._should_eval(3)


def test_a_metric_that_no_evaluation_has_is_named(trainer, tmp_path, caplog):
    run = trainer("eval_d_pass4")
    run.save_best_checkpoint(scores(0.9, 0.2), 1)
    assert not (tmp_path / "ckpt").exists() and "no such metric" in caplog.text and "eval_b_pass4" in caplog.text


def resumed(trainer, step: int, key: str = "", **states):
    run = trainer(key)
    run.restore_best_checkpoint_state({"global_step": step, **states})
    return run


def test_a_resumed_run_knows_the_best_that_was_saved_after_its_checkpoint(trainer, tmp_path):
    """As after --ckpt.load_step: global_step2 was saved before the evaluation of step 2."""
    first = trainer("eval_b_pass4")
    first.save_best_checkpoint(scores(0.1, 0.6), 2)
    run = resumed(trainer, 2, "eval_b_pass4", best_eval_metric_key="eval_b_pass4", best_eval_metric_value=float("-inf"))
    run.save_best_checkpoint(scores(0.9, 0.5), 4)
    assert best(tmp_path) == {"best_global_step2"}
    run.save_best_checkpoint(scores(0.0, 0.7), 6)
    assert best(tmp_path) == {"best_global_step6"}


def test_the_best_is_the_latest_complete_one_by_the_number_of_its_step(tmp_path):
    """A death between the save of a better one and the rotation leaves two."""
    for step, value in ((9, 0.2), (10, 0.3), (11, 0.4)):
        folder = tmp_path / "ckpt" / "_actor" / f"best_global_step{step}"
        folder.mkdir(parents=True)
        (folder / "weights").write_text("whole")
        write_json(folder / "metric.json", {"metric_value": value, "metric_key": "eval_b_pass4"})
        manifest.complete(folder)
    (folder / "weights").unlink()
    assert best_so_far(tmp_path / "ckpt", tmp_path / "run", "eval_b_pass4") == 0.3


def test_a_best_checkpoint_that_is_gone_counts_as_none(trainer, tmp_path):
    """As after --ckpt.load_step: it made room for a later one, which is moved aside."""
    run = resumed(trainer, 2, "eval_b_pass4", best_eval_metric_key="eval_b_pass4", best_eval_metric_value=0.6)
    run.save_best_checkpoint(scores(0.9, 0.5), 4)
    assert best(tmp_path) == {"best_global_step4"}


@pytest.mark.parametrize(("asked", "value"), [("eval_b_pass4", 0.3), ("eval_c_pass4", 0.25)])
def test_the_commands_metric_counts_after_a_resume_and_its_value_is_that_of_the_best_checkpoint(
    trainer, capsys, asked, value
):
    first = trainer()
    first.save_best_checkpoint(scores(0.5, 0.3, 0.25), 2)
    assert first.best_eval_metric_key == "eval_b_pass1"
    states = {k: first.saved["best_global_step2"][k] for k in ("best_eval_metric_key", "best_eval_metric_value")}
    run = resumed(trainer, 2, asked, **states)
    assert "is now chosen by" in capsys.readouterr().out
    run.save_best_checkpoint(scores(0.4, 0.3, 0.25), 4)
    assert run.best_eval_metric_value == value
    assert read_metrics(run.args.logger.run_dir)[-1]["step"] == 4


def test_the_same_metric_goes_on_and_none_means_none(trainer, capsys):
    states = {"best_eval_metric_key": "eval_b_pass1", "best_eval_metric_value": 0.5, "latest_eval_metric_value": 0.4}
    run = resumed(trainer, 3, **states)
    assert run.best_eval_metric_key == "eval_b_pass1" and not capsys.readouterr().out
    assert resumed(trainer, 3, "none", **states).best_eval_metric_key == "none"
    assert resumed(trainer, 3, best_eval_metric_key="none").best_eval_metric_key == ""
