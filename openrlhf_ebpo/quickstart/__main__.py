"""Warm start, EBPO training, evaluation: `python -m openrlhf_ebpo.quickstart [RUN_DIR] [--estimator NAME] [--force]`.

RUN_DIR/
  data/ base/ warm_start/     tasks, random model, model after train_sft
  checkpoints/ model/         DeepSpeed checkpoints, the trained model
  run/                        the run directory: metrics, rollouts, prior, evaluations, training.png
  logs/                       full output of each stage
  result.json                 written last: the run is finished

Every stage whose result is there is passed over, so a second call goes on where the first stopped.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.quickstart import tasks
from openrlhf_ebpo.record.run_log import move_aside, read_metrics, read_rollouts, read_run
from openrlhf_ebpo.seams.stack import is_cpu_stack

STEPS = 120
PROMPTS_PER_STEP = 64
N_SAMPLES_PER_PROMPT = 4
WARM_START_BATCH = 32
WARM_START_EXPORT_EVERY = 25  # optimizer steps; success grows from 0.1 to 0.9 within about 200
WARM_START_SUCCESS = 0.3  # solves some tasks, leaves others to learn
SIZES = {"heldout": 256, "validation": 64, "train": STEPS * PROMPTS_PER_STEP, "warm_start": 500 * WARM_START_BATCH}


ABOUT = """Train a tiny model with EBPO through OpenRLHF, Ray, DeepSpeed and vLLM, on any machine.

On a finished run: print its table. On an interrupted one: go on."""


class StageFailed(ReportedError):
    """A stage cannot begin, or ended without its result; in words for the person who started it."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", nargs="?", default="runs/quickstart", type=Path, metavar="RUN_DIR")
    parser.add_argument(
        "--estimator",
        type=registry.known,
        metavar="NAME",
        help=f"train with another one, to compare: all else is the same (default ebpo). {registry.described()}",
    )
    parser.add_argument("--force", action="store_true", help="move what is in RUN_DIR aside and start anew")


def run(options: argparse.Namespace) -> None:
    if options.estimator == "gae":
        raise UsageError("--estimator gae learns with a critic, and the quickstart trains none")
    directory = options.run_dir.absolute()
    check_directory(directory, options.force)
    estimator = check_estimator(directory, options.estimator)
    if not (directory / "result.json").exists():
        try:
            run_stages(directory, estimator)
        except KeyboardInterrupt:
            again = f"the same command goes on from here: bash scripts/quickstart.sh {options.run_dir}"
            raise KeyboardInterrupt(again) from None
    print(table(json.loads((directory / "result.json").read_text()), directory))


def check_directory(directory: Path, force: bool) -> None:
    if directory.exists() and not directory.is_dir():
        raise StageFailed(f"{directory} is a file; name a directory")
    if not directory.exists() or not any(directory.iterdir()):
        return
    if force:
        print(f"moved the old run to {move_aside(directory)}")
    elif not (directory / "data").is_dir():
        raise StageFailed(f"{directory} holds something else than a quickstart; name another directory, or use --force")
    elif not (directory / "result.json").exists() and not has_entries(directory / "data" / "train.jsonl"):
        raise StageFailed(
            f"{directory} was begun by an earlier version, whose tasks lack what the reward needs now: use --force, "
            "which moves it aside, or name another directory"
        )


def has_entries(path: Path) -> bool:
    """Whether the tasks, where they are there already, have what rewards/gym.py scores by."""
    if not path.exists():
        return True
    with open(path) as file:
        return "entry" in json.loads(file.readline())


def check_estimator(directory: Path, wanted: str | None) -> str:
    """The estimator of the run that is there, else the one that is wanted."""
    if not (directory / "run" / "run.json").exists():
        return wanted or "ebpo"
    found = read_run(directory / "run")["args"]["algo"]["advantage"]["estimator"]
    if wanted not in (None, found):
        raise StageFailed(f"{directory} holds a run with --estimator {found}: name another directory, or use --force")
    return found


def run_stages(directory: Path, estimator: str) -> None:
    stages: list[tuple[str, Path, Callable[[Path], None]]] = [
        ("tasks: reasoning-gym, four disjoint sets", directory / "data" / "warm_start.jsonl", make_tasks),
        ("model: a tiny Qwen3 with random weights", directory / "base" / "tokenizer.json", make_model),
        ("warm start: OpenRLHF's train_sft", directory / "warm_start" / "config.json", warm_start),
        (
            f"training: {registry.title(estimator)}, {STEPS} steps",
            directory
            / "model"
            / ("prior.json" if registry.computed_here(estimator) else "tokenizer.json"),  # what is written last
            functools.partial(train, estimator=estimator),
        ),
        ("evaluation: held-out tasks, before and after", directory / "result.json", evaluate),
    ]
    for number, (name, result, stage) in enumerate(stages, 1):
        print(f"[{number}/{len(stages)}] {name}", flush=True)
        if not result.exists():
            stage(directory)


