"""A reward function that hangs in some calls and exits in others: the training ends, and says what happened."""

from __future__ import annotations

import itertools

from openrlhf_ebpo.record.run_log import read_metrics, read_rollouts, read_run

REWARD = """
import sys, time
def reward_func(queries, prompts, labels):
    if prompts[0].startswith("apx"):
        time.sleep(1000)
    if prompts[0].startswith("bqy"):
        sys.exit("the judge is gone")
    return {"rewards": float(len(queries[0]) % 2)}
"""


def test_rewards_that_hang_or_exit_are_left_out_with_their_cause_and_the_training_ends(train, command, tmp_path):
    (tmp_path / "reward.py").write_text(REWARD)
    output = train(command(tmp_path, reward__remote_url=tmp_path / "reward.py", reward__timeout=2)).succeed()
    run_dir = tmp_path / "model" / "run"
    assert read_run(run_dir)["args"]["reward"]["timeout"] == 2
    metrics = read_metrics(run_dir)
    rows = list(itertools.chain.from_iterable(read_rollouts(run_dir, row["step"]).to_pylist() for row in metrics))
    failed = [row for row in rows if row["error"]]
    hung, exited = ([row for row in failed if row["prompt"].startswith(word)] for word in ("apx", "bqy"))
    assert len(rows) == 96 and len(failed) == 8 and len(hung) == len(exited) == 4
    assert {row["error"] for row in hung} == {"reward_func took longer than 2 s (--reward.timeout)"}
    assert all(row["error"].startswith("SystemExit: the judge is gone (") for row in exited)
    assert not any(row["valid"] for row in failed) and all(row["valid"] for row in rows if not row["error"])
    assert sum(row["ebpo/reward_error_fraction"] for row in metrics) * 32 == 8
    assert "took longer than 2 s (--reward.timeout)" in output
