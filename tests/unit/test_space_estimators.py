"""A batch under every estimator is what the estimator gives in training; Understand's numbers are those of the docs."""

import numpy as np
import pytest

from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch
from openrlhf_ebpo.estimator.registry import ESTIMATORS, offline
from openrlhf_ebpo.space.links import clean
from openrlhf_ebpo.space.pages import understand
from openrlhf_ebpo.space.replayed import under_every


def batch(successes: list[int], size: int) -> Batch:
    rewards = (np.arange(size) < np.array(successes)[:, None]).astype(float)
    ids = tuple(f"prompt {number}" for number in range(len(rewards)))
    return Batch.of(rewards, np.ones_like(rewards, dtype=bool), ids, (None,) * len(ids))


def test_what_a_batch_gets_is_what_the_estimator_gives_in_training():
    config, given = EstimatorConfig(4), batch([0, 1, 3, 4], 4)
    found, left_out = under_every(given, config)
    assert list(found) == [name for name in ESTIMATORS if name != "gae"] and left_out == []
    for name, one in found.items():
        estimator = offline(name, config)
        assert np.array_equal(one.advantages, estimator.step(given, estimator.initial()).advantages), name
    alone = {name for name, one in found.items() if one.alone}
    assert {"spo", "dbb", "ebpo"} <= alone and not alone & {"group_norm", "rloo", "score_weighted"}


def test_estimators_that_cannot_work_with_a_batch_are_named():
    found, left_out = under_every(batch([1, 0], 1), EstimatorConfig(1))
    assert {"ebpo", "bnpo"} <= set(left_out) and "flash_reinforce" in found


@pytest.mark.parametrize(("right", "gain"), [(0, "−0.10"), (1, "+0.71"), (4, "+0.15")])
def test_understand_has_the_worked_example_of_the_docs(right, gain):
    view = clean({"g": 4, "right": right, "mean": 5 / 12, "within": 35 / 144, "between": 13 / 72})
    story = understand.render(view)["story"]
    assert "(σ²/G) / (σ²/G + τ²) = <b>0.252</b>" in story
    assert ("= <b>0.292</b>" in story) == (right == 1)
    assert gain in story