def make_tasks(directory: Path) -> None:
    tasks.write(directory / "data", tasks.split(SIZES))


def make_model(directory: Path) -> None:
    from openrlhf_ebpo.quickstart import tiny_model

    rows = [
        json.loads(line) for name in SIZES for line in (directory / "data" / f"{name}.jsonl").read_text().splitlines()
    ]
    tiny_model.build(directory / "base", [tasks.TEMPLATE.format(row["prompt"]) + row["label"] for row in rows])


def warm_start(directory: Path) -> None:
    exports = directory / "checkpoints" / "warm_start"
    flags = {
        "model.model_name_or_path": directory / "base",
        "data.dataset": directory / "data" / "warm_start.jsonl",
        "data.input_key": "prompt",
        "data.output_key": "label",
        "data.input_template": tasks.TEMPLATE,
        "data.max_len": 64,
        "train.batch_size": WARM_START_BATCH,
        "train.micro_batch_size": WARM_START_BATCH,
        "train.max_epochs": 1,
        "adam.lr": 6e-3,
        "lr_scheduler": "constant_with_warmup",
        "ds.zero_stage": 0,
        "ckpt.path": exports,
        "ckpt.output_dir": exports / "last",
        "ckpt.save_hf": True,
        "ckpt.disable_ds": True,
        "ckpt.save_steps": WARM_START_EXPORT_EVERY,
    }
    launch("train_sft", flags, directory)
    choose_warm_start(exports, directory)


def choose_warm_start(exports: Path, directory: Path) -> None:
    """Take the first export that solves enough of the validation tasks (which nothing else uses)."""
    from openrlhf_ebpo.quickstart.evaluate import read_tasks, success_rate

    validation = read_tasks(directory / "data" / "validation.jsonl")
    found = sorted(exports.glob("global_step*_hf"), key=lambda p: int(p.name.removesuffix("_hf")[len("global_step") :]))
    for export in found:
        success = success_rate(export, validation)
        if success >= WARM_START_SUCCESS:
            print(
                f"      {export.name.removesuffix('_hf')} solves {success:.0%} of the validation tasks: taken",
                flush=True,
            )
            shutil.copytree(export, directory / "warm_start.part", dirs_exist_ok=True)
            (directory / "warm_start.part").rename(directory / "warm_start")
            return
    raise StageFailed(
        f"the warm start never solved {WARM_START_SUCCESS:.0%} of the validation tasks; see {directory}/logs"
    )


def train(directory: Path, estimator: str) -> None:
    flags = {
        "actor.model_name_or_path": directory / "warm_start",
        "data.prompt_dataset": directory / "data" / "train.jsonl",
        "data.input_key": "prompt",
        "data.label_key": "entry",
        "data.input_template": tasks.TEMPLATE,
        "data.max_len": 48,
        "reward.remote_url": "reasoning_gym",
        "advantage_estimator": estimator,
        "rollout.n_samples_per_prompt": N_SAMPLES_PER_PROMPT,
        "rollout.batch_size": PROMPTS_PER_STEP,
        "rollout.micro_batch_size": 64,
        "rollout.max_new_tokens": 14,
        "train.batch_size": PROMPTS_PER_STEP * N_SAMPLES_PER_PROMPT,
        "train.micro_batch_size": 64,
        "actor.adam.lr": 8e-4,
        "actor.num_gpus_per_node": 1,
        "ref.num_gpus_per_node": 1,
        "vllm.num_engines": 1,
        "algo.kl.init_coef": 0,
        "ds.zero_stage": 0,
        "ckpt.path": directory / "checkpoints",
        "ckpt.output_dir": directory / "model",
        "ckpt.save_steps": 20,
        "ckpt.max_num": 2,
        "ckpt.load_enable": True,  # goes on from the last checkpoint, or starts where there is none
        "logger.run_dir": directory / "run",
        "logger.wandb.run_name": directory.name,
    }
    if not is_cpu_stack():  # policy and vLLM share one GPU
        flags |= {"train.colocate_all": True, "vllm.gpu_memory_utilization": 0.3, "vllm.enforce_eager": True}
    in_a_file = not sys.stderr.isatty()
    if in_a_file:
        print("      starting Ray and vLLM", flush=True)
    with tqdm(total=STEPS, unit="step", desc="      starting Ray and vLLM", disable=in_a_file) as bar:
        launch("train_ppo_ray", flags, directory, lambda: show_progress(bar, directory / "run"))
        show_progress(bar, directory / "run")


