"""A withdrawn command or flag answers with one line that says what to do instead."""

import pytest
from commands import write_rows
from evaluated import write_model

from openrlhf_ebpo import cli
from openrlhf_ebpo.retired import RETIRED

EVAL = ["eval", "--model", "m", "--output_dir", "out", "--template", "raw", "--no-chat_template", "--tasks", "aime24"]
DIFFICULTY = ["data", "difficulty", "--input", "q.jsonl", "--output", "o.parquet", "--model", "m", "--max_len", "9999"]
TYPED = {  # a command that has the withdrawn word
    "explain": ["explain", "no", "token"],
    "--actor.loss_mean": ["train", "--actor.loss_mean", "step"],
    "--extraction": ["eval", "score", "--input", "a.jsonl", "--output", "b.jsonl", "--extraction", "released"],
    "--umap": ["data", "topics", "--input", "a.jsonl", "--output", "b.jsonl", "--umap"],
    "dapo": ["data", "difficulty", "--input", "q.jsonl", "--output", "b.jsonl", "--model", "m", "--reward", "dapo"],
    "released": [*EVAL, "--protocol", "released"],
    "gym": ["data", "gym", "chain_sum", "--output", "o.jsonl"],
    "reasoning_gym": [*EVAL, "--tasks", 'reasoning_gym:chain_sum:{"size": 9, "seed": 1}'],
    "gpqa_diamond": [*EVAL, "--tasks", "gpqa_diamond"],
    "multiple choice": [*EVAL, "--tasks", "file:q.jsonl"],
    **{name: [*EVAL, name, "3"] for name in ("--shots", "--shots_file", "--strip_think")},
    **{name: ["replay", ".", "--estimator", name] for name in ("bnpo", "dbb", "ha_dw", "mc_grpo", "ngrpo", "spo")},
    "--preset": ["replay", ".", "--preset", "robust"],
    "math_agent.py": [*DIFFICULTY, "--agent", "math"],
    "openai:": [*EVAL, "--model", "openai:http://me:secret@host/v1#m"],
    **{name: [*EVAL, name, "3"] for name in ("--api_key_env", "--concurrency", "--request_timeout", "--retries")},
}


ELSEWHERE = ("the setting preset", "EBPO_SPACE_ALLOW")  # test_running.py, test_space_runs.py


@pytest.mark.parametrize("name", [name for name in RETIRED if name not in ELSEWHERE])
def test_a_withdrawn_name_answers_with_its_advice(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "m")
    write_rows(tmp_path / "q.jsonl", [{"question": "How long?", "choices": ["1 km", "2 km"], "answer": 1}])
    with pytest.raises(SystemExit) as ended:
        cli.main(TYPED.get(name) or ["train", name, "x"])
    text = capsys.readouterr().err or str(ended.value.code)
    lines = [line for line in text.splitlines() if f"{name} was withdrawn: {RETIRED[name]}" in line]
    assert ended.value.code and len(lines) == 1 and len(text.splitlines()) == 1, text
    assert "secret" not in text
