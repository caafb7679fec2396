"""The trainer's phases, and the words for what it waits for."""

import ast
from types import SimpleNamespace

import pytest

from openrlhf_ebpo.run.heartbeat import GENERATING, REWARDS, STARTING, read_beat
from openrlhf_ebpo.upstream import phases
from openrlhf_ebpo.upstream.phases import Phases, describe_pending
from openrlhf_ebpo.upstream.stack import module_path


class Upstream:
    """As BasePPOTrainer calls itself."""

    def __init__(self, run_dir, seen):
        self.args, self.vllm_engines = SimpleNamespace(logger=SimpleNamespace(run_dir=run_dir)), []
        self.experience_maker = SimpleNamespace()
        self.seen = seen

    def look(self):
        self.seen.append((self.heart._beat.step, self.heart.phase))

    def init_checkpoint_states(self):
        self.look()
        return {"global_step": 4}

    def fit(self):
        self.init_checkpoint_states()
        self.look()
        self.train_step([], 4)
        self.save_logs_and_checkpoints(5)
        self.evaluate(5)
        self.look()

    def train_step(self, samples, step):
        self.look()
        self.ppo_train(step)
        self.broadcast_to_vllm()
        return {}, step + 1

    def ppo_train(self, step):
        self.look()

    broadcast_to_vllm = evaluate = save_logs_and_checkpoints = lambda self, *_: self.look()


def test_every_long_part_of_a_step_is_a_phase(tmp_path):
    seen = []
    trainer = type("Trainer", (Phases, Upstream), {})(tmp_path, seen)
    assert trainer.heart.phase == STARTING
    trainer.fit()
    assert seen == [
        (0, "loading the checkpoint"),
        (4, GENERATING),
        (4, "making experience"),
        (4, "training"),
        (4, "syncing weights"),
        (5, "saving"),
        (5, "evaluating"),
        (5, GENERATING),
    ]
    assert trainer.heart.phase == "exporting the model"


@pytest.mark.parametrize(
    ("filtering", "prompts", "steps"), [(False, range(50), 14), (True, range(50), 0), (False, None, 0)]
)
def test_the_heartbeat_has_the_planned_steps(tmp_path, filtering, prompts, steps):
    trainer = type("Trainer", (Phases, Upstream), {})(tmp_path, [])
    trainer.prompts_dataloader = prompts
    trainer.args.train, trainer.args.rollout = SimpleNamespace(num_episodes=2), SimpleNamespace(batch_size=8)
    trainer.args.algo = SimpleNamespace(dynamic_filtering_enable=filtering)
    trainer.init_checkpoint_states()
    trainer.heart.write()
    assert read_beat(tmp_path).steps == steps and read_beat(tmp_path).step == 4


def test_the_experience_maker_says_its_phases_and_a_line_of_metrics_has_the_seconds_of_all(tmp_path):
    trainer = type("Trainer", (Phases, Upstream), {})(tmp_path, [])
    with trainer.experience_maker.in_phase(phases.LOG_PROBS):
        assert trainer.heart.phase == "log-probabilities"
    assert set(trainer.heart.spent()) == {"starting engines and models", "log-probabilities"}


def test_an_error_leaves_no_phase_behind(tmp_path, monkeypatch):
    trainer = type("Trainer", (Phases, Upstream), {})(tmp_path, [])
    trainer.heart.report(GENERATING)
    monkeypatch.setattr(Upstream, "ppo_train", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer.train_step([], 1)
    assert trainer.heart.phase == GENERATING


def test_upstream_has_every_method_that_is_a_phase():
    ours = {name for name in vars(Phases) if not name.startswith("_")}
    found = {
        node.name
        for node in ast.walk(ast.parse(module_path("openrlhf.trainer.ppo_trainer").read_text()))
        if hasattr(node, "name")
    }
    assert len(ours) == 7 and ours - found == set()


@pytest.mark.parametrize(
    ("requests", "rewards", "phase", "detail"),
    [
        (0, 0, GENERATING, ""),
        (5, 0, GENERATING, "5 responses unfinished"),
        (5, 3, GENERATING, "5 responses unfinished; rewards: 3 of 9 outstanding, since "),
        (0, 3, REWARDS, "3 of 9 outstanding, since "),
    ],
)
def test_rewards_are_a_phase_when_all_responses_are_there(requests, rewards, phase, detail):
    found = describe_pending(requests, rewards, 9, 0.0 if rewards else None)
    assert found[0] == phase and found[1].startswith(detail)