def show_progress(bar: tqdm, run_dir: Path) -> None:
    """A bar that moves; where it is disabled, since nobody sees it move, a line every tenth step."""
    metrics = read_metrics(run_dir)
    if not metrics or metrics[-1]["step"] <= bar.n:
        return
    step, reward = metrics[-1]["step"], f"reward {metrics[-1]['rollout/reward_mean']:.2f}"
    if bar.disable and step // 10 > bar.n // 10:
        print(f"      step {step} of {bar.total}: {reward}", flush=True)
    bar.n = step
    bar.set_description_str(f"      {reward}")


def launch(command: str, flags: dict, directory: Path, progress: Callable[[], None] = lambda: None) -> None:
    """Run one of our command lines, its output in logs/. Ctrl-C reaches it, and it is waited for."""
    argv = [sys.executable, "-m", f"openrlhf_ebpo.cli.{command}"]
    for flag, value in flags.items():
        argv += [f"--{flag}"] if value is True else [f"--{flag}", str(value)]
    log = directory / "logs" / f"{command}.log"
    log.parent.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment.setdefault("OMP_NUM_THREADS", "1")  # so small a model gains nothing from threads, and waits for them
    with open(log, "a") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT, env=environment, process_group=0)
        try:
            while process.poll() is None:
                progress()
                time.sleep(0.5)
        finally:
            stop(process)
    if process.returncode:
        tail = "\n".join(log.read_text(errors="replace").replace("\r", "\n").splitlines()[-25:])
        raise StageFailed(f"{command} failed (exit status {process.returncode}). The end of {log}:\n{tail}")


def stop(process: subprocess.Popen) -> None:
    """Interrupt a command that still runs, and wait until it has cleaned up behind itself."""
    if process.poll() is not None:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave it alone
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(timeout=40)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def evaluate(directory: Path) -> None:
    from openrlhf_ebpo.quickstart.evaluate import all_fail_fraction, all_fail_gradient, paired_difference, read_tasks
    from openrlhf_ebpo.quickstart.evaluate import evaluate as evaluate_model
    from openrlhf_ebpo.record.plot import plot_run

    run_dir = directory / "run"
    heldout = read_tasks(directory / "data" / "heldout.jsonl")
    before = evaluate_model(directory / "warm_start", heldout, run_dir, 0)
    after = evaluate_model(directory / "model", heldout, run_dir, STEPS)
    rise, low, high = paired_difference(before, after)
    first_ten = [all_fail_fraction(read_rollouts(run_dir, step)) for step in range(1, 11)]
    first_step = read_rollouts(run_dir, 1)
    estimator = read_run(run_dir)["args"]["algo"]["advantage"]["estimator"]
    title = f"{registry.title(estimator)} quickstart: reasoning-gym spell_backward, G = {N_SAMPLES_PER_PROMPT}"
    plot_run(run_dir, run_dir / "training.png", title)
    result = {
        "estimator": estimator,
        "heldout_questions": len(heldout),
        "samples_per_question": before.shape[1],
        "before": float(before.mean()),
        "after": float(after.mean()),
        "rise": [rise, low, high],
        "steps": read_metrics(run_dir)[-1]["step"],
        "all_fail_first_ten_steps": sum(first_ten) / len(first_ten),
        "all_fail_gradient": {
            estimator: all_fail_gradient(directory / "warm_start", first_step, "advantage"),
            "group_norm": all_fail_gradient(directory / "warm_start", first_step, "grpo_advantage"),
        },
        "prior_mean": read_metrics(run_dir)[-1].get("ebpo/prior_mean"),
        "versions": read_run(run_dir)["versions"],
    }
    write_json(directory / "result.json", result)


def table(result: dict, directory: Path) -> str:
    rise, low, high = result["rise"]
    rows = [
        ("held-out success before", f"{result['before']:.3f}"),
        ("held-out success after", f"{result['after']:.3f}"),
        ("rise, 95 % interval", f"{rise:+.3f}  [{low:+.3f}, {high:+.3f}]"),
        ("measured on", f"{result['heldout_questions']} tasks x {result['samples_per_question']} samples"),
        ("training steps", f"{result['steps']}"),
        ("all-fail groups, first ten steps", f"{result['all_fail_first_ten_steps']:.0%}"),
    ]
    gradients = [f"{registry.title(e)} {g:.3g}" for e, g in result["all_fail_gradient"].items() if g is not None]
    if gradients:
        rows.append(("gradient of one all-fail group", ", ".join(gradients)))
    rows += [
        ("picture", os.path.relpath(directory / "run" / "training.png")),
        ("run directory", os.path.relpath(directory / "run")),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n" + "\n".join(f"  {name:<{width}}  {value}" for name, value in rows) + "\n"


main = command("scripts/quickstart.sh", ABOUT, add_flags, run)

if __name__ == "__main__":
    main()
