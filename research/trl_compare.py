"""Estimators compared in TRL: EBPOTrainer against TRL's own GRPOTrainer, on one GPU or on a CPU, with transformers'
generation.

For machines that have torch, transformers, accelerate and peft alone: requirements/gpu-trl.txt names the few wheels
that they lack. Every training of a seed begins with the same model and is given the same prompts in the same order.
Before and after it the held-out tasks are answered 8 times each at temperature 1, and once greedily. Intervals are over
seeds.

    python research/trl_compare.py --check --output runs/trl      minutes: versions, and both presets killed and resumed
    python research/trl_compare.py --model MODEL --tasks FILE --reward reward.py --output runs/trl     repeat to resume
    python research/trl_compare.py --table --output runs/trl           the table of existing results
    python research/trl_compare.py --export FILE --output runs/trl     and one JSON of its records

tasks.jsonl has {"prompt": ..., "label": ...} on each line; the first --heldout lines are held out. reward.py is
OpenRLHF's: reward_func(queries, prompts, labels). `group_norm` is TRL's GRPOTrainer itself; other names are the
registry's, and ebpo.robust is a preset. Without --model a small Qwen3 with random weights repeats a letter (--check,
rehearsals).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import itertools
import json
import platform
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from lab import final_success
from lab.measured import Job, Record
from lab.training import machine
from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import write_text
from openrlhf_ebpo.progress import file_identity, model_identity

ESTIMATORS = ["group_norm", "ebpo", "ebpo.robust", "raw_reward"]
CHECKED = ("ebpo", "ebpo.robust")
VERSIONS = ("torch", "transformers", "accelerate", "trl", "datasets")
LETTERS = "abcdefgh"
REWARD = """def reward_func(queries, prompts, labels):
    answers = [query[len(prompt) :].strip() for query, prompt in zip(queries, prompts)]
    return {"rewards": [float(answer.startswith(label)) for answer, label in zip(answers, labels)]}
