"""Every training of scripts/gpu_check.sh passes the checks of its command, as for a machine with GPUs."""

import sys
from pathlib import Path

import pytest
from launching import dry_runs

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
from gpu_commands import COMMON, TRAININGS

import overhead
from gpu import modes
from lab import training
from openrlhf_ebpo.quickstart import tasks, tiny_model


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """Each training's arguments and notices, from its dry run."""
    folder = tmp_path_factory.mktemp("gpu_check")
    model = folder / "model"
    rows = tasks.split({"train": 64})
    tasks.write(model / "data", rows)
    tiny_model.build(
        model / "warm_start", [tasks.TEMPLATE.format(row["prompt"]) + row["label"] for row in rows["train"]]
    )
    argvs = {name: training.command(modes.flags_of(name, model, folder / name)) for name in modes.MODES}
    training.prepare(folder, 1)
    pair = overhead.Pair(40, 64, 8, 64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "is_cpu_stack", lambda: False)
        argvs |= {arm: training.command(pair.flags(folder, folder / arm, arm)) for arm in overhead.ARMS}
    tiny = {name: training.command(training.flags(folder, folder / name, "ebpo")) for name in TRAININGS}
    argvs |= {name: [*tiny[name], *COMMON, *own] for name, own in TRAININGS.items()}
    answers = dry_runs([[*words[3:], "--assume_cuda", "80"] for words in argvs.values()])
    return dict(zip(argvs, answers, strict=True))


@pytest.mark.parametrize("name", [*modes.MODES, *overhead.ARMS, *TRAININGS])
def test_the_command_is_accepted_for_one_or_two_gpus(checked, name):
    answer = checked[name]
    assert "error" not in answer, answer.get("error")
    needed = modes.MODES[name].gpus if name in modes.MODES else 1
    assert f"checked as for a machine with GPUs: {needed}, of 80 GB" in answer["notices"]


def test_nothing_is_changed_for_a_machine_without_cuda(checked):
    colocate = checked["colocate"]["args"]
    assert colocate["vllm"]["enable_sleep"] and colocate["ds"]["enable_sleep"]
    assert {answer["args"]["vllm"]["sync_backend"] for answer in checked.values()} == {"nccl"}
    assert not any("no CUDA" in answer["notices"] for answer in checked.values())


def test_both_arms_of_the_timing_differ_in_the_estimator_and_its_log_alone(checked):
    ours, theirs = (checked[arm]["args"] for arm in ("on", "off"))
    assert ours["actor"]["adam"]["lr"] == theirs["actor"]["adam"]["lr"] == 0
    differing = {section for section in ours if ours[section] != theirs.get(section)}
    assert differing == {"algo", "ckpt", "logger"}
