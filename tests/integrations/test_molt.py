"""Molt's trainer with estimators of the registry: its own command line, experience maker, controller and training
actor, on a CPU."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip(
    "molt", reason="runs in the environment of requirements/molt.txt: bash scripts/test_integrations.sh molt"
)
import ray
import torch

sys.path.insert(0, str(Path(__file__).with_name("molt_stub")))

from molt.trainer.algorithm import advantage
from molt.trainer.algorithm.kl_controller import FixedKLController
from molt_training import GROUP, STEPS, parsed, rollouts
from patience import seconds
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.integrations import molt as integration
from openrlhf_ebpo.integrations.running import RunningEstimator

HERE = Path(__file__).parent
PATHS = [str(HERE / "molt_stub"), str(HERE), str(HERE.parents[1])]
GOLDEN = json.loads((HERE.parent / "data" / "golden_advantages.json").read_text())
OURS = [name for name in GOLDEN["advantages"] if name not in integration.MOLTS]


@pytest.fixture(autouse=True)
def molt_as_it_was(monkeypatch):
    """Undo after each test what a run changes in its process."""
    monkeypatch.setattr(integration.rl_trainer, "TrainingActor", integration.rl_trainer.TrainingActor)
    monkeypatch.setattr(advantage, "ADVANTAGE_ESTIMATORS", dict(advantage.ADVANTAGE_ESTIMATORS))


def make_maker(*flags: str) -> integration.PriorExperienceMaker:
    """Molt's experience maker for these flags, as its training actor makes it."""
    args = parsed(*flags)
    return integration.PriorExperienceMaker(None, None, FixedKLController(0.0), SimpleNamespace(args=args), None)


def computed(maker, experiences) -> torch.Tensor:
    """Each response's advantage, after checking that its tokens have it and no others."""
    found = []
    for each in maker.compute_advantages_and_returns(experiences):
        assert torch.equal(each.advantages, each.returns)
        value = each.advantages[each.action_mask][0]
        assert torch.equal(each.advantages, value * each.action_mask)
        found.append(value)
    return torch.stack(found)


def named(name: str) -> tuple[str, str]:
    return "--algo.advantage.estimator", name


