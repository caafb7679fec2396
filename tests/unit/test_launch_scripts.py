"""Every model of the launch scripts passes --dry_run, and the cluster scripts start what they say. What the methods set
in each order: test_launch_methods.py."""

import contextlib
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from launching import CLEAN, LAUNCH, METHODS, MODELS, PUBLISHED, ROOT, bash, composed, dry_runs, furnish, value
from patience import seconds, wait_until

GROUPS = (4, 8, 16, 32)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return furnish(tmp_path_factory.mktemp("launch"))


@pytest.fixture(scope="module")
def answers(place) -> dict:
    """(model, method, order, G, GPU_GB) -> what the dry run said."""
    cases = [(model, "ebpo", order, 4, 141) for model in MODELS for order in ("shuffle", "difficulty")]
    cases += [("qwen3_8b", "ebpo", "topic", group, 141) for group in GROUPS]
    cases += [(model, "grpo", "shuffle", 4, memory) for model in MODELS for memory in (141, 80)]
    settings = [
        {"DATA_DIR": place / "data", "RUN_DIR": place / "run", "MODEL_PATH": place / "models" / model, "GPU_GB": memory}
        | ({"NODES": 1} if memory == 80 else {})
        for model, *_, memory in cases
    ]
    argvs = [
        composed(model, method, group, "--order", order, "--assume_cuda", memory, **env)
        for (model, method, order, group, memory), env in zip(cases, settings, strict=True)
    ]
    return dict(zip(cases, dry_runs(argvs), strict=True))


@pytest.fixture
def accepted(answers):
    """Upstream's resolved arguments of a dry run that must have passed."""

    def look_up(model: str, method: str, order: str = "shuffle", group: int = 4, memory: int = 141) -> dict:
        answer = answers[model, method, order, group, memory]
        assert "error" not in answer, answer["error"]
        return answer["args"]

    return look_up


# --- every combination


@pytest.mark.parametrize("order", ["shuffle", "difficulty"])
@pytest.mark.parametrize("model", MODELS)
def test_every_model_passes_the_dry_run_with_the_papers_settings(model, order, accepted, place):
    """unit/test_launch_methods.py has the flags that all models share."""
    args = accepted(model, "ebpo", order)
    assert args["actor"]["num_nodes"] * args["actor"]["num_gpus_per_node"] == 32
    assert args["vllm"]["num_engines"] * args["vllm"]["tensor_parallel_size"] == 32
    assert args["data"]["apply_chat_template"] == (model != "llama3_1_8b")
    assert args["eval"]["dataset"] == str(place / "data" / "validation.parquet")
    assert args["ckpt"]["save_hf"] and args["ckpt"]["load_enable"]
    assert args["reward"]["remote_url"][0].endswith("math.py")
    data = "train" if order == "shuffle" else f"difficulty_order_{model}"
    assert args["data"]["prompt_dataset"] == str(place / "data" / f"{data}.parquet")


@pytest.mark.parametrize("group", GROUPS)
def test_an_optimizer_step_has_128_prompts_at_every_group_size(group, accepted):
    args = accepted("qwen3_8b", "ebpo", "topic", group)
    assert args["rollout"]["n_samples_per_prompt"] == group
    assert args["train"]["batch_size"] == 128 * group


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("memory", [141, 80])
def test_a_dynamic_batch_holds_the_longest_sequence(model, memory, accepted):
    args = accepted(model, "grpo", "shuffle", 4, memory)
    assert args["train"]["max_tokens_per_gpu"] >= args["data"]["max_len"]  # else one sequence is more than is planned


def test_run_sh_starts_the_training_with_the_flags_that_it_prints(stand_ins, place, answers):
    call, log = stand_ins
    env = {"NODES": 1, "DATA_DIR": place / "data"}
    words = ("qwen3_8b", "ebpo", 4, "--order", "topic", "--dry_run")
    started = call("run.sh", *words, **env)
    assert started.returncode == 0 and "qwen3_8b-ebpo-g4-topic: prompts by topic" in started.stdout, started.stderr
    flags = " ".join(composed(*words, **env))
    *_, training = log()
    assert training == f"python -m openrlhf_ebpo.cli.train_ppo_ray {flags} RAY_ADDRESS="
    said = answers["qwen3_8b", "ebpo", "topic", 4, 141]["notices"]
    assert "dry run: flags, files and settings are fine" in said


