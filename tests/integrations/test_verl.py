"""verl's advantages with estimators of the registry: its own compute_advantage on a DataProto, its callback, its plugin
discovery."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip(
    "verl", reason="runs in the environment of requirements/verl.txt: bash scripts/test_integrations.sh verl"
)
import torch
from omegaconf import OmegaConf
from patience import seconds
from verl import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.checkpoint_callback import build_checkpoint_callback
from verl.trainer.ppo.ray_trainer import compute_advantage

from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.integrations import verl as integration
from openrlhf_ebpo.integrations.running import RunningEstimator

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden_advantages.json").read_text())
GROUP, TOKENS = 4, 5


def config(tmp_path, name="ebpo", group=GROUP, resume="auto", **changed):
    ebpo = {"ebpo": changed.pop("ebpo")} if "ebpo" in changed else {}
    return OmegaConf.create(
        {
            "algorithm": {"adv_estimator": name, "use_kl_in_reward": changed.pop("kl", False), **ebpo},
            "actor_rollout_ref": {"rollout": {"n": group}},
            "trainer": {
                "checkpoint_callback_class": "openrlhf_ebpo.integrations.verl.PriorCheckpoint",
                "default_local_dir": str(tmp_path),
                "resume_mode": resume,
                "resume_from_path": changed.pop("path", None),
            },
        }
    )


def batch(seed: int, prompts: int = 6) -> tuple[DataProto, np.ndarray]:
    """Responses of prompts in mixed order; the rewards (M, G) in the order of the prompts' ids."""
    random = np.random.default_rng(seed)
    rewards = (random.random((prompts, GROUP)) < 0.3).astype(float)
    order = random.permutation(prompts * GROUP)
    ids = np.array([f"uid-{prompt}" for prompt in range(prompts) for _ in range(GROUP)], dtype=object)
    mask = torch.zeros(prompts * GROUP, TOKENS)
    for row, length in enumerate(random.integers(1, TOKENS + 1, prompts * GROUP)):
        mask[row, :length] = 1
    token_rewards = torch.zeros_like(mask)
    token_rewards[range(len(order)), (mask.sum(-1) - 1).long()] = torch.tensor(
        rewards.ravel()[order], dtype=torch.float32
    )
    tensors = {
        "token_level_rewards": token_rewards,
        "response_mask": mask,
        "responses": mask.long(),
        "attention_mask": mask,
    }
    return DataProto.from_single_dict({**tensors, "uid": ids[order]}), rewards


def computed(data: DataProto, name: str) -> torch.Tensor:
    """Each response's advantage, after checking that its tokens have it and no others."""
    found = compute_advantage(data, adv_estimator=name, config=None).batch
    assert (
        torch.equal(found["advantages"], found["returns"])
        and not found["advantages"][found["response_mask"] == 0].any()
    )
    first = found["advantages"][:, 0]
    assert torch.equal(found["advantages"], first[:, None] * found["response_mask"])
    return first


