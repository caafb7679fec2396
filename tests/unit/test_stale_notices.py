"""A start whose samples are stale by its own settings warns those whose estimator suffers from it."""

import json

import numpy as np
import pytest

from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.estimator.advantage_settings import AdvantageSettings
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch
from openrlhf_ebpo.run.batches import BatchSettings
from openrlhf_ebpo.upstream.controller import mismatch

ASYNC = {"train.async_enable": True}
DEEP = {**ASYNC, "train.async_queue_size": 4}
PARTIAL = {**ASYNC, "train.partial_rollout_enable": True}
NAMES = [name for name, entry in registry.ESTIMATORS.items() if entry.code]


@pytest.fixture
def notices(sections, tmp_path):
    """Notices under an estimator and settings of EBPO, with flags changed and a config.json of the model."""
    (tmp_path / "config.json").write_text("{}")

    def build(estimator="ebpo", changes=(), **settings) -> list[str]:
        flat = {
            "actor.num_nodes": 1,
            "actor.num_gpus_per_node": 1,
            "ds.ring_attn_size": 1,
            "ds.tensor_parallel_size": 1,
            "train.batch_size": 32,
            "train.micro_batch_size": 1,
            "train.max_epochs": 1,
            "train.dynamic_batch_enable": False,
            "train.async_enable": False,
            "train.async_queue_size": 1,
            "train.partial_rollout_enable": False,
            "rollout.batch_size": 8,
            "rollout.vllm_generate_batch_size": 8,
            "rollout.n_samples_per_prompt": 4,
            "actor.model_name_or_path": str(tmp_path),
            "logger.no_policy_metrics": False,
        }
        args = sections(**{**flat, **dict(changes)})
        advantage = AdvantageSettings(estimator, EstimatorConfig(4, **settings))
        return mismatch.notices(args, BatchSettings.from_args(args), advantage)

    return build


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        (DEEP, "--train.async_queue_size 4 trains on samples up to 4 steps old"),
        (
            {**ASYNC, "rollout.vllm_generate_batch_size": 24},
            "--train.async_queue_size 1 with --rollout.vllm_generate_batch_size 24 trains on samples up to 3 steps old",
        ),
        (PARTIAL, "--train.partial_rollout_enable mixes tokens of older weights"),
    ],
)
def test_a_centred_estimator_is_warned_by_name_with_the_remedies(notices, changes, cause):
    for estimator in ("ebpo", "group_norm", "gae"):
        (line,) = notices(estimator, changes)
        assert line.startswith(f"warning: {cause}") and f"{estimator} is centred" in line
        for remedy in (
            "--advantage_estimator ebpo.robust",
            "--algo.advantage.is_correction_level token",
            "mismatch/*",
        ):
            assert remedy in line


def test_quantised_rollouts_are_named_by_the_file_that_asks_for_them(notices, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "fp8"}}))
    (line,) = notices()
    assert f"quantised weights (quantization_config in {tmp_path / 'config.json'})" in line
    (both,) = notices(changes=DEEP)
    assert "4 steps old" in both


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"logger.no_policy_metrics": True}, "--logger.no_policy_metrics"),
        ({"ds.ring_attn_size": 2}, "ring_attn_size 2"),
    ],
)
def test_a_start_says_that_stale_weights_are_not_reported(notices, changes, cause):
    changes = {"actor.num_gpus_per_node": 2, **changes}
    assert notices(changes=changes) == [], "new rollouts need no movement of the policy"
    (line,) = notices(changes={**ASYNC, **changes})
    assert line.startswith("note: stale weights are not reported (mismatch/stale is absent)") and cause in line


def test_a_vision_model_does_not_report_stale_weights(notices, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"vision_config": {"depth": 2}}))
    (line,) = notices(changes=ASYNC)
    assert "with a vision model policy/kl_per_step is not measured" in line


@pytest.mark.parametrize("changes", [{}, ASYNC, {"train.async_queue_size": 4}])
def test_up_to_one_step_old_is_not_warned_of(notices, changes):
    assert notices(changes=changes) == []


@pytest.mark.parametrize(
    ("estimator", "settings"),
    [("score_weighted", {}), ("ebpo", {"preset": "robust"}), ("ebpo", {"weights": "score", "normalise": "none"})],
)
def test_what_holds_under_stale_samples_is_not_warned_of(notices, estimator, settings):
    assert notices(estimator, {**DEEP, **PARTIAL}, **settings) == []


@pytest.mark.parametrize(
    "settings", [{}, {"preset": "corrected"}, {"normalise": "none"}, {"preset": "robust", "normalise": "batch"}]
)
def test_other_variants_of_ebpo_are_centred(notices, settings):
    assert len(notices(changes=DEEP, **settings)) == 1


@pytest.mark.parametrize("name", NAMES)
def test_what_an_estimator_declares_is_what_it_does(name):
    """Failures with long scores and few successes: a centred estimator's mean advantage is about 0 or below, another's
    is not."""
    rng = np.random.default_rng(0)
    rewards = (rng.random((256, 4)) < 0.2).astype(float)
    ids = [str(m) for m in range(256)]
    batch = Batch.of(rewards, np.ones_like(rewards, bool), ids, [None] * 256, score_weights=10 - 9 * rewards)
    estimator = registry.build_offline(name, EstimatorConfig(4))
    advantages = estimator.step(batch, estimator.initial()).advantages
    assert (advantages.mean() / np.sqrt((advantages**2).mean()) > 0.2) is not estimator.centred