# --- run.sh


def test_models_are_those_of_the_paper():
    assert set(MODELS) == set(PUBLISHED)


def test_the_document_has_every_method_and_its_commands_run():
    text = (ROOT / "docs" / "paper.md").read_text()
    assert [name for name in (*MODELS, *METHODS) if f"`{name}`" not in text] == []
    lines = [line.partition("#")[0].split() for line in text.splitlines() if "bash scripts/launch/run.sh qwen" in line]
    assert len(lines) >= 2
    for words in lines:
        composed(*words[words.index("scripts/launch/run.sh") + 1 :])


@pytest.mark.parametrize("words", [(), ("--help",)])
def test_without_arguments_it_teaches(words):
    result = bash("run.sh", *words)
    assert result.returncode == 0
    for name in (*MODELS, *METHODS, "topic_order.parquet", "NODES=4", "GPU_GB", "--dry_run", "--order"):
        assert name in result.stdout


def test_later_flags_and_variables_win():
    argv = composed(
        "qwen3_8b", "grpo", 8, "--actor.adam.lr", "2e-6", NODES=1, MODEL_PATH="Qwen/Qwen3-8B-Base", CHAT_TEMPLATE=0
    )
    assert value(argv, "--actor.adam.lr") == "2e-6"
    assert value(argv, "--actor.model_name_or_path") == "Qwen/Qwen3-8B-Base"
    assert value(argv, "--vllm.num_engines") == "8"
    assert "--data.apply_chat_template" not in argv
    assert "--data.input_template" not in argv
    assert value(composed("llama3_1_8b", "grpo", 8), "--data.input_template") == "<|begin_of_text|>{}"
    assert "--data.apply_chat_template" in composed("llama3_1_8b", "grpo", 8, CHAT_TEMPLATE=1)


def test_words_with_spaces_stay_one_word():
    assert composed("qwen3_8b", "grpo", 4, "--data.input_template", "Q: {} A:")[-1] == "Q: {} A:"


def test_eighty_gb_gpus_get_their_own_settings():
    argv = composed("qwen3_14b", "grpo", 4, GPU_GB=80, NODES=1)
    assert (value(argv, "--vllm.num_engines"), value(argv, "--vllm.tensor_parallel_size")) == ("4", "2")
    assert "--ds.adam_offload" not in argv
    assert "--ds.adam_offload" in composed("qwen3_14b", "grpo", 4, GPU_GB=80, NODES=1, GPUS_PER_NODE=4)


