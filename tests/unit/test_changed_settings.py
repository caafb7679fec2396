"""A resume names every setting that has changed, and which of the two values applies."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from checkpoints import save_checkpoint

from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.run.changed_settings import (
    find_changes,
    format_changes,
    optimizer_settings,
    resume,
    schedule_notices,
)
from openrlhf_ebpo.run.resume import groups, newest_complete
from openrlhf_ebpo.run.run_settings import RunSettings

WAS = {
    "data": {"prompt_probs": None},
    "actor": {"adam": {"lr": 1e-6, "betas": [0.9, 0.95]}, "max_norm": 1.0, "lr_scheduler": "cosine"},
    "train": {"seed": 1, "num_episodes": 1},
    "ckpt": {"load_enable": False, "attempt": "a"},
    "logger": {"wandb": {"run_name": "x"}},
}
NOW = {
    "data": {"prompt_probs": None},
    "actor": {"adam": {"lr": 1e-5, "betas": [0.9, 0.95]}, "max_norm": 2.0, "lr_scheduler": "cosine", "new": 1},
    "train": {"seed": 2, "num_episodes": 1},
    "ckpt": {"load_enable": True, "attempt": "b"},
    "logger": {"wandb": {"run_name": "y"}},
}


def test_each_change_says_which_of_the_two_applies():
    found = find_changes(WAS, {}, NOW)
    assert [(each.setting, each.was, each.now, each.applies) for each in found] == [
        ("actor.adam.lr", 1e-6, 1e-5, "checkpoint"),
        ("actor.max_norm", 1.0, 2.0, "command line"),
        ("train.seed", 1, 2, "command line"),
    ]
    lines = "\n".join(format_changes(found))
    assert (
        "--actor.adam.lr was 1e-06, is now 1e-05: 1e-06 applies, which the optimizer in the checkpoint keeps" in lines
    )
    assert "--train.seed was 1, is now 2\n" in f"{lines}\n"
    assert format_changes([]) == [] and find_changes(WAS, {}, WAS) == []


def test_what_the_checkpoint_says_of_its_optimizer_comes_before_the_run():
    (lr, *_) = find_changes(WAS, {"actor.adam.lr": 3e-6, "train.seed": 9, "actor.adam.betas": ["x", 1]}, NOW)
    assert lr.was == 3e-6
    assert "actor.adam.betas" not in [each.setting for each in find_changes(WAS, {"actor.adam.betas": ["x", 1]}, NOW)]


def test_how_often_rollouts_are_logged_is_recorded_and_no_other_setting_of_the_log():
    """`verify` has to know which steps were to be logged."""
    was, now = ({"logger": {"rollouts_every": n, "rollouts_every_x": n}} for n in (1, 2))
    assert [each.setting for each in find_changes(was, {}, now)] == ["logger.rollouts_every"]


def test_a_schedule_of_another_length_jumps_and_says_so(tmp_path):
    """transformers' schedule with the state of a shorter one, and the warning of it."""
    import torch
    from transformers.trainer import get_scheduler

    def build(steps):
        optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=5e-4)
        return optimizer, get_scheduler(
            "cosine_with_min_lr", optimizer, 1, steps, scheduler_specific_kwargs={"min_lr_rate": 0.1}
        )

    (short, schedule), (long, extended) = build(20), build(40)
    for _ in range(20):
        short.step()
        schedule.step()
    long.load_state_dict(short.state_dict())
    extended.load_state_dict(schedule.state_dict())
    assert extended.get_last_lr() == schedule.get_last_lr()
    long.step()
    extended.step()
    assert extended.get_last_lr()[0] > 4 * schedule.get_last_lr()[0]
    differ = find_changes(WAS, {}, {**NOW, "train": {"seed": 1, "num_episodes": 2}})
    (line,) = schedule_notices(differ, "cosine_with_min_lr")
    assert "--train.num_episodes changed the schedule" in line and "jumps" in line
    assert schedule_notices(differ, "constant_with_warmup") == []
    assert schedule_notices(find_changes(WAS, {}, NOW), "cosine") == []


def test_the_optimizers_settings_are_those_that_a_checkpoint_restores():
    names = optimizer_settings({"critic": {"muon": {"lr": 1, "ns_steps": 5}}, **NOW})
    assert set(names) == {"actor.adam.lr", "actor.adam.betas", "critic.muon.lr"}


@pytest.fixture
def command(tmp_path):
    save_checkpoint(tmp_path / "ckpt", 4, settings={"actor.adam.lr": 1e-6})
    write_json(tmp_path / "run" / "run.json", {"args": WAS})

    def args(**ckpt):
        found = json.loads(json.dumps(NOW), object_hook=lambda pairs: SimpleNamespace(**pairs))
        found.ckpt = SimpleNamespace(path=str(tmp_path / "ckpt"), load_enable=True, load_step=None, **ckpt)
        found.logger = SimpleNamespace(run_dir=str(tmp_path / "run"))
        found.algo = SimpleNamespace(advantage=SimpleNamespace(estimator="ebpo"))
        return found

    return args


def run_settings(args, force=False):
    return RunSettings(Path(args.logger.run_dir), Path(args.ckpt.path), resume=True, force=force)


def newest(args):
    return newest_complete(groups(args.ckpt.path, "ebpo"))


def test_what_the_checkpoint_keeps_becomes_the_setting(command):
    args = command()
    row, lines = resume(args, run_settings(args), newest(args))
    assert args.actor.adam.lr == 1e-6 and args.actor.max_norm == 2.0
    assert row["checkpoint"] == "global_step4" and set(row["changed"]) == {
        "actor.adam.lr",
        "actor.max_norm",
        "train.seed",
    }
    assert row["changed"]["actor.max_norm"] == {"was": 1.0, "now": 2.0, "applies": "command line"}
    assert "resuming from global_step4" in lines[0] and len(lines) == 5


def test_a_run_that_is_moved_aside_leaves_the_checkpoints_settings(command):
    args = command()
    row, _ = resume(args, run_settings(args, force=True), newest(args))
    assert set(row["changed"]) == {"actor.adam.lr"} and args.actor.adam.lr == 1e-6


def test_nothing_to_go_on_from_is_no_change(command, tmp_path):
    args = command()
    args.ckpt.path = str(tmp_path / "none")
    row, lines = resume(args, run_settings(args), newest(args))
    assert row == {} and lines == [f"no checkpoint is complete in {args.ckpt.path}: training begins at step 0"]
    assert resume(args, run_settings(args), None) == ({}, [])
