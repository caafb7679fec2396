"""--data.order adaptive beside settings that it cannot work with, and beside a run of another order."""

import json

import pytest

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.training.prompts import check_flags


@pytest.fixture
def values(tmp_path):
    return {
        "data.order": "adaptive",
        "reward.remote_url": "reward.py",
        "train.agent_func_path": None,
        "algo.dynamic_filtering_enable": False,
        "data.coverage": 2,
        "rollout.batch_size": 8,
        "rollout.vllm_generate_batch_size": None,
        "ckpt.load_enable": True,
        "logger.run_dir": str(tmp_path),
    }


def write_run(values, order: str | None) -> None:
    with open(f"{values['logger.run_dir']}/run.json", "w") as file:
        json.dump({"schema": 1, "args": {"data": {"order": order} if order else {}}}, file)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"reward.remote_url": None}, r"a reward model's \(--reward.model_name_or_path\) come later"),
        (
            {"algo.dynamic_filtering_enable": True},
            "--algo.dynamic_filtering_enable drops prompts.*leave one of the two",
        ),
        ({"data.coverage": 1}, "--data.coverage is 1: .* Give 2 or more"),
        ({"rollout.vllm_generate_batch_size": 16}, "vllm_generate_batch_size 16 is above --rollout.batch_size 8"),
    ],
)
def test_what_it_cannot_work_with_is_named(values, changes, expected):
    check_flags({**values, **changes, "data.order": "shuffle"})
    with pytest.raises(UsageError, match=expected):
        check_flags({**values, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"reward.remote_url": None, "train.agent_func_path": "agent.py"},
        {"rollout.vllm_generate_batch_size": 8},
    ],
)
def test_what_it_can_work_with_passes(values, changes):
    check_flags({**values, **changes})


@pytest.mark.parametrize(
    ("was", "now", "refused"),
    [
        ("shuffle", "adaptive", True),
        (None, "adaptive", True),  # a run of before there was the flag
        ("adaptive", "as_is", True),
        ("adaptive", "adaptive", False),
        ("shuffle", "as_is", False),
    ],
)
def test_a_run_goes_on_in_its_own_order(values, was, now, refused):
    write_run(values, was)
    values["data.order"] = now
    if refused:
        with pytest.raises(UsageError, match=f"--data.order is {now}, and was {was or 'shuffle'}"):
            check_flags(values)
    check_flags({**values, "data.order": now, "ckpt.load_enable": False})
    if not refused:
        check_flags(values)