def test_the_memory_of_the_gpus_comes_from_nvidia_smi(tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 81559; echo 81559\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    path = f"{tmp_path}:{CLEAN['PATH']}"
    assert value(composed("qwen3_8b", "grpo", 4, PATH=path), "--train.max_tokens_per_gpu") == "12288"
    assert value(composed("qwen3_8b", "grpo", 4, PATH=path, GPU_GB=141), "--train.max_tokens_per_gpu") == "24576"
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'; exit 9\n")
    assert value(composed("qwen3_8b", "grpo", 4, PATH=path), "--train.max_tokens_per_gpu") == "24576"


def test_a_methods_flags_alone():
    result = bash("run.sh", "--print-method", "ebpo", 8, "--order", "topic")
    assert result.returncode == 0
    argv = result.stdout.splitlines()
    assert value(argv, "--rollout.n_samples_per_prompt") == "8"
    assert value(argv, "--data.order") == "as_is"
    assert "--data.prompt_dataset" not in argv and "--actor.num_nodes" not in argv


@pytest.mark.parametrize(
    ("words", "env", "said"),
    [
        (("qwen9", "grpo", 4), {}, ["no such model: qwen9", *MODELS]),
        (("qwen3_8b", "gpro", 4), {}, ["no such method: gpro", *METHODS]),
        (("qwen3_8b", "grpo"), {}, ["MODEL, METHOD and G come first"]),
        (("qwen3_8b", "--dry_run", "grpo", "4"), {}, ["MODEL, METHOD and G come first, then flags"]),
        (("qwen3_8b", "grpo", "four"), {}, ["G is 'four'", "2 or more"]),
        (("qwen3_8b", "grpo", 1), {}, ["G is '1'", "2 or more"]),
        (("qwen3_8b", "grpo", 4, "--order=random"), {}, ["--order is 'random'", "shuffle topic difficulty"]),
        (("qwen3_8b", "grpo", 4, "--order"), {}, ["--order needs a value"]),
        (("qwen3_8b", "grpo", 4, "--order="), {}, ["--order needs a value"]),
        (("qwen3_8b", "grpo", 4, "--order", "x; touch y"), {}, ["--order is 'x; touch y'"]),
        (("qwen3_8b", "grpo", 4), {"NODES": "two"}, ["NODES is 'two'"]),
        (("qwen3_8b", "grpo", 4), {"NODES": "08"}, ["NODES is '08'"]),
        (("qwen3_8b", "grpo", 4), {"NODES": 3}, ["512 responses cannot be split over 24 GPUs"]),
        (("qwen3_14b", "grpo", 4), {"NODES": 1, "GPUS_PER_NODE": 1, "GPU_GB": 80}, ["1 GPUs", "engines of 2"]),
        (("qwen3_8b", "grpo", 4), {}, ["nowhere/train.parquet is missing", "data prepare --output nowhere"]),
        (
            ("qwen3_8b", "ebpo", 4, "--order", "topic"),
            {},
            ["data topics --input nowhere/train.parquet", "data order --by topic"],
        ),
        (
            ("llama3_1_8b", "grpo", 4, "--order=difficulty"),
            {},
            [
                "nowhere/difficulty_order_llama3_1_8b.parquet",
                "data difficulty",
                "--actor.model_name_or_path meta-llama/Llama-3.1-8B",
            ],
        ),
    ],
)
def test_mistakes_are_named_with_their_remedy(words, env, said):
    result = bash("run.sh", *words, **{"DATA_DIR": "nowhere", **env})
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    for text in said:
        assert text in result.stderr


@pytest.mark.parametrize("order", ["shuffle", "topic", "difficulty"])
def test_the_commands_that_make_missing_data_are_ones_that_exist(order):
    from openrlhf_ebpo.cli import data as data_command

    words = ("qwen3_8b", "ebpo", 4, "--order", order)
    lines = bash("run.sh", *words, DATA_DIR="nowhere").stderr.splitlines()[1:]
    assert lines
    for line in lines:
        program, data, step, *flags = shlex.split(line)
        assert (program, data) == ("openrlhf-ebpo", "data")
        parsed = parsed_by(data_command, step, flags)
        assert "nowhere/" in f"{parsed.output}/"


def parsed_by(data_command, step: str, flags: list[str]):
    import argparse
    import importlib

    assert step in data_command.COMMANDS
    parser = argparse.ArgumentParser()
    importlib.import_module(f"openrlhf_ebpo.data.{step}").add_flags(parser)
    return parser.parse_args(flags)


def test_data_of_the_users_own_is_not_asked_for(tmp_path):
    result = bash("run.sh", "qwen3_8b", "grpo", 4, "--data.prompt_dataset", "mine.jsonl", DATA_DIR="nowhere")
    assert "train.parquet" not in result.stderr
    assert "nowhere/validation.parquet is missing (--eval.dataset)" in result.stderr


# --- several nodes: stand-ins for commands that are not here, or would start a cluster, note how they are called


@pytest.fixture
def stand_ins(tmp_path):
    """log() lists the calls so far. `python` fails on a dry run if refuse is set; ray and srun stay until ended."""
    folder, notes = tmp_path / "bin", tmp_path / "calls"
    folder.mkdir()
    note = f'#!/usr/bin/env bash\necho "$(basename "$0") $* RAY_ADDRESS=${{RAY_ADDRESS-}}" >>{notes}\n'
    stay = f"echo $$ >>{tmp_path}/pids\nexec sleep 60\n"
    texts = {
        "python": note + '[[ "$*" != *--dry_run* || -z "${REFUSE-}" ]] || { echo "error: refused" >&2; exit 1; }\n',
        "ray": note + '[ "$1" = job ] || {\n' + stay + "}\n",
        "srun": note + stay,
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)

    def call(script, *words, **env):
        return bash(script, *words, **{"PATH": f"{folder}:{CLEAN['PATH']}", **env})

    def log() -> list[str]:
        return notes.read_text().splitlines() if notes.exists() else []

    return call, log


@pytest.fixture
def job(place) -> dict:
    return {
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JOB_NUM_NODES": 2,
        "SLURM_GPUS_PER_NODE": "h200:8",
        "SLURM_CPUS_ON_NODE": 96,
        "SLURM_SUBMIT_DIR": ROOT,
        "SLURMD_NODENAME": "n1",
        "HEAD_IP": "10.0.0.1",
        "DATA_DIR": place / "data",
    }


def running(pids: Path) -> list[psutil.Process]:
    """List what is left of them after a moment: a signal takes one to arrive."""
    found = []
    for pid in map(int, pids.read_text().split()):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    left = psutil.wait_procs(found, timeout=seconds(5))[1]
    return [p for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]  # where no init collects them


def test_a_slurm_job_checks_then_starts_ray_on_all_nodes_then_trains(stand_ins, job, tmp_path):
    call, log = stand_ins
    result = call("slurm.sh", "qwen3_8b", "ebpo", 4, "--order", "topic", "--train.seed", 7, **job)
    assert result.returncode == 0, result.stderr
    calls = [line for line in log() if not line.startswith("python -c")]
    trainings = [line for line in calls if "openrlhf_ebpo.cli.train_ppo_ray" in line]
    assert calls[0] == trainings[0] and "--dry_run RAY_ADDRESS=" in trainings[0]
    assert calls[-1] == trainings[1] and trainings[1].endswith("--train.seed 7 RAY_ADDRESS=10.0.0.1:6379")
    assert "--actor.num_nodes 2 --actor.num_gpus_per_node 8" in trainings[1]
    assert any(
        line.startswith("ray start --head --node-ip-address 10.0.0.1 --port 6379 --num-gpus 8") for line in calls
    )
    (worker,) = [line for line in calls if line.startswith("srun")]
    assert "--nodes=1 --ntasks=1 --ntasks-per-node=1 --gpus-per-node=8 --exclude=n1 --cpus-per-task=96" in worker
    assert "ray start --address 10.0.0.1:6379" in worker
    assert any("wait_for_gpus.py 10.0.0.1:6379 16 300" in line for line in calls[1:-1])
    assert not running(tmp_path / "pids")  # Ray is ended with the job


WAITS_FOR_A_SIGNAL = """#!/usr/bin/env bash
[[ "$*" == *train_ppo_ray* && "$*" != *--dry_run* ]] || exit 0
trap 'echo USR1 >>"$NOTES"' USR1
trap 'echo TERM >>"$NOTES"; exit 75' TERM
echo training >>"$NOTES"
while :; do sleep 0.05; done
"""


def test_a_slurm_job_passes_its_signals_on_and_waits_for_the_training(stand_ins, job, tmp_path):
    """Slurm signals the batch script alone (--signal=B:)."""
    (tmp_path / "bin" / "python").write_text(WAITS_FOR_A_SIGNAL)
    notes = tmp_path / "notes"
    env = {**CLEAN, **{name: str(value) for name, value in job.items()}, "NOTES": str(notes)}
    env["PATH"] = f"{tmp_path / 'bin'}:{CLEAN['PATH']}"
    command = ["env", "--default-signal=USR1,TERM", "bash", str(LAUNCH / "slurm.sh"), "qwen3_8b", "grpo", "4"]
    process = subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.DEVNULL)
    for number, note in ((None, "training"), (signal.SIGUSR1, "USR1"), (signal.SIGTERM, "TERM")):
        if number:
            process.send_signal(number)
        wait_until(lambda: notes.exists() and note in notes.read_text())  # noqa: B023  called here
    assert process.wait(seconds(60)) == 75
    assert not running(tmp_path / "pids")  # Ray is ended after the training


