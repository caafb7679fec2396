"""EvalSettings: the settings of `eval run`, with their flags."""

from __future__ import annotations

import argparse
import importlib.util
from dataclasses import dataclass, fields
from pathlib import Path

from openrlhf_ebpo.chat_template import ARGUMENTS, parse_kwargs
from openrlhf_ebpo.engines import engines
from openrlhf_ebpo.engines.engines import EngineSettings
from openrlhf_ebpo.errors import UsageError, raise_problems
from openrlhf_ebpo.eval import prompts, protocols
from openrlhf_ebpo.eval.protocols import Protocol
from openrlhf_ebpo.eval.tasks import FILE, MATH
from openrlhf_ebpo.extension import add_trust_flag
from openrlhf_ebpo.rewards import reward_settings as rewards
from openrlhf_ebpo.rewards.reward_settings import RewardSettings

OVERRIDES = (
    *("n", "temperature", "top_p", "top_k", "min_p", "max_new_tokens", "max_model_len", "stop", "seed"),
    *("template", "chat_template", "template_kwargs"),
)
NEEDED = {"matplotlib": "the report", "tqdm": "the progress bar", "vllm": "generation"}


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", required=True, metavar="A,B,…", help="tasks; see above")
    add = parser.add_argument_group("model: one of the two").add_argument
    add("--model", metavar="MODEL", help="folder or Hugging Face name; LoRA adapters are merged")
    add("--checkpoints", metavar="RUN_DIR", help="every exported checkpoint of this training run (--ckpt.save_hf)")
    add("--no_base", action="store_true", help="with --checkpoints: skip the model before training")
    add("--step", type=int, default=0, metavar="N", help="training step of --model (default: %(default)s)")
    add = parser.add_argument_group("protocol").add_argument
    add(
        "--protocol",
        default="default",
        choices=[*protocols.PROTOCOLS],
        help="settings that the flags below change (default: %(default)s)",
    )
    add("--n", type=int, metavar="N", help="responses per question")
    add("--temperature", type=float, metavar="T", help="sampling temperature; 0: the likeliest token")
    add("--top_p", type=float, metavar="P", help="sample from the likeliest tokens of total probability P")
    add("--top_k", type=int, metavar="K", help="draw from the K likeliest tokens only; -1: from all")
    add("--min_p", type=float, metavar="P", help="draw only from tokens at least P times as likely as the likeliest")
    add(
        "--stop",
        nargs="+",
        metavar="TEXT",
        help="texts that end a response and are left out of it; $'\\n\\n' in a shell",
    )
    add("--max_new_tokens", type=int, metavar="N", help="limit of a response, in tokens")
    add(
        "--max_model_len",
        type=int,
        metavar="N",
        help="limit of prompt and response, in tokens (default: as the longest needs)",
    )
    add("--seed", type=int, help="random seed of the engines; other hardware may give other texts")
    add(
        "--template",
        metavar="NAME_OR_TEXT",
        help=(
            f"text around a question: {', '.join(prompts.TEMPLATES)}, {prompts.TRAINING}, or text with {{question}} "
            f"in it"
        ),
    )
    add(
        "--chat_template",
        action=argparse.BooleanOptionalAction,
        help="put the prompt into the tokenizer's chat template",
    )
    add("--template_kwargs", **{**ARGUMENTS, "help": f"{ARGUMENTS['help']} (default: as --model was trained)"})
    add("--run_dir", metavar="DIR", help="run that trained --model, where its template is recorded (default: searched)")
    add_reward_flags(parser)
    add = parser.add_argument_group("questions").add_argument
    add("--question_column", metavar="NAME", help="column of questions of file: tasks (default: the usual names)")
    add("--answer_column", metavar="NAME", help="column of gold answers of file: tasks (default: the usual names)")
    add("--limit", type=int, metavar="N", help="only the first N questions of each task, named <task>-firstN")
    engines.add_flags(parser)
    add_trust_flag(parser)
    parser.add_argument("--output_dir", metavar="DIR", help="folder of the results; required with --model")
    parser.add_argument("--force", action="store_true", help="start over; earlier results move to superseded/")