@pytest.mark.parametrize("name", OURS)
def test_the_golden_rewards_give_the_golden_advantages(name):
    maker = make_maker(*named(name))
    for step, (rewards, golden) in enumerate(zip(GOLDEN["rewards"], GOLDEN["advantages"][name], strict=True)):
        assert computed(maker, rollouts(rewards, step)).tolist() == pytest.approx(golden, rel=1e-6, abs=1e-6)
    assert maker.running.metrics["ebpo/all_fail_fraction"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("name", ["opo", "score_weighted"])
def test_length_and_score_weight_are_those_of_the_response(name):
    """Responses come in any order, and a prompt's group ids differ in every step."""
    maker, alone = make_maker(*named(name)), RunningEstimator(name, GROUP)
    for step, rewards in enumerate(GOLDEN["rewards"]):
        rows = rollouts(rewards, step)
        weights = [((1 - each.action_log_probs.double().exp()) ** 2 * each.action_mask).sum() for each in rows]
        lengths = [each.action_mask.sum() for each in rows]
        expected = alone.step(rewards, lengths, lambda weights=weights: weights).advantages.ravel()
        order = np.random.default_rng(step).permutation(len(rows))
        found = computed(maker, [rows[row] for row in order])
        assert found.tolist() == pytest.approx(expected[order], rel=1e-6, abs=1e-6)


def test_turns_of_a_rollout_share_its_advantage_and_a_dropped_rollout_leaves_a_smaller_group():
    maker = make_maker(*named("group_norm"))
    rows = rollouts([1, 0, 0, 0, 0], group=3)  # of the first prompt three rollouts, of the second two
    second_turn = rollouts([1], group=3)[0]
    found = computed(maker, [*rows, second_turn])
    assert found.tolist() == pytest.approx([2 / 3**0.5, -1 / 3**0.5, -1 / 3**0.5, 0, 0, 2 / 3**0.5])


def test_molts_own_names_and_flags_stay_molts():
    args = parsed(*named("grpo"))
    assert args.algo.advantage.estimator == "grpo" and args.algo.advantage.ebpo.history is None
    assert integration.rl_trainer.TrainingActor.__ray_metadata__.class_name == "TrainingActor"


@pytest.mark.parametrize(
    ("message", "flags"),
    [
        ("there is no estimator 'ebop'. Did you mean ebpo", named("ebop")),
        ("needs at least 2", (*named("ebpo"), "--rollout.n_samples_per_prompt", "1")),
        ("clusters", (*named("ebpo"), "--algo.advantage.ebpo.clusters", "cluster")),
        ("pass_reward", (*named("ebpo"), "--algo.advantage.ebpo.pass_reward", "-1")),
        ("log-probabilities", (*named("score_weighted"), "--train.force_on_policy")),
    ],
)
def test_what_molt_cannot_give_is_refused_by_name_before_anything_starts(capsys, message, flags):
    with pytest.raises(SystemExit) as ended:
        parsed(*flags)
    assert message in f"{ended.value}{capsys.readouterr().err}"


@pytest.fixture
def train(monkeypatch):
    """Run molt_training.py on a cluster of this process, which outlives a killed run."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(PATHS))  # of the workers, too
    address = ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False).address_info["gcs_address"]
    environment = {**os.environ, "RAY_ADDRESS": address}

    def run(output: Path, die_at: int = 0) -> subprocess.CompletedProcess:
        output.mkdir(exist_ok=True)
        command = [sys.executable, str(HERE / "molt_training.py"), str(output), str(die_at), *named("ebpo")]
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds(240), env=environment)

    yield run
    ray.shutdown()


def batches(output: Path) -> list:
    return [json.loads(line) for line in (output / "batches.jsonl").read_text().splitlines()]


def test_killed_and_resumed_it_is_the_run_that_was_not_killed(tmp_path, train):
    """Through Molt's controller: the state travels in client_states, Ray's processes find the estimator, Molt logs its
    metrics."""
    unbroken, cut = tmp_path / "unbroken", tmp_path / "cut"
    done = train(unbroken)
    assert done.returncode == 0, done.stderr[-3000:]
    running, expected = RunningEstimator("ebpo", GROUP), batches(unbroken)
    for batch in expected:
        advantages = running.step([reward for _, (reward,), _ in batch]).advantages.ravel()
        assert [tokens[0] for *_, (tokens,) in batch] == pytest.approx(advantages, rel=1e-6, abs=1e-6)
    (logs,) = {path.parent for path in unbroken.rglob("events.*")}
    assert len(EventAccumulator(str(logs)).Reload().Scalars("train/ebpo/shrinkage")) == len(expected) == STEPS

    assert train(cut, die_at=4).returncode == -signal.SIGKILL  # in the fourth step, after the checkpoint of the second
    (cut / "batches.jsonl").unlink()
    done = train(cut)
    assert done.returncode == 0, done.stderr[-3000:]
    assert batches(cut) == expected[2:]
    last = [torch.load(run / "_actor" / f"global_step{STEPS}", weights_only=False) for run in (unbroken, cut)]
    assert last[0]["prior.json"] == last[1]["prior.json"] == running.pack()


def test_a_checkpoint_without_its_prior_or_with_anothers_is_refused():
    class Trainer:
        args = SimpleNamespace(ckpt=SimpleNamespace(path="checkpoints"))

        def load_checkpoint_states_or_default(self):
            return self.states

    class Resumed(integration.PriorTraining, Trainer):
        def __init__(self, states, **settings):
            self.states, self.running = states, RunningEstimator("ebpo", GROUP, settings)

    packed = {"global_step": 2, "prior.json": RunningEstimator("ebpo", GROUP).pack()}
    assert Resumed(packed).load_checkpoint_states_or_default() is packed
    for message, states, settings in (
        ("prior.json in the client states of checkpoints", {"global_step": 2}, {}),
        ("belongs to another estimator", packed, {"within_variance": "within"}),
    ):
        with pytest.raises(ReportedError, match=message):
            Resumed(states, **settings).load_checkpoint_states_or_default()
        Resumed(states, reset_prior=True, **settings).load_checkpoint_states_or_default()
    Resumed({"global_step": 0}).load_checkpoint_states_or_default()  # a run that has not begun