def test_a_ray_that_did_not_start_is_waited_for_as_long_as_was_said():
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        words = [f"127.0.0.1:{taken.getsockname()[1]}", "8", "1"]
        command = [sys.executable, LAUNCH / "wait_for_gpus.py", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds(60))
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: after 1 s the Ray cluster at {words[0]} has 0 of 8 GPUs")


def test_one_node_needs_no_srun(stand_ins, job):
    call, log = stand_ins
    assert call("slurm.sh", "qwen3_8b", "grpo", 4, **{**job, "SLURM_JOB_NUM_NODES": 1}).returncode == 0
    assert not any(line.startswith("srun") for line in log())
    assert "--actor.num_nodes 1 " in log()[-1]


def test_a_mistake_ends_the_slurm_job_before_ray_starts(stand_ins, job):
    call, log = stand_ins
    result = call("slurm.sh", "qwen3_8b", "grpo", 4, REFUSE=1, **job)
    assert result.returncode != 0 and "error: refused" in result.stderr
    assert not any(line.startswith(("ray", "srun")) for line in log())
    assert "no such method: gpro" in call("slurm.sh", "qwen3_8b", "gpro", 4, **job).stderr


def test_the_slurm_script_says_what_it_would_run_and_where_it_belongs(tmp_path):
    shown = bash(
        "slurm.sh", "--print", "qwen3_8b", "grpo", 4, "--data.input_template", "a b", NODES=4, HEAD_IP="10.0.0.1"
    )
    lines = shown.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["bash", "ray", "srun", "python", "env"]
    assert lines[-1].split()[:2] == ["env", "RAY_ADDRESS=10.0.0.1:6379"] and "a\\ b" in lines[-1]
    assert "submit it: sbatch" in bash("slurm.sh", "qwen3_8b", "grpo", 4).stderr
    elsewhere = bash("slurm.sh", "qwen3_8b", "grpo", 4, SLURM_SUBMIT_DIR=tmp_path, SLURM_JOB_NODELIST="n1")
    assert "submit from the project's root" in elsewhere.stderr
    assert "sbatch scripts/launch/slurm.sh MODEL METHOD G" in bash("slurm.sh", "--help").stdout


