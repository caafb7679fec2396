"""A resumed run continues with its adaptive KL coefficient, and a policy that was frozen begins with one batch."""

from types import SimpleNamespace

import pytest
from replay_runs import G, Trainer, arguments

from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.training.checkpoint import KL_COEFFICIENT


@pytest.mark.parametrize("target", [0.1, None])
def test_the_adaptive_kl_coefficient_is_in_the_checkpoint_and_comes_back(tmp_path, sections, target):
    from openrlhf.trainer.ppo_utils.kl_controller import AdaptiveKLController

    def trainer(states: dict):
        args = arguments(tmp_path, "ebpo", to=3)
        args = sections(**{f"{a}.{b}": value for a, section in args.items() for b, value in section.items()})
        args.algo = sections(**{"advantage.estimator": "ebpo", "kl.target": target, "kl.init_coef": 0.01})
        built = Trainer(args, registry.build("ebpo", EstimatorConfig(G)), states)
        built.kl_ctl = AdaptiveKLController(0.01, target, horizon=100)
        built.init_checkpoint_states()
        return built

    first = trainer({"global_step": 0})
    first.kl_ctl.value = 0.5
    saved = first._complete({"global_step": 2})
    assert (KL_COEFFICIENT in saved) == (target is not None)
    assert trainer(saved).kl_ctl.value == (0.5 if target else 0.01)


def test_a_frozen_step_leaves_no_batch_for_the_first_step_after_it(monkeypatch):
    from openrlhf.trainer import ppo_trainer
    from openrlhf.trainer.ray import ppo_actor

    monkeypatch.setattr(ppo_trainer.ray, "get", lambda refs: refs)
    batches, trained = [], []
    policy = object.__new__(ppo_actor.PolicyModelActor.__ray_metadata__.modified_class)
    policy.trainer = SimpleNamespace(replay_buffer=batches)

    def call(method_name, **_):
        if method_name == "fit":
            trained.append(list(batches))
            batches.clear()
            return [{}]
        return [getattr(policy, method_name)()]

    trainer = object.__new__(ppo_trainer.PPOTrainer.actor_class.__ray_metadata__.modified_class)
    trainer.heart = SimpleNamespace(during=lambda phase: monkeypatch.context())
    trainer.args = SimpleNamespace(critic=SimpleNamespace(freezing_steps=1), ds=SimpleNamespace(enable_sleep=False))
    trainer.actor_model_group, trainer.critic_model_group = SimpleNamespace(async_run_method=call), None
    trainer.kl_ctl = SimpleNamespace(value=0.0)
    for step in range(4):
        batches.append(f"batch of step {step + 1}")
        trainer.ppo_train(step)
    assert trained == [["batch of step 3"], ["batch of step 4"]]
