"""What `train` settles after upstream has validated its arguments, and says of them."""

from __future__ import annotations

import secrets

from openrlhf_ebpo.checks import preflight
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator import presets, registry
from openrlhf_ebpo.seams import flash_attn
from openrlhf_ebpo.seams.check import installed_release
from openrlhf_ebpo.seams.install import all_seams
from openrlhf_ebpo.seams.stack import is_cpu_stack
from openrlhf_ebpo.training import policy_loss, prompts


def replaced_notice() -> str:
    return (
        f"OpenRLHF {installed_release()}: {len(all_seams())} replacements, in this process and in every Ray worker; run.json "
        "lists them, python -m openrlhf_ebpo.seams explains them"
    )


def adapt(args, elsewhere: bool = False) -> list[str]:
    """Settle what upstream's validation cannot know; returns notices for the user.

    elsewhere: the command is for another machine, one with CUDA.
    """
    notices = []
    args.ckpt.attempt = secrets.token_hex(8)
    estimator = args.algo.advantage.estimator
    if estimator == "ebpo" and args.algo.dynamic_filtering_enable:
        notices.append(
            "warning: --algo.dynamic_filtering_enable removes the groups in which every response fails or passes: "
            "EBPO is there to learn from them, and its prior will not see them"
        )
    if registry.computed_here(estimator) and (args.algo.advantage.gamma != 1 or args.algo.advantage.no_std_norm):
        notices.append(f"warning: --algo.advantage.gamma and --algo.advantage.no_std_norm do nothing under {estimator}")
    notices += part_notices(args) + policy_loss.notices(args) + batch_notices(args)
    if is_cpu_stack() and not elsewhere:
        from openrlhf_ebpo.seams import cpu

        cpu.check_args(args)
        cpu.prepare_driver()
        notices += [f"no CUDA: {change}" for change in cpu.adapt_args(args)]
    return notices if elsewhere else notices + flash_attn.adapt_args(args)


def part_notices(args) -> list[str]:
    """Parts of EBPO that change nothing: under another estimator, and clusters that no prompt has."""
    estimator, ebpo, flag = args.algo.advantage.estimator, args.algo.advantage.ebpo, presets.FLAG
    if estimator in registry.ESTIMATORS and estimator != "ebpo":
        given = [part for part in (*presets.PARTS, "half_life") if getattr(ebpo, part) is not None]
        return [f"warning: {flag}.{part} does nothing under {estimator}" for part in given]
    if estimator != "ebpo" or ebpo.clusters != "cluster":
        return []
    column = {"--data.cluster_key": args.data.cluster_key or prompts.CLUSTER_COLUMN}
    names = (args.data.prompt_dataset or "").split(",")
    problems = [f"{name} {problem}" for name in names for problem in preflight.dataset_problems(name, column)]
    return [f"warning: {flag}.clusters cluster: {problem}; its prompts get the run's prior" for problem in problems]


def batch_notices(args) -> list[str]:
    """Whether a rollout batch is a whole number of optimizer steps; upstream says nothing.

    Raises:
        UsageError: it is less than one, and none of its responses would be trained on.
    """
    responses = args.rollout.batch_size * args.rollout.n_samples_per_prompt
    if responses % args.train.batch_size == 0:
        return []
    found = (
        f"--train.batch_size {args.train.batch_size} does not divide the {responses} responses of a rollout batch "
        f"(--rollout.batch_size {args.rollout.batch_size} times {args.rollout.n_samples_per_prompt})"
    )
    trained = prompts.trainable(responses, args)
    if not trained:
        raise UsageError(f"{found}: none would be trained on. Give {responses}, or a number that divides it")
    if trained < responses:
        return [f"warning: {found}: {responses - trained} of them are left out of every step"]
    return [f"warning: {found}: OpenRLHF mixes what is left into the next step"]
