"""`data difficulty` on the real stack: killed, repeated, and every prompt is measured once."""

import json
import time

import pyarrow.parquet as pq
import pytest
from patience import seconds

pytestmark = (
    pytest.mark.nightly
)  # daily: unit/test_data_difficulty.py has the records, integration/test_eval.py the same engines, killed

# about half pass; d's always fail. It notes its verdicts, so that the test knows them from elsewhere.
REWARD = """
import json, os
def reward_func(queries, prompts, labels, **kwargs):
    answer = queries[0][len(prompts[0]):]
    if labels[0] == "c" and sum(map(ord, answer)) % 11 == 0: raise ValueError("no grade")
    reward = float(sum(map(ord, answer)) % 2 == 0 and labels[0] != "d")
    with open(os.path.join(os.path.dirname(__file__), "verdicts.jsonl"), "a") as file:
        file.write(json.dumps([os.getpid(), reward]) + "\\n")
    return {"rewards": reward, "scores": reward}
"""
N = 4


@pytest.fixture
def start(start_command, workshop, tmp_path):
    """Start `data difficulty`."""
    rows = [json.loads(line) for line in (workshop / "prompts.jsonl").read_text().splitlines()]
    rows = [{"id": f"{row['label']}{i}", "question": row["prompt"], **row} for i, row in enumerate(rows * 5)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "reward.py").write_text(REWARD)
    argv = [
        "difficulty",
        "--input",
        "in.jsonl",
        "--output",
        "out.parquet",
        "--actor.model_name_or_path",
        workshop / "tied",
    ]
    argv += ["--reward.remote_url", "reward.py", "--rollout.n_samples_per_prompt", N, "--rollout.max_new_tokens", 8]
    argv += ["--vllm.num_engines", 1]
    return lambda log: start_command("openrlhf_ebpo.cli.data", argv, tmp_path / log)


def read_lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def test_killed_and_repeated_every_prompt_is_measured_once(start, tmp_path, workshop):
    progress = tmp_path / "out.progress.jsonl"
    process = start("first.log")
    deadline = time.time() + seconds(240)
    while not progress.exists() or len(read_lines(progress)) < 20:
        assert process.poll() is None and time.time() < deadline, (tmp_path / "first.log").read_text()[-4000:]
        time.sleep(0.02)
    process.kill()
    process.wait()
    before = read_lines(progress)
    assert len(before) < 480
    first_ones = {process for process, _ in read_lines(tmp_path / "verdicts.jsonl")}

    process = start("second.log")
    process.wait(seconds(240))
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

    # what the reward said the second time is what was missing, and nothing else
    verdicts = [reward for process, reward in read_lines(tmp_path / "verdicts.jsonl") if process not in first_ones]
    missing = [reward for record in records[len(before) - 1 :] for reward in record["rewards"] if reward is not None]
    assert sorted(verdicts) == sorted(missing)
    assert f"{len(before) - 1} of them measured already" in output and "responses got no reward" in output