def add_reward_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--reward",
        metavar="FILE.py",
        help=f"grade responses by the reward_func of this file, or by {MATH} (default: as the benchmark names, else "
        f"{MATH})",
    )
    rewards.add_flags(parser)


def reward_settings(args: argparse.Namespace) -> RewardSettings:
    """Return the limits of a reward file, which is not named yet.

    Raises:
        UsageError: a limit is out of range, or --reward is neither a .py file nor `math`.
    """
    if args.reward not in (None, MATH) and not args.reward.endswith(".py"):
        raise UsageError(f"--reward {args.reward}: give a .py file with reward_func, or {MATH}")
    timeout, memory_mb, workers = (getattr(args, f"reward.{name}") for name in ("timeout", "memory", "workers"))
    found = RewardSettings(
        timeout=rewards.TIMEOUT if timeout is None else timeout, memory_mb=memory_mb, workers=workers
    )
    found.check()
    return found


@dataclass(frozen=True)
class EvalSettings:
    """Settings of an evaluation: the model, the protocol, the tasks, and the folder of the results.

    model: from training step `step` of the run in `run_dir`; or checkpoints: those of this run. reward: in place of
    those that benchmarks name; rewards: limits of reward files. engine: what the flags say of the hardware.
    """

    tasks: str
    model: str | None
    checkpoints: str | None
    no_base: bool
    step: int
    run_dir: str | None
    question_column: str | None
    answer_column: str | None
    limit: int | None
    output_dir: str | None
    force: bool
    reward: str | None
    rewards: RewardSettings
    protocol: Protocol
    engine: EngineSettings

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> EvalSettings:
        """Raises UsageError: a setting of the protocol is out of range."""
        made = ("rewards", "protocol", "engine")
        own = {each.name: getattr(args, each.name) for each in fields(cls) if each.name not in made}
        for name in ("model", "reward"):
            if own[name] and Path(own[name]).expanduser().exists():
                own[name] = str(Path(own[name]).expanduser().absolute())
        changes = {name: getattr(args, name) for name in OVERRIDES}
        changes["stop"] = None if args.stop is None else tuple(args.stop)
        changes["template_kwargs"] = parse_kwargs(args.template_kwargs) or None
        protocol = protocols.override(protocols.PROTOCOLS[args.protocol], **changes)
        engine = EngineSettings.from_args(args, args.model or "")
        return cls(**own, rewards=reward_settings(args), protocol=protocol, engine=engine)

    @property
    def results(self) -> Path:
        return Path(self.output_dir or Path(self.checkpoints) / "eval").absolute()

    def check(self) -> None:
        """Check the flags, without reading what they name.

        Raises:
            UsageError: all problems, one per line.
        """
        problems = []
        if bool(self.model) == bool(self.checkpoints):
            problems.append(
                "give --model, a folder or a Hugging Face name, or --checkpoints, a run directory; not both"
            )
        if self.model and not self.output_dir:
            problems.append("--output_dir is missing: name a folder for the results")
        if self.checkpoints:
            given = [name for name in ("step", "run_dir") if getattr(self, name)]
            problems += [f"--{name} goes with --model; of --checkpoints, the run says it" for name in given]
        elif self.no_base:
            problems.append("--no_base goes with --checkpoints")
        for name in ("question_column", "answer_column"):
            if getattr(self, name) and FILE not in self.tasks:
                problems.append(f"--{name} needs a {FILE} task; --tasks {self.tasks} has none")
        ranges = {"step": self.step >= 0, "limit": self.limit is None or self.limit >= 1}
        problems += [f"--{name} {getattr(self, name)} is out of range" for name, fine in ranges.items() if not fine]
        problems += self.engine.problems()
        for name, use in NEEDED.items():
            if importlib.util.find_spec(name) is None:
                problems.append(f"{name} is not installed, which {use} needs: pip install 'openrlhf_ebpo[eval]'")
        raise_problems(problems)
