"""EBPO trains with the replacements of kind `estimator` alone: what else is replaced is for users, not for EBPO."""

import json

import pytest

from openrlhf_ebpo.run.run_log import read_metrics, read_run
from openrlhf_ebpo.upstream.install import REPLACEMENTS

pytestmark = pytest.mark.nightly  # daily: contract/test_seams.py; each row has its own tests

REWARD = """
def reward_func(queries, prompts, labels, **kwargs):
    passed = float(sum(map(ord, queries[0][len(prompts[0]):])) % 3 == 0)
    return {"rewards": passed, "scores": passed, "extra_logs": {}}
"""


def test_two_steps_with_the_replacements_that_ebpo_needs(train, command, tmp_path):
    (tmp_path / "reward.py").write_text(REWARD)
    argv = command(tmp_path, data__max_samples=16, reward__remote_url=tmp_path / "reward.py")
    train(argv, RAY_ADDRESS="local", **{REPLACEMENTS: "estimator"}).succeed()  # the cluster's workers have all rows
    run_dir = tmp_path / "model" / "run"
    assert [row["step"] for row in read_metrics(run_dir)] == [1, 2]
    assert not any("Guarded" in label or "HealthyPolicy" in label for label in read_run(run_dir)["seams"])
    prior = json.loads((run_dir / "prior.json").read_text())
    assert prior == json.loads((tmp_path / "model" / "prior.json").read_text()) and prior["batches"] == 2
