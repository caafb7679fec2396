"""`data difficulty` on the real stack: killed, repeated, and every prompt is measured once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest

# about half pass; d's always fail. It notes its verdicts, so that the test knows them from elsewhere.
REWARD = """
import json, os
def reward_func(queries, prompts, labels, **kwargs):
    answer = queries[0][len(prompts[0]):]
    if labels[0] == "c" and sum(map(ord, answer)) % 11 == 0: raise ValueError("no grade")
    reward = float(sum(map(ord, answer)) % 2 == 0 and labels[0] != "d")
    with open(os.path.join(os.path.dirname(__file__), "verdicts.jsonl"), "a") as file:
        file.write(json.dumps([prompts[0], reward]) + "\\n")
    return {"rewards": reward, "scores": reward}
"""
N = 4


@pytest.fixture
def start(cluster, workshop, tmp_path):
    """Start the command on the shared cluster; what still runs at the end is killed."""
    rows = [json.loads(line) for line in (workshop / "prompts.jsonl").read_text().splitlines()]
    rows = [{"id": f"{row['label']}{i}", "question": row["prompt"], **row} for i, row in enumerate(rows * 5)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "reward.py").write_text(REWARD)
    argv = ["--input", "in.jsonl", "--output", "out.parquet", "--model", workshop / "tied", "--reward", "reward.py"]
    argv += ["--n", N, "--max_new_tokens", 8, "--num_engines", 1]
    started = []

    def run(name: str) -> subprocess.Popen:
        with open(tmp_path / name, "w") as log:
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "openrlhf_ebpo.cli.data", "difficulty", *map(str, argv)],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_ADDRESS": cluster.address},
                    cwd=tmp_path,
                    start_new_session=True,
                )
            )
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def read_lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def test_killed_and_repeated_every_prompt_is_measured_once(start, tmp_path):
    progress = tmp_path / "out.progress.jsonl"
    process = start("first.log")
    deadline = time.time() + 240
    while not progress.exists() or len(read_lines(progress)) < 20:
        assert process.poll() is None and time.time() < deadline, (tmp_path / "first.log").read_text()[-4000:]
        time.sleep(0.02)
    process.kill()
    process.wait()
    before = read_lines(progress)
    assert len(before) < 480

    process = start("second.log")
    process.wait(240)
    output = (tmp_path / "second.log").read_text()
    assert process.returncode == 0, output[-4000:]
    header, *records = read_lines(progress)
    assert [header, *records][: len(before)] == before
    table = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert sorted(record["id"] for record in records) == sorted(row["id"] for row in table) and len(table) == 480

    by_id = {record["id"]: record for record in records}
    for row in table:
        rewards = [reward for reward in by_id[row["id"]]["rewards"] if reward is not None]
        assert len(by_id[row["id"]]["rewards"]) == N and row["n_rollouts"] == len(rewards)
        assert row["pass_rate"] == (sum(rewards) / len(rewards) if rewards else None)
    assert {row["pass_rate"] for row in table if row["label"] == "d"} == {0}
    assert any(record["errors"] for record in records if record["id"].startswith("c"))
    assert not any(record["errors"] for record in records if not record["id"].startswith("c"))

    # what the reward said, the verdicts on prompts in flight at the kill aside
    verdicts = [json.loads(line) for line in (tmp_path / "verdicts.jsonl").read_text().splitlines()]
    stored = [reward for record in records for reward in record["rewards"] if reward is not None]
    assert 0 <= len(verdicts) - len(stored) <= 300
    assert 0 <= sum(reward for _, reward in verdicts) - sum(stored) <= 300
    assert f"{len(before) - 1} of them measured already" in output and "responses got no reward" in output
    assert (tmp_path / "out.png").stat().st_size > 10_000