"""


@dataclass(frozen=True)
class TrlLearning(Job):
    """A training, and its success on held-out tasks. Files count by their content.

    sizes: of lab/trl_training.py.
    """

    at_once: ClassVar[int] = 1
    estimator: str
    model: str
    tasks: str
    reward: str
    heldout: int
    steps: int
    prompts: int
    group: int
    tokens: int
    micro_batch: int
    lr: float

    @property
    def identity(self) -> dict:
        files = {"tasks": file_identity(self.tasks), "reward": file_identity(self.reward)}
        return {**super().identity, **files, "model": model_identity(self.model)}

    @property
    def title(self) -> str:
        return f"{self.estimator}, G = {self.group}, {self.steps} steps"

    def sizes(self):
        from lab.trl_training import Sizes

        fields = asdict(self)
        return Sizes(**{name: fields[name] for name in Sizes.__dataclass_fields__})

    def one(self, seed: int, work: Path) -> Record:
        from lab import trl_training as training

        rows, reward = training.read_tasks(Path(self.tasks)), training.load_reward(Path(self.reward))
        heldout, tasks = rows[: self.heldout], rows[self.heldout :]
        if len(tasks) < self.prompts:
            raise UsageError(f"--tasks {self.tasks}: {len(rows)} tasks are too few for --heldout {self.heldout}")
        start = self.start(work, heldout, reward)
        record = training.train(self.estimator, Path(self.model), work, tasks, heldout, reward, self.sizes(), seed)
        return {
            **record,
            **start,
            "prompts_per_step": self.prompts,
            "n_samples_per_prompt": self.group,
            "tasks": self.heldout,
            "samples": training.SAMPLES,
            "warm_start": model_identity(self.model),
            "device": machine(),
        }

    def start(self, work: Path, heldout: list[dict], reward) -> dict:
        """Measure the model before training, once."""
        from lab import trl_training as training

        def measure() -> dict:
            model, tokenizer = training.load_model(Path(self.model))
            return training.evaluate(model.to(training.device()), tokenizer, heldout, reward, self.sizes())

        key = f"{self.identity['model']}-{self.identity['tasks']}-{self.heldout}-{self.tokens}"
        return final_success.kept(work / f"start-{key}.json", measure)


def add_flags(parser: argparse.ArgumentParser) -> None:
    final_success.add_flags(parser, "runs/trl_compare", seeds=5)
    add = parser.add_argument
    add("--check", action="store_true", help="train 8 steps with ebpo and ebpo.robust, kill, resume, compare")
    add("--model", metavar="FOLDER", help="default: a small Qwen3 with random weights, made in --output")
    add("--tasks", metavar="FILE", help="JSONL with prompt and label")
    add("--reward", metavar="FILE", help="Python with reward_func(queries, prompts, labels)")
    add("--estimators", nargs="+", metavar="NAME", default=ESTIMATORS, help=f"default: {' '.join(ESTIMATORS)}")
    add("--heldout", type=int, default=64, help="tasks that are not trained on (64)")
    add("--steps", type=int, default=40, help="optimizer steps (40)")
    add("--prompts", type=int, default=16, help="of a step (16)")
    add("--group", type=int, default=2, help="responses per prompt (2)")
    add("--tokens", type=int, default=256, help="of a response, at most (256)")
    add("--micro_batch", type=int, default=16, help="responses in one forward pass (16)")
    add("--lr", type=float, default=3e-5, help="learning rate (3e-5)")


def run(options: argparse.Namespace) -> None:
    if options.check or not options.table:
        require_trl()
        check_flags(options)
        make_inputs(options)
    if options.check:
        check_options(options)
    else:
        final_success.run(options, jobs_of(options))


def require_trl() -> None:
    """
    Raises:
        UsageError: a package is missing.
    """
    missing = [name for name in VERSIONS if not importlib.util.find_spec(name)]
    if missing:
        raise UsageError(f"not installed: {', '.join(missing)}; see requirements/gpu-trl.txt")


def check_flags(options: argparse.Namespace) -> None:
    """
    Raises:
        UsageError: sizes that do not fit, or files that do not belong together.
    """
    responses = options.prompts * options.group
    if options.group < 2:
        raise UsageError(f"--group {options.group}: give 2 or more")
    if responses % options.micro_batch or options.micro_batch % options.group:
        raise UsageError(
            f"--micro_batch {options.micro_batch}: give a multiple of --group {options.group} that divides the step's "
            f"{responses} responses (--prompts x --group)"
        )
    given = [bool(value) for value in (options.model, options.tasks, options.reward)]
    if any(given) and not all(given):
        raise UsageError("--model, --tasks and --reward: give all three, or none for a small model with random weights")


def make_inputs(options: argparse.Namespace) -> None:
    """Make model, tasks and reward where none are given: the answer is the last of three letters."""
    if options.model:
        return
    from openrlhf_ebpo.quickstart import tiny_model

    inputs = options.output / "inputs"
    options.model, options.tasks, options.reward = (
        str(inputs / name) for name in ("model", "tasks.jsonl", "reward.py")
    )
    if (inputs / "tasks.jsonl").exists():
        return
    words = ["".join(letters) for letters in itertools.product(LETTERS, repeat=3)]
    random.Random(0).shuffle(words)
    rows = [json.dumps({"prompt": f"{word}>", "label": word[-1]}) + "\n" for word in words]
    tiny_model.build(inputs / "model", [f"{LETTERS}>"])
    write_text(inputs / "reward.py", REWARD)
    write_text(inputs / "tasks.jsonl", "".join(rows))


def jobs_of(options: argparse.Namespace) -> list[TrlLearning]:
    names = ("model", "tasks", "reward", "heldout", "steps", "prompts", "group", "tokens", "micro_batch", "lr")
    settings = {name: getattr(options, name) for name in names}
    return [TrlLearning(name, **settings) for name in options.estimators]


def check_options(options: argparse.Namespace) -> None:
    from lab import trl_check
    from lab.trl_training import Sizes, read_tasks

    print(f"{machine()}; Python {platform.python_version()}, {versions()}", flush=True)
    sizes = Sizes(trl_check.STEPS, 8, 2, min(options.tokens, 16), 16, options.lr)
    tasks = read_tasks(Path(options.tasks))
    for name in CHECKED:
        print(
            trl_check.check(name, Path(options.model), tasks, Path(options.reward), sizes, options.output), flush=True
        )


def versions() -> str:
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in VERSIONS)


main = command("python research/trl_compare.py", __doc__, add_flags, run)

if __name__ == "__main__":
    main()
