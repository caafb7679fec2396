"""A resumed run continues with its adaptive KL coefficient."""

import pytest
from replay_runs import G, Trainer, arguments

from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.upstream.saving import KL_COEFFICIENT


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
