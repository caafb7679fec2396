"""Engines that never get the policy's weights: told within three steps."""

import pytest

from openrlhf_ebpo.run.run_log import read_metrics
from openrlhf_ebpo.space.metrics import Follower
from openrlhf_ebpo.space.warnings import find_warnings

pytestmark = pytest.mark.nightly  # daily: contract/test_mismatch.py, unit/test_mismatch.py, unit/test_space_warnings.py

FAULT = """
import sys

from openrlhf_ebpo.estimator.methods.global_mean import GlobalMean


class Stale(GlobalMean):
    def initial(self):
        if trainers := sys.modules.get("openrlhf.trainer.ppo_trainer"):  # in the process that trains
            trainers.BasePPOTrainer.broadcast_to_vllm = lambda self: None
        return super().initial()
"""


@pytest.fixture(scope="module")
def stale(train, command, tmp_path_factory):
    """(output, run directory) of four steps; the learning rate is 0 in the first, so the third is the first that can
    show it. The fourth exists since Ray loses what a worker prints shortly before the end."""
    output = tmp_path_factory.mktemp("stale")
    (output / "no_sync.py").write_text(FAULT)
    training = train(command(output, advantage_estimator="no_sync:Stale", data__max_samples=32), PYTHONPATH=str(output))
    return training.succeed(), output / "model" / "run"


def test_rollouts_from_old_weights_are_told_within_three_steps(stale):
    output, run_dir = stale
    rows = read_metrics(run_dir)
    assert [row["mismatch/stale"] for row in rows][:3] == [0, 0, 1] and len(rows) == 4
    assert rows[0]["mismatch/k3_kl"] < 1e-4 and rows[2]["mismatch/k3_kl"] > 1e-2
    assert rows[0]["mismatch/ess"] > 0.99 > rows[2]["mismatch/ess"]
    assert "warning: step 3: the rollouts do not seem to come from the weights that are trained" in output
    assert "of 4 steps had rollouts that" in output


def test_the_space_warns_of_it(stale):
    warned = find_warnings(Follower(stale[1] / "metrics.jsonl").read())
    assert {each.rule.name: each.begins for each in warned}["stale"] == 3
