"""`train --dry_run --sample` on the real stack."""

import json
import shutil

import pytest

pytestmark = pytest.mark.nightly  # daily: unit/test_prompt_sets.py

REWARD = """
def reward_func(queries, prompts, labels, **kwargs):
    assert queries[0].startswith(prompts[0]) and prompts[0].startswith("<|endoftext|>")
    return {"rewards": 0.0, "extra_logs": {"own_no_answer": 1.0, "length": len(queries[0])}}
"""


def test_a_sample_is_generated_and_graded_as_in_training_and_nothing_is_trained(train, command, workshop, tmp_path):
    model = tmp_path / "begins"
    shutil.copytree(workshop / "tied", model)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "bos_token": "<|endoftext|>"}))
    (tmp_path / "reward.py").write_text(REWARD)
    changes = {
        "actor__model_name_or_path": model,
        "reward__remote_url": tmp_path / "reward.py",
        "data__input_template": "<|endoftext|>{}",
    }
    out = train([*command(tmp_path, **changes), "--dry_run", "--sample", "3"]).succeed()
    assert "begins every text" not in out
    for number, prompt in enumerate(("apx", "apy", "apz"), 1):
        assert f"prompt {number}  <|endoftext|>{prompt}\n" in out
    assert "sample: 0 of 3 have an answer that the reward reads; 0 of 3 pass, mean reward 0;" in out
    assert "the reward's own measures, on average: length " in out and "Ask for it in the prompt" in out
    assert "no training was started" in out and not (tmp_path / "model").exists()