def test_a_ray_job_runs_run_sh_in_the_project_with_the_callers_variables(stand_ins):
    call, log = stand_ins
    result = call("ray_job.sh", "qwen3_8b", "grpo", 8, "--train.seed", 7, NODES=2, GPU_GB=80, DATA_DIR="/shared/dapo")
    assert result.returncode == 0, result.stderr
    start = f"ray job submit -- env -C {ROOT} NODES=2 GPU_GB=80 DATA_DIR=/shared/dapo bash scripts/launch/run.sh"
    assert log()[-1].startswith(f"{start} qwen3_8b grpo 8 --train.seed 7")
    words = log()[-1].partition(" -- ")[2].partition(" RAY_ADDRESS=")[0].split()
    words.insert(words.index("scripts/launch/run.sh") + 1, "--print")
    printed = subprocess.run(words, capture_output=True, text=True, env=CLEAN, cwd="/")
    assert value(printed.stdout.splitlines(), "--eval.dataset") == "/shared/dapo/validation.parquet"


def test_a_ray_job_refuses_what_rays_shell_would_break(stand_ins):
    call, log = stand_ins
    result = call("ray_job.sh", "qwen3_8b", "grpo", 8, "--data.input_template", "a b")
    assert result.returncode == 2 and "'a b' cannot pass" in result.stderr
    assert "no such model" in call("ray_job.sh", "qwen", "grpo", 8).stderr
    assert not log()
    assert call("ray_job.sh", "--print", "qwen3_8b", "grpo", 8).stdout.startswith("ray job submit -- env -C ")
    assert "ray start --head" in bash("ray_job.sh").stdout


# --- the scripts themselves


@pytest.mark.parametrize("path", sorted(LAUNCH.rglob("*.sh")), ids=lambda path: path.stem)
def test_scripts_are_well_formed(path):
    assert subprocess.run(["bash", "-n", path]).returncode == 0
    if path.parent == LAUNCH and path.stem != "paper":  # sourced
        assert "\nset -euo pipefail\n" in path.read_text()
    else:
        assert path.read_text().splitlines()[1].startswith("# ")  # the description that --help shows


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_shellcheck_finds_nothing():
    scripts = sorted(map(str, LAUNCH.rglob("*.sh")))
    result = subprocess.run(["shellcheck", "-x", *scripts], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_a_ray_job_without_a_cluster_says_so_in_one_line(stand_ins, tmp_path):
    call, _ = stand_ins
    (tmp_path / "bin" / "ray").write_text("#!/bin/bash\necho Traceback >&2\nexit 1\n")
    result = call("ray_job.sh", "qwen3_8b", "grpo", 8, RAY_ADDRESS="http://head:8265")
    assert result.returncode == 2 and result.stderr.startswith("error: no Ray cluster takes jobs at http://head:8265.")
    assert "Traceback" not in result.stderr
