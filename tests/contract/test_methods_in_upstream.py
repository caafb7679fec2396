"""The estimators of the literature, and parts of EBPO, through the patched experience maker: what they are given, and
what training gets."""

import numpy as np
import pytest

from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.estimator.advantage import estimate
from openrlhf_ebpo.estimator.contract import Batch
from openrlhf_ebpo.upstream.controller.prompts import INFO_KEY as CLUSTER_KEY

REWARDS = [1.0, 0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
EMPTY = 7  # a response without action tokens
METHODS = [(name, {}) for name, entry in registry.ESTIMATORS.items() if (entry.code or "").startswith("methods.")]
VARIANTS = [
    ("ebpo", {"preset": "corrected", "weights": "score", "normalise": "scale"}),
    ("ebpo", {"history": "adaptive", "saturated": "zero"}),
    ("ebpo", {"history": "half_life", "half_life": 6.0, "order": "lagged", "clusters": "cluster"}),
]


def batch_of(rollouts) -> Batch:
    """From what the run log keeps."""
    result = rollouts.result
    return Batch.of(
        result.rewards,
        result.valid,
        rollouts.prompt_ids(every=4),
        rollouts.clusters[::4],
        rollouts.action_counts.reshape(3, 4).numpy(),
        rollouts.score_weights().reshape(3, 4).numpy(),
    )


@pytest.mark.parametrize(("name", "parts"), [*METHODS, *VARIANTS], ids=str)
def test_training_gets_what_the_estimator_gives_for_the_run_logs_rollouts(
    name, parts, rollout_args, answers, to_samples, make_maker, patched_class
):
    flags = {f"algo.advantage.ebpo.{part}": choice for part, choice in parts.items()}
    args = rollout_args(name, G=4, **{"train.dynamic_batch_enable": True}, **flags)
    maker = make_maker(patched_class, args)
    state = maker.state
    for seed in range(2):
        responses = answers(REWARDS, seed).responses()
        responses[EMPTY]["action_ranges"] = []
        samples = to_samples(responses, args)
        for i, sample in enumerate(samples):
            sample.info[CLUSTER_KEY] = [("easy", "hard", None)[i // 4]]
        experiences = maker.make_experience_batch(samples)
        expected = estimate(maker.estimator, batch_of(maker.rollouts), state)
        state = expected.state
        assert np.array_equal(maker.rollouts.result.advantages, expected.advantages)
        assert maker.estimator.save(maker.state) == maker.estimator.save(state)
        trained = {i: a[0].item() for e in experiences for i, a in zip(e.index, e.advantages, strict=True)}
        assert [trained[i] for i in range(12)] == pytest.approx(expected.advantages.reshape(-1).tolist(), rel=1e-6)
        assert any(trained.values()) and trained[EMPTY] == 0