@pytest.mark.parametrize("name", ["ebpo", "group_norm", "raw_reward", "james_stein", "maxrl"])
def test_advantages_are_those_of_the_estimator(tmp_path, name):
    build_checkpoint_callback(config(tmp_path, name))
    alone = RunningEstimator(name, GROUP)
    for seed in range(4):
        data, rewards = batch(seed)
        expected = alone.step(rewards.ravel()).advantages
        found = computed(data, name)
        sums = data.batch["token_level_rewards"].sum(-1)
        for row, uid in enumerate(data.non_tensor_batch["uid"]):
            values = expected[int(uid[4:])]
            equal = [value for value, reward in zip(values, rewards[int(uid[4:])], strict=True) if reward == sums[row]]
            assert found[row].item() == pytest.approx(equal[0], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", [name for name in GOLDEN["advantages"] if name not in integration.VERLS])
def test_the_golden_rewards_give_the_golden_advantages(tmp_path, name):
    build_checkpoint_callback(config(tmp_path, name))
    ids = np.repeat(["a", "b", "c"], GROUP).astype(object)
    for rewards, golden in zip(GOLDEN["rewards"], GOLDEN["advantages"][name], strict=True):
        found = integration.advantages(torch.tensor(rewards, dtype=torch.float32)[:, None], torch.ones(12, 1), ids)[0]
        assert found[:, 0].tolist() == pytest.approx(golden, rel=1e-6, abs=1e-6)


def test_saved_and_resumed_it_goes_on_as_if_never_stopped(tmp_path):
    callback = build_checkpoint_callback(config(tmp_path))
    for seed in range(3):
        computed(batch(seed)[0], "ebpo")
        folder = tmp_path / f"global_step_{seed + 1}"
        folder.mkdir()
        callback.on_save(trainer=None, global_step=seed + 1, checkpoint_dir=str(folder), async_save=False, new="later")
        (tmp_path / "latest_checkpointed_iteration.txt").write_text(str(seed + 1))
    unbroken = [computed(batch(seed)[0], "ebpo") for seed in (3, 4)]
    build_checkpoint_callback(config(tmp_path))
    assert all(
        torch.equal(computed(batch(seed)[0], "ebpo"), found) for seed, found in zip((3, 4), unbroken, strict=True)
    )
    build_checkpoint_callback(config(tmp_path, resume="resume_path", path=str(tmp_path / "global_step_3")))
    assert torch.equal(computed(batch(3)[0], "ebpo"), unbroken[0])
    build_checkpoint_callback(config(tmp_path, resume="disable"))
    assert not torch.equal(computed(batch(3)[0], "ebpo"), unbroken[0])
    (tmp_path / "global_step_3" / "prior.json").unlink()
    with pytest.raises(ReportedError, match="no such prior file"):
        build_checkpoint_callback(config(tmp_path))
    build_checkpoint_callback(config(tmp_path, ebpo={"reset_prior": True}))


def test_a_group_with_fewer_responses_is_filled_with_none(tmp_path):
    build_checkpoint_callback(config(tmp_path, "group_norm"))
    index = ["a", "b", "a", "b", "a"]
    rewards, mask = torch.tensor([[1.0], [0.0], [0.0], [0.0], [0.0]]), torch.ones(5, 1)
    found = integration.advantages(rewards, mask, index)[0][:, 0]
    assert found.tolist() == pytest.approx([2 / 3**0.5, 0, -1 / 3**0.5, 0, -1 / 3**0.5])
    with pytest.raises(UsageError, match=r"5 responses, more than the 4"):
        integration.advantages(rewards, mask, ["a"] * 5)


@pytest.mark.parametrize(
    ("named", "changes"),
    [
        ("log-probabilities", {"name": "score_weighted"}),
        ("log-probabilities", {"name": "ebpo.robust"}),
        ("use_kl_in_reward", {"kl": True}),
        ("clusters", {"ebpo": {"clusters": "cluster"}}),
        ("gae", {"name": "gae"}),
        ("needs at least 2", {"group": 1}),
    ],
)
def test_what_verl_cannot_give_is_refused_by_name(tmp_path, named, changes):
    with pytest.raises(UsageError, match=named):
        build_checkpoint_callback(config(tmp_path, **changes))


def test_metrics_join_those_of_verls_step(tmp_path, monkeypatch):
    """Without the v1 trainer's transfer queue around it."""
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    monkeypatch.setattr(PPOTrainer, "_compute_advantage", lambda self, data, metrics: computed(data, "ebpo"))
    build_checkpoint_callback(config(tmp_path))
    trainer = SimpleNamespace(checkpoint_callback=build_checkpoint_callback(config(tmp_path)))
    metrics, data = {}, batch(0)[0]
    advantages = PPOTrainer._compute_advantage(trainer, data, metrics=metrics)
    assert len(advantages) == len(data) == metrics["ebpo/prior_count"] and 0 < metrics["ebpo/shrinkage"] < 1
    assert not hasattr(PPOTrainer._compute_advantage.__wrapped__, "__wrapped__")


def test_without_the_callback_it_is_refused(monkeypatch):
    monkeypatch.setattr(integration, "_running", None)
    with pytest.raises(UsageError, match="checkpoint_callback_class"):
        computed(batch(0)[0], "ebpo")


def test_verl_finds_the_estimators_by_itself(tmp_path):
    """The entry point of an installed package, in a process that imports verl alone; verl's own names stay verl's."""
    package = tmp_path / "openrlhf_ebpo-0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: openrlhf_ebpo\nVersion: 0\n")
    (package / "entry_points.txt").write_text("[verl.plugins]\nopenrlhf_ebpo = openrlhf_ebpo.integrations.verl\n")
    code = (
        f"import sys; sys.path.append({str(tmp_path)!r}); import verl, json; from verl.trainer.ppo import "
        f"core_algos as c;"
        "print(json.dumps({n: c.ADV_ESTIMATOR_REGISTRY[n].__module__ for n in ('ebpo', 'maxrl', 'rloo', 'opo')}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=seconds(200), check=True
    )
    ours, verls = integration.__name__, core_algos.__name__
    assert json.loads(done.stdout.splitlines()[-1]) == {"ebpo": ours, "maxrl": ours, "rloo": verls, "opo": verls}
