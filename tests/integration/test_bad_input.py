"""Every mistake that is visible at the start is answered at the start, in words; --dry_run and --help teach."""

import json
import subprocess
import sys

import pytest

from openrlhf_ebpo.cli import train_ppo_ray


def write(path, text: str) -> str:
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"data__prompt_dataset": "{tmp}/nowhere.jsonl"}, "--data.prompt_dataset {tmp}/nowhere.jsonl: no such file"),
        ({"data__prompt_dataset": None}, "--data.prompt_dataset is missing"),
        ({"data__label_key": "answer"}, "has no column 'answer' (--data.label_key); its columns are prompt, label"),
        ({"actor__model_name_or_path": "{tmp}/no_model"}, "--actor.model_name_or_path {tmp}/no_model: no such folder"),
        ({"reward__remote_url": "{tmp}/nothing.py"}, "defines no `reward_func`"),
        ({"reward__remote_url": "{tmp}/broken.py"}, "line 1 is not Python"),
        ({"reward__remote_url": None}, "no reward: give --reward.remote_url"),
        ({"rollout__n_samples_per_prompt": 1}, "ebpo needs at least 2"),
        ({"reward__timeout": 0}, "--reward.timeout is 0.0; give a number of seconds above 0"),
        ({"reward__timeout": "nan"}, "--reward.timeout is nan"),
        ({"reward__memory": -1}, "--reward.memory is -1; give megabytes, or 0 for no limit"),
        ({"reward__workers": 0}, "--reward.workers is 0; give 1 or more"),
        ({"logger__rollouts_every": 0}, "--logger.rollouts_every is 0"),
        ({"algo__advantage__ebpo__init_prior": "{tmp}/no.json"}, "init_prior {tmp}/no.json: no such file"),
        ({"algo__advantage__ebpo__init_prior": "{tmp}/broken.py"}, "cannot be read as a prior"),
        ({"vllm__num_engines": None}, "--vllm.num_engines is not set"),
    ],
)
def test_a_mistake_is_named_with_its_flag(run_in_process, command, tmp_path, changes, expected):
    write(tmp_path / "nothing.py", "def reward(queries): return 1\n")
    write(tmp_path / "broken.py", "def reward_func(:\n")
    values = {k: v.format(tmp=tmp_path) if isinstance(v, str) else v for k, v in changes.items()}
    assert expected.format(tmp=tmp_path) in run_in_process(command(tmp_path, **values))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"advantage_estimator": "epbo"}, "there is no estimator 'epbo'. Did you mean ebpo?"),
        ({"algo__advantage__estimater": "ebpo"}, "Did you mean --algo.advantage.estimator"),
        ({"samples_per_prompt": 4}, "--rollout.n_samples_per_prompt"),
    ],
)
def test_a_mistyped_flag_or_estimator_is_answered(command, tmp_path, capsys, changes, expected):
    with pytest.raises(SystemExit) as stopped:
        train_ppo_ray.main(command(tmp_path, **changes))
    assert stopped.value.code == 2
    assert expected in capsys.readouterr().err


def test_a_foreign_run_is_left_alone(run_in_process, command, tmp_path):
    run_dir = tmp_path / "model" / "run"
    run_dir.mkdir(parents=True)
    run = {"schema": 1, "name": "theirs", "status": "complete", "started": "then", "args": {"logger": {}}}
    (run_dir / "run.json").write_text(json.dumps(run))
    error = run_in_process(command(tmp_path))
    assert "holds run 'theirs'" in error and "--force" in error
    assert "a foreign run" in run_in_process(command(tmp_path, ckpt__load_enable=True))
    assert json.loads((run_dir / "run.json").read_text()) == run


def test_help_teaches_our_flags_and_upstreams(capsys):
    with pytest.raises(SystemExit):
        train_ppo_ray.main(["--help"])
    text = capsys.readouterr().out
    for part in ("--algo.advantage.ebpo.history", "--logger.run_dir", "--dry_run", "--rollout.n_samples_per_prompt"):
        assert part in text
    assert "usage: openrlhf-ebpo train [flags]" in text and "example, for one machine" in text


def test_the_console_command_lists_its_commands():
    result = subprocess.run(
        [sys.executable, "-c", "from openrlhf_ebpo.cli import main; main(['--help'])"], capture_output=True, text=True
    )
    assert "openrlhf-ebpo train" in result.stdout and "openrlhf-ebpo sft" in result.stdout


@pytest.fixture
def sums(tmp_path):
    """A real data set of sums: its path and a command's flags for it."""
    rows = [
        {
            "prompt": f"{i} + {i} is? Use \\boxed{{}}.",
            "label": str(2 * i),
            "gsm8k": f"Twice {i}.\n#### {2 * i}",
            "nothing": "",
        }
        for i in range(300)
    ]
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"data__prompt_dataset": path, "data__max_len": 512, "data__max_samples": 300}


def test_a_dry_run_says_what_the_reward_pays(command, tmp_path, capsys, sums):
    bare = (
        "import torch\ndef reward_func(queries, prompts, labels):\n    found = '{%s}' % labels[0] in queries[0]\n   "
        " return torch.tensor([float(found)])\n"
    )
    rewards = {"math": "gsm8k", write(tmp_path / "bare.py", bare): "label"}
    for reward, column in rewards.items():
        train_ppo_ray.main([*command(tmp_path, **sums, reward__remote_url=reward, data__label_key=column), "--dry_run"])
        line = (
            "reward: 256 of 256 labels earn 1 as their own answer, 0 of 256 wrong ones do, an empty response earns 0\n"
        )
        out = capsys.readouterr().out
        assert line in out, out[-1500:]


@pytest.mark.parametrize("dry_run", [True, False])
def test_labels_and_functions_that_no_training_can_use_are_refused_before_it_starts(
    run_in_process, command, tmp_path, sums, dry_run
):
    signature = write(tmp_path / "signature.py", "def reward_func(prompts, completions): return 1.0\n")
    for changes, expected in (
        ({"reward__remote_url": "math", "data__label_key": "nothing"}, "300 of 300 labels (column 'nothing'"),
        ({"reward__remote_url": signature}, "reward_func(prompts, completions) cannot be called with queries, prompts"),
    ):
        said = run_in_process([*command(tmp_path, **sums | changes), *(["--dry_run"] if dry_run else [])])
        assert expected in said
        assert not (tmp_path / "model" / "run").exists()
