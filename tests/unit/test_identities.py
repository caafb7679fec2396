"""A repeated command compares every flag that its result depends on with the existing result or progress."""

import argparse
from pathlib import Path

import pytest

from openrlhf_ebpo.data import difficulty, prepare, topics


def identity_of_difficulty(args: argparse.Namespace) -> dict:
    return difficulty.DifficultySettings.from_args(args).identity()


IDENTITIES = {
    difficulty: identity_of_difficulty,
    prepare: prepare.settings_of,
    topics: topics.settings_of,
}
COMPARED = {
    difficulty: "actor.model_name_or_path reward.remote_url train.agent_func_path rollout.n_samples_per_prompt "
    "rollout.temperature rollout.top_p rollout.max_new_tokens data.max_len data.apply_chat_template "
    "data.template_kwargs data.input_template",
    prepare: "input subset split prompt_column answer_column template system validation seed",
    topics: "input model k",
}


def flags(module, folder: Path) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    module.add_flags(parser)
    for action in parser._actions:
        action.required = False
    args = parser.parse_args([])
    args.input = str(folder / "a.jsonl")
    return args


def other_value(name: str, value, folder: Path):
    """Of the same kind, and a file where one has to exist."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if name == "data.template_kwargs":
        return ["effort=3"]
    return str(folder / "b.jsonl")


@pytest.mark.parametrize("module", IDENTITIES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_every_flag_that_changes_the_result_is_compared_and_no_other(module, tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text(name)
    args, identity, found = flags(module, tmp_path), IDENTITIES[module], set()
    setattr(args, difficulty.MODEL if module is difficulty else "model", "model")
    for name, value in vars(args).items():
        base = vars(args) | ({"data.apply_chat_template": True} if name == "data.template_kwargs" else {})
        changed = {**base, name: other_value(name, value, tmp_path)}
        found |= {name} if len({str(identity(argparse.Namespace(**each))) for each in (base, changed)}) > 1 else set()
    assert found == set(COMPARED[module].split())


@pytest.mark.parametrize("flag", ["reward.remote_url", "train.agent_func_path"])
def test_a_file_that_was_edited_is_another_one(tmp_path, flag):
    args = flags(difficulty, tmp_path)
    setattr(args, difficulty.MODEL, "model")
    setattr(args, flag, str(tmp_path / "a.py"))
    (tmp_path / "a.py").write_text("before")
    before = identity_of_difficulty(args)
    (tmp_path / "a.py").write_text("after")
    assert identity_of_difficulty(args) != before
