"""A reward function that hangs in some calls and ends its process in others: the training ends, and says what
happened."""

import itertools

import pytest

from openrlhf_ebpo.run.run_log import read_metrics, read_rollouts, read_run

pytestmark = pytest.mark.nightly  # daily: contract/test_reward_errors.py, unit/test_reward_processes.py

REWARD = """
import ctypes, os, re, sys, time
def reward_func(queries, prompts, labels):
    prompt = prompts[0].strip()
    if prompt == "apx": time.sleep(1000)
    if prompt == "bqy": sys.exit("the judge is gone")
    if prompt == "arz": os._exit(7)
    if prompt == "bsx": re.match(r"(a+)+$", "a" * 60 + "b")
    if prompt == "apy": ctypes.string_at(0)
    if prompt == "brz": bytearray(1 << 30)
    return {"rewards": float(len(queries[0]) % 2)}
"""
ERRORS = {
    "apx": "reward_func took longer than 2 s (--reward.timeout)",
    "bqy": "SystemExit: the judge is gone (",
    "arz": "reward_func ended its process (exit code 7)",
    "bsx": "reward_func took longer than 2 s (--reward.timeout)",
    "apy": "reward_func ended its process (signal 11, SIGSEGV)",
    "brz": "reward_func needed more memory than 256 MB (--reward.memory)",
}


def test_rewards_that_hang_crash_or_exit_are_left_out_with_their_cause_and_the_training_ends(train, command, tmp_path):
    (tmp_path / "reward.py").write_text(REWARD)
    limits = {"reward__timeout": 2, "reward__memory": 256}
    output = train(command(tmp_path, reward__remote_url=tmp_path / "reward.py", **limits)).succeed()
    run_dir = tmp_path / "model" / "run"
    assert read_run(run_dir)["args"]["reward"]["timeout"] == 2
    metrics = read_metrics(run_dir)
    rows = list(itertools.chain.from_iterable(read_rollouts(run_dir, row["step"]).to_pylist() for row in metrics))
    failed = [row for row in rows if row["error"]]
    assert len(rows) == 96 and len(failed) == 4 * len(ERRORS)
    for row in failed:
        assert row["error"].startswith(ERRORS[row["prompt"].strip()]), row["error"]
    assert not any(row["valid"] for row in failed) and all(row["valid"] for row in rows if not row["error"])
    assert round(sum(row["ebpo/reward_error_fraction"] for row in metrics) * 32) == len(failed)
    assert "took longer than 2 s (--reward.timeout)" in output and "SIGSEGV" in output
