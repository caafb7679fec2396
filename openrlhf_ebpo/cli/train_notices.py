"""Settle the arguments of `train` after upstream has validated them, and warn of what would waste the run."""

from __future__ import annotations

import secrets

from openrlhf_ebpo.checks import preflight
from openrlhf_ebpo.estimator import presets, registry
from openrlhf_ebpo.estimator.config import FLAG, EstimatorConfig
from openrlhf_ebpo.generation.cluster import gpus_needed
from openrlhf_ebpo.models.auto_map import read_json
from openrlhf_ebpo.models.hub_models import local_folder
from openrlhf_ebpo.seams import flash_attn
from openrlhf_ebpo.seams.stack import is_cpu_stack
from openrlhf_ebpo.training import mismatch, policy_loss, prompts

UNKNOWN = 0  # gigabytes


def adapt(args, elsewhere: bool = False) -> list[str]:
    """Settle what upstream's validation cannot know; returns notices for the user. args: upstream's, nested.

    elsewhere: the command is for another machine, one with CUDA.

    Raises:
        UsageError: this machine cannot do what is asked for.
    """
    args.ckpt.attempt = secrets.token_hex(8)
    notices = estimator_notices(args) + policy_loss.notices(args) + batch_notices(args) + stale_notices(args)
    if not elsewhere and is_cpu_stack():
        from openrlhf_ebpo.seams import cpu

        cpu.check_args(args)
    return notices if elsewhere else notices + adapt_to_machine(args)


def adapt_to_machine(args) -> list[str]:
    """Change, in place, what this machine cannot do as asked; returns the changes. args: upstream's, of `train` or
    `sft`."""
    changes = []
    if is_cpu_stack():
        from openrlhf_ebpo.seams import cpu

        cpu.prepare_driver()
        changes = [f"no CUDA: {change}" for change in cpu.adapt_args(args)]
    return changes + flash_attn.adapt_args(args)


def estimator_notices(args) -> list[str]:
    """Warn of flags that do nothing under the estimator, or take from it what it is for."""
    advantage = args.algo.advantage
    estimator, ebpo, found = advantage.estimator, advantage.ebpo, []
    if registry.computed_here(estimator) and (advantage.gamma != 1 or advantage.no_std_norm):
        found.append(f"--algo.advantage.gamma and --algo.advantage.no_std_norm do nothing under {estimator}")
    if estimator in registry.ESTIMATORS and estimator != "ebpo":
        given = [part for part in (*presets.PARTS, "half_life") if getattr(ebpo, part) is not None]
        found += [f"{FLAG}.{part} does nothing under {estimator}" for part in given]
    if estimator == "ebpo" and args.algo.dynamic_filtering_enable:
        found.append(
            "--algo.dynamic_filtering_enable removes the groups in which every response fails or passes: EBPO's "
            "prior then "
            "sees only groups with mixed rewards"
        )
    if estimator == "ebpo" and ebpo.clusters == "cluster":
        column = {"--data.cluster_key": args.data.cluster_key or prompts.CLUSTER_COLUMN}
        for name in (args.data.prompt_dataset or "").split(","):
            problems = preflight.dataset_problems(name, column)
            found += [f"{FLAG}.clusters cluster: {name} {each}; its prompts get the run's prior" for each in problems]
    return [f"warning: {each}" for each in found]


def stale_notices(args) -> list[str]:
    """Warn of a centred estimator that learns from samples of another policy.

    In our measurements samples one step old cost EBPO nothing on the bench and 0.012 of 0.096 on the real stack: an
    async queue of one is not warned of.
    """
    causes, estimator = off_policy_causes(args), args.algo.advantage.estimator
    found = registry.offline(estimator, EstimatorConfig.from_args(args)) if causes else None
    if not causes or (found and not found.centred):
        return []
    return [
        f"warning: {' and '.join(causes)}, and {estimator} is centred, which suffers most from stale samples "
        f"(docs/estimator.md has "
        f"measurements). Consider {mismatch.CENTRED_REMEDIES}, and watch mismatch/*"
    ]


def off_policy_causes(args) -> list[str]:
    """The settings that make rollouts differ from the policy that is trained, beyond one step and bf16's rounding.

    OpenRLHF 0.11.2 has no flag that quantises rollouts; vLLM does so by itself for a model with a quantization_config.
    """
    causes = []
    if (age := mismatch.age_by_design(args)) > 1:
        sizes = f"--train.async_queue_size {args.train.async_queue_size}"
        if args.rollout.vllm_generate_batch_size > args.rollout.batch_size:
            sizes += f" with --rollout.vllm_generate_batch_size {args.rollout.vllm_generate_batch_size}"
        causes.append(f"{sizes} trains on samples up to {age} steps old")
    if args.train.partial_rollout_enable:
        causes.append("--train.partial_rollout_enable mixes tokens of older weights into a response")
    folder = local_folder(args.actor.model_name_or_path)
    if folder and read_json(folder / "config.json").get("quantization_config"):
        causes.append(f"vLLM samples from quantised weights (quantization_config in {folder / 'config.json'})")
    return causes


def batch_notices(args) -> list[str]:
    """Compare the rollout batch with the optimizer steps that it fills; upstream does not."""
    responses = args.rollout.batch_size * args.rollout.n_samples_per_prompt
    if responses % args.train.batch_size == 0:
        return []
    found = (
        f"warning: --train.batch_size {args.train.batch_size} does not divide the {responses} responses of a "
        f"rollout batch "
        f"(--rollout.batch_size {args.rollout.batch_size} times {args.rollout.n_samples_per_prompt})"
    )
    if untrained := responses - prompts.trainable(responses, args):
        return [f"{found}: {untrained} of them are left out of every step"]
    return [f"{found}: OpenRLHF mixes what is left into the next step"]


def add_flag(group) -> None:
    group.add_argument(
        "--assume_cuda",
        type=int,
        nargs="?",
        const=UNKNOWN,
        metavar="GB",
        help="with --dry_run, on a machine without a GPU such as a login node: check the command as for a machine "
        "whose GPUs "
        "have GB of memory each",
    )


def elsewhere_notice(args, gigabytes: int) -> str:
    """For which machine the command was checked. args: upstream's, nested; gigabytes: of one GPU."""
    found = f"checked as for a machine with GPUs: {gpus_needed(args)}" + (f", of {gigabytes} GB" if gigabytes else "")
    return f"{found}\nnot checked for it: its libraries and drivers (openrlhf-ebpo doctor, there)"
