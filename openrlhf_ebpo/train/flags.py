"""The flags of `train`, OpenRLHF's and this package's: parsed, and completed where one depends on another."""

from __future__ import annotations

import argparse
import dataclasses
import functools
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from openrlhf_ebpo import chat_template
from openrlhf_ebpo.command import nested, parse
from openrlhf_ebpo.data import preflight
from openrlhf_ebpo.errors import raise_problems
from openrlhf_ebpo.estimator import advantage_settings as advantage
from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.extension import add_trust_flag, trust_models
from openrlhf_ebpo.hub import hub_settings as hub
from openrlhf_ebpo.hub.hub_settings import HubSettings
from openrlhf_ebpo.redact import hide_secrets, redacted_argv
from openrlhf_ebpo.rewards import reward_settings as rewards
from openrlhf_ebpo.rewards.reward_settings import RewardSettings
from openrlhf_ebpo.run import run_settings as run
from openrlhf_ebpo.train import old_flags, prompt_sets
from openrlhf_ebpo.train import sample as train_sample
from openrlhf_ebpo.train.best_metric import check_best_metric
from openrlhf_ebpo.train.supervisor import restarts
from openrlhf_ebpo.train.upstream_main import UpstreamMain
from openrlhf_ebpo.upstream import saving
from openrlhf_ebpo.upstream.check import installed_release
from openrlhf_ebpo.upstream.controller import prompts
from openrlhf_ebpo.upstream.policy import policy_loss

ESTIMATOR = "--algo.advantage.estimator"
UNKNOWN = 0  # gigabytes
EXAMPLE = r"""example, for one machine with eight GPUs:
  openrlhf-ebpo train --advantage_estimator ebpo --rollout.n_samples_per_prompt 4 \
    --rollout.batch_size 512 --train.batch_size 512 \
    --actor.model_name_or_path Qwen/Qwen3-8B \
    --data.prompt_dataset prompts.jsonl --data.input_key prompt --data.label_key label \
    --reward.remote_url reward.py --ckpt.path ckpt --ckpt.output_dir model --ckpt.save_hf \
    --actor.num_gpus_per_node 8 --ref.num_gpus_per_node 8 --train.colocate_all \
    --vllm.num_engines 8 --vllm.gpu_memory_utilization 0.6 --vllm.enable_sleep --ds.enable_sleep \
    --ds.zero_stage 3 --dry_run"""


@dataclass(frozen=True)
class Command:
    """A command line of `train`.

    args: upstream's nested arguments, with the flags of every folder. recorded: the command line without secrets.
    is_translated: it had flags of an older release. verbose: a dry run prints the configuration. sample: prompts to
    answer in a dry run. assume_cuda: memory in GB of the GPUs of the machine that a dry run is for, UNKNOWN if it was
    not given; None for this machine.
    """

    args: SimpleNamespace
    recorded: list[str]
    is_translated: bool
    force: bool
    dry_run: bool
    verbose: bool
    sample: int | None
    assume_cuda: int | None

    @classmethod
    def parse(cls, upstream: UpstreamMain, argv: list[str]) -> Command:
        """Parse a command line, and apply the flags that decide how the others are read.

        Raises:
            UsageError: flags of a dry run do not go together.
        """
        parser = build_parser(upstream)
        argv, translated = old_flags.translate(argv)
        print(*translated, sep="\n", end="\n" if translated else "", flush=True)
        flat = vars(parse(parser, argv))
        hide_secrets(flat)
        recorded = redacted_argv(argv, flat)
        trust_models(flat.pop("trust_remote_code"))
        clip, default = flat["reward.clip_range"], parser.get_default("reward.clip_range")
        # upstream's default clamps the value after the baseline; under ebpo only a range that was asked for applies
        flat["algo.advantage.ebpo.reward_clip_range"] = None if clip is default else tuple(clip)
        own = {name: flat.pop(name) for name in ("force", "dry_run", "verbose", "sample", "assume_cuda")}
        command = cls(nested(flat), recorded, bool(translated), **own)
        command.check()
        return command

    def resumed_after_failure(self, saved: bool) -> Command:
        """Return the command that its supervisor starts again: it resumes, and moves nothing aside. saved: a checkpoint
        of this command is there."""
        self.args.ckpt.load_enable = True
        if saved:  # it, and the prior in it, are the ones to resume
            self.args.ckpt.load_step = None
            self.args.algo.advantage.ebpo.reset_prior = False
        return dataclasses.replace(self, force=False)

    def check(self) -> None:
        """Raises UsageError: --sample or --assume_cuda without --dry_run, together, or with a number that makes no
        sense."""
        dry = {"verbose": self.verbose, "sample": self.sample is not None, "assume_cuda": self.assume_cuda is not None}
        problems = [
            f"--{name} goes with --dry_run: add it, or leave --{name} out"
            for name, is_given in dry.items()
            if is_given and not self.dry_run
        ]
        if self.sample is not None and self.assume_cuda is not None:
            problems.append(
                "--assume_cuda checks for another machine, and --sample starts an engine on this one: give one"
            )
        if self.sample is not None and self.sample < 1:
            problems.append(f"--sample is {self.sample}; give 1 or more prompts")
        if self.assume_cuda is not None and self.assume_cuda < 0:
            problems.append(
                f"--assume_cuda is {self.assume_cuda}; give the memory of one GPU in GB, such as 80, or no number"
            )
        raise_problems(problems)


def fill_defaults(args: SimpleNamespace) -> None:
    """Fill in, in place, what depends on other flags.

    Raises:
        UsageError: flags of the Hub do not go together, or no evaluation has --ckpt.best_metric_key.
    """
    HubSettings.from_args(args).check(args.ckpt.save_steps, args.ckpt.save_hf)
    check_best_metric(args.ckpt.best_metric_key, args.eval)
    args.ckpt.load_enable = args.ckpt.load_enable or args.ckpt.load_step is not None
    args.logger.run_dir = args.logger.run_dir or str(Path(args.ckpt.output_dir) / "run")
    algo = args.algo.advantage
    algo.estimator, algo.ebpo.preset = registry.split_preset(algo.estimator)
    chat_template.set_template_kwargs(args.data)
    preflight.absolute_paths(args)
    args.reward.timeout = RewardSettings.from_args(args).timeout


def build_parser(upstream: UpstreamMain) -> argparse.ArgumentParser:
    parser = upstream.parser("openrlhf-ebpo train")
    parser.description = (
        "OpenRLHF's train_ppo_ray with the estimator ebpo (arXiv 2602.05165): each prompt's mean reward is shrunk "
        f"towards what the policy has achieved so far. All flags of OpenRLHF {installed_release()} work unchanged, "
        "and so do the flat ones of releases up to 0.10.1; those of this project are in the last groups. "
        "docs/own_task.md leads from a file of questions to a model on the Hub."
    )
    parser.epilog = EXAMPLE
    estimator = parser._option_string_actions[ESTIMATOR]
    estimator.type = functools.partial(registry.parse_name, of_openrlhf=estimator.choices)
    estimator.choices, estimator.metavar = None, "NAME"
    estimator.help = (
        "Advantage estimator; for each, what is subtracted from the rewards, and what follows (docs/estimator.md has "
        f"the formulas). {registry.describe_estimators()}; or your own, as MODULE:NAME"
    )
    estimator.option_strings.append("--advantage_estimator")
    parser._option_string_actions["--advantage_estimator"] = estimator
    advantage.add_flags(parser)
    policy_loss.add_flags(parser)
    prompts.add_flags(parser)
    prompt_sets.add_flag(parser)
    hub.add_flags(parser)
    rewards.add_flags(parser)
    add_flags(parser.add_argument_group("run directory and checks"))
    restarts.add_flags(parser)
    return parser


def add_flags(group: argparse._ArgumentGroup) -> None:
    saving.add_flag(group)
    run.add_flags(group)
    group.add_argument(
        "--logger.no_policy_metrics",
        action="store_true",
        help="do not measure policy/entropy and policy/kl_per_step, which take extra forward passes in every step",
    )
    add_trust_flag(group)
    group.add_argument(
        "--dry_run", action="store_true", help="check everything, print what the training would do and stop"
    )
    group.add_argument("--verbose", action="store_true", help="with --dry_run: also print the resolved configuration")
    train_sample.add_flag(group)
    group.add_argument(
        "--assume_cuda",
        type=int,
        nargs="?",
        const=UNKNOWN,
        metavar="GB",
        help="with --dry_run, on a machine without a GPU such as a login node: check the command as for a machine "
        "whose GPUs have GB of memory each",
    )
