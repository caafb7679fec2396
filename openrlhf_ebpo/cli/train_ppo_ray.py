"""Upstream's `train_ppo_ray` with the estimator `ebpo`: every flag of upstream's, and the ones below.

python -m openrlhf_ebpo.cli.train_ppo_ray --advantage_estimator ebpo --rollout.n_samples_per_prompt 4 ...
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

from openrlhf_ebpo.checks import machine, preflight, prompt_sets, reward_check
from openrlhf_ebpo.cli import old_flags, train_checks, train_notices, train_sample
from openrlhf_ebpo.cli.upstream_main import UpstreamMain
from openrlhf_ebpo.command import PAUSED, error_exit, nested, parse
from openrlhf_ebpo.errors import HealthError, ReportedError, TrainingPaused, UsageError
from openrlhf_ebpo.estimator import flags as estimator_flags
from openrlhf_ebpo.estimator import presets, registry
from openrlhf_ebpo.extension import add_trust_flag, is_import_path, share_search_path, trust_models
from openrlhf_ebpo.generation import arguments
from openrlhf_ebpo.hub import settings as hub_flags
from openrlhf_ebpo.hub.resume import pull_start
from openrlhf_ebpo.hub.settings import HubSettings
from openrlhf_ebpo.hub.training import Pushes
from openrlhf_ebpo.redact import hide_secrets, redacted, redacted_argv
from openrlhf_ebpo.rewards import settings as reward_settings
from openrlhf_ebpo.rewards.pool import close_shared_pool
from openrlhf_ebpo.rewards.settings import RewardSettings
from openrlhf_ebpo.run import changed_settings, heartbeat, run_lock, run_writer
from openrlhf_ebpo.run import settings as run_settings
from openrlhf_ebpo.run.checkpoints import checkpoint_to_resume
from openrlhf_ebpo.run.custom_metrics import read_entries
from openrlhf_ebpo.run.resume import CheckpointError, Search, groups, newest_complete
from openrlhf_ebpo.run.run_log import RunDirectoryError, check_run_dir, read_metrics, read_run
from openrlhf_ebpo.run.settings import RunSettings
from openrlhf_ebpo.seams.check import check_release, installed_release
from openrlhf_ebpo.seams.install import all_seams, install
from openrlhf_ebpo.supervisor import restarts
from openrlhf_ebpo.supervisor.driver import Supervisor, under_supervision
from openrlhf_ebpo.training import eval_metrics, mismatch, policy_loss, prompts, save_times, zero_advantage

MODULE = "openrlhf.cli.train_ppo_ray"
ESTIMATOR = "--algo.advantage.estimator"
EXAMPLE = r"""example, for one machine with eight GPUs:
  openrlhf-ebpo train --advantage_estimator ebpo --rollout.n_samples_per_prompt 4 \
    --rollout.batch_size 512 --train.batch_size 512 \
    --actor.model_name_or_path Qwen/Qwen3-8B \
    --data.prompt_dataset prompts.jsonl --data.input_key prompt --data.label_key label \
    --reward.remote_url reward.py --ckpt.path ckpt --ckpt.output_dir model --ckpt.save_hf \
    --actor.num_gpus_per_node 8 --ref.num_gpus_per_node 8 --train.colocate_all \
    --vllm.num_engines 8 --vllm.gpu_memory_utilization 0.6 --vllm.enable_sleep --ds.enable_sleep \
    --ds.zero_stage 3 --dry_run"""


@error_exit()
def main(argv: list[str] | None = None) -> None:
    warnings.filterwarnings("ignore", "The pynvml package is deprecated", FutureWarning)
    # torch then looks for GPUs without CUDA's own start, after which the driver could not be forked off
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    run(sys.argv[1:] if argv is None else argv)


def run(argv: list[str]) -> None:
    check_release(all_seams())
    command = UpstreamMain(MODULE)
    parser = build_parser(command)
    argv, translated = old_flags.translate(argv)
    print(*translated, sep="\n", end="\n" if translated else "", flush=True)
    flat = parse(parser, argv)
    install()
    early_notices, stored_argv, metrics = check_at_once(flat, parser, argv)
    assumed, force = flat.assume_cuda, flat.force  # not sooner: --force is for the first start, not for a restart

    dry_run, sampled = flat.dry_run, flat.sample
    del flat.dry_run, flat.force, flat.sample, flat.assume_cuda
    args = command.validate(flat)
    notices = [
        f"OpenRLHF {installed_release()}: {len(all_seams())} replacements, in this process and in every Ray "
        f"worker; run.json "
        "lists them, python -m openrlhf_ebpo.seams explains them",
        *train_notices.adapt(args, assumed is not None),
        *early_notices,
    ]
    settings = RunSettings.from_args(args, force)
    check_run_dir(settings, stored_argv, redacted(args), force)
    found = checkpoint_to_resume(settings, contents=not dry_run) if settings.resume else None
    resumed, lines = changed_settings.resume(args, settings, found)
    notices += lines
    if dry_run:
        show_dry_run(args, notices, stored_argv if translated else None, sampled, assumed)
        return
    print("\n".join(notices), flush=True)
    preflight.check_models_fetched(vars(flat))

    claim = {
        "settings": settings,
        "argv": stored_argv,
        "args": redacted(args),
        "seams": [seam.label for seam in all_seams()],
        "metrics": metrics,
        "resumed": resumed,
    }
    train(command, args, claim, argv, found)


def check_at_once(flat: argparse.Namespace, parser, argv: list[str]) -> tuple[list[str], list[str], list[dict]]:
    """Check and resolve the flags, in place, before anything heavy is imported.

    Returns:
        what the user should know already, the command line without secrets, the entries of --logger.metrics.
    """
    train_checks.check_dry_run_flags(flat)
    restarts.apply_restart(vars(flat))
    trust_models(flat.trust_remote_code)
    del flat.trust_remote_code
    hub = HubSettings.from_flags(vars(flat))
    hub.check(vars(flat)["ckpt.save_steps"], vars(flat)["ckpt.save_hf"])
    notices = resume_from_hub(hub, vars(flat)) if hub.resume_from else []
    resolve(flat, parser)
    stored_argv = redacted_argv(argv, vars(flat))
    train_checks.check_before_imports(vars(flat), stored_argv)
    metrics = redacted(read_entries(vars(flat)["logger.metrics"]))
    resumes = vars(flat)["ckpt.load_enable"] and not flat.force
    run = read_run(Path(vars(flat)["logger.run_dir"])) if resumes else None
    notices += hub.check_access(run or {}, vars(flat)["actor.model_name_or_path"])
    if flat.assume_cuda is None:
        notices += machine.training_notices(vars(flat))
    return notices, stored_argv, metrics


def resume_from_hub(hub: HubSettings, values: dict) -> list[str]:
    """Pull --hub.resume_from and set the flags that name its files, in place; returns notices.

    Raises:
        UsageError: it cannot be pulled, or clashes with other flags.
    """
    wanted, model, prefix = hub.resume_from, values["actor.model_name_or_path"], "algo.advantage.ebpo."
    if model:
        raise UsageError(
            f"--hub.resume_from {wanted} and --actor.model_name_or_path {model} both name the weights to start from: "
            "give one of them"
        )
    ckpt_path, estimator = Path(values["ckpt.path"]).expanduser().absolute(), values["algo.advantage.estimator"]
    run_lock.check_free(ckpt_path)  # what comes from the Hub is put there
    resumes = values["ckpt.load_enable"] and newest_complete(groups(ckpt_path, estimator)).tag is not None
    start = pull_start(wanted, ckpt_path, resumes)
    values["actor.model_name_or_path"] = start.model
    has_prior = start.prior and registry.computed_here(estimator)
    if has_prior and not values[prefix + "init_prior"] and not values[prefix + "reset_prior"]:
        values[prefix + "init_prior"] = start.prior
        return [*start.notices, f"weights and prior are those of {wanted}"]
    return [*start.notices, f"weights are those of {wanted}; the prior is not"]


def show_dry_run(
    args, notices: list[str], translated: list[str] | None, sampled: int | None, assumed: int | None
) -> None:
    """translated: the command line, if its flags were an older release's. sampled: answers to be generated. assumed:
    memory of the GPUs of another machine."""
    train_checks.check_by_importing(args)
    print(json.dumps(redacted(args), indent=2))
    found = [*prompt_sets.training_warnings(args), *reward_check.training_notices(args)]
    print(*notices, *found, rollouts_notice(args), sep="\n")
    if assumed is not None:
        print(train_notices.elsewhere_notice(args, assumed))
    if translated:
        print(old_flags.shell_command(translated, "python -m openrlhf_ebpo.cli.train_ppo_ray"))
    for line in train_sample.sample(args, sampled) if sampled else ():
        print(line, flush=True)
    print(f"dry run: flags, files and settings are fine; {'no training' if sampled else 'nothing'} was started")


def rollouts_notice(args) -> str:
    responses = args.rollout.batch_size * args.rollout.n_samples_per_prompt
    tokens = args.rollout.max_new_tokens or args.data.max_len
    return run_writer.size_notice(responses, tokens, args.logger.rollouts_every)


def train(command: UpstreamMain, args, claim: dict, argv: list[str], found: Search | None) -> None:
    """claim: what `run_lock.claim` takes. argv: the command's flags, for a restart. found: the checkpoint to resume,
    whose contents this process has compared."""
    from openrlhf_ebpo.generation.cluster import FEWER_IN_TRAINING, ClusterError, gpus_needed, ray_with
    from openrlhf_ebpo.generation.rendering import announce_special_tokens

    if is_import_path(args.algo.advantage.estimator):
        share_search_path()
    supervisor = under_supervision(["-m", __spec__.name, *argv])
    announce_special_tokens(args.actor.model_name_or_path)
    warnings = [*prompt_sets.training_warnings(args), *reward_check.training_notices(args)]
    close_shared_pool()  # of the driver, which grades rarely
    pushes = Pushes(HubSettings.from_args(args), args.logger.run_dir)
    print(*(f"{line}\n" for line in warnings), sep="", end="", flush=True)
    try:
        with ray_with(gpus_needed(args), FEWER_IN_TRAINING), record_end(supervisor):
            supervisor.claim(**claim)  # not before the cluster is known to be big enough
            heartbeat.Heart(args.logger.run_dir).beat(heartbeat.STARTING)
            pushes.start_watch()
            arguments.set_arguments(args)
            args.ckpt.verified = found.tag if found else None
            command.train(args)
    except RunDirectoryError:
        raise
    except ClusterError as error:  # at a restart the machine may still be busy with the end of the training before
        supervisor.end("failed", f"ClusterError: {error}", False)
        raise
    except KeyboardInterrupt:
        raise KeyboardInterrupt(how_to_continue(args)) from None
    except Exception as error:
        if isinstance(cause := unwrapped(error), TrainingPaused):
            print(f"paused: {cause}\n{how_to_continue(args)}", file=sys.stderr)
            sys.exit(PAUSED)
        traceback.print_exc()
        if isinstance(cause, CheckpointError):
            raise cause from None
        if isinstance(cause, HealthError):
            raise HealthError(f"{cause}\n{how_to_continue(args)}") from None
        cause = supervisor.cause or describe_cause(error)
        raise ReportedError(f"training stopped: {cause}\n{how_to_continue(args)}") from None
    print(f"training is complete: model in {args.ckpt.output_dir}, run directory {args.logger.run_dir}", flush=True)
    rows = read_metrics(args.logger.run_dir)
    for metric, what in ((zero_advantage.METRIC, zero_advantage.SUMMARY), (mismatch.STALE, mismatch.SUMMARY)):
        if line := zero_advantage.count_steps(rows, metric, what):
            print(line, flush=True)
    pushes.finish()  # Ray and its GPUs are free by now


@contextlib.contextmanager
def record_end(supervisor: Supervisor) -> Iterator[None]:
    """Record in run.json how the run ended."""
    status, error, final = "complete", None, False
    try:
        yield
    except BaseException as caught:
        status = "interrupted" if isinstance(caught, KeyboardInterrupt) else "failed"
        error = describe_cause(caught)
        if isinstance(cause := unwrapped(caught), TrainingPaused):
            status, error = "paused", str(cause)
        final = isinstance(unwrapped(caught), (UsageError, RunDirectoryError, HealthError, KeyboardInterrupt))
        raise
    finally:
        supervisor.end(status, error, final)


def unwrapped(error: BaseException) -> BaseException:
    """The first cause: Ray wraps what a method of an actor raised; in async training one actor waits for another."""
    while cause := getattr(error, "cause", None):
        error = cause
    return error


def describe_cause(error: BaseException) -> str:
    """Return why the training has ended, for run.json and the screen alike: one line, unless the message is our own."""
    from ray.exceptions import RayActorError

    from openrlhf_ebpo.generation.cluster import reason
    from openrlhf_ebpo.generation.deaths import find_deaths

    cause = unwrapped(error)
    if isinstance(cause, KeyboardInterrupt):
        return "ended by a signal to the driver's process"
    if isinstance(cause, ReportedError):
        return str(cause)
    if dead := find_deaths():
        return dead
    if isinstance(cause, RayActorError):
        return f"a process of the training did not start, or died: {reason(cause)}"
    return f"{type(cause).__name__}: {reason(cause)}" if str(cause) else type(cause).__name__


def how_to_continue(args) -> str:
    can, how = restarts.how_to_continue(
        args.ckpt.path, args.algo.advantage.estimator, args.ckpt.save_steps, args.ckpt.load_step
    )
    pushes = Pushes(HubSettings.from_args(args), args.logger.run_dir)
    return how + (pushes.when_stopped() if can else "")


def build_parser(command: UpstreamMain) -> argparse.ArgumentParser:
    parser = command.parser("openrlhf-ebpo train")
    parser.description = (
        "OpenRLHF's train_ppo_ray with the estimator ebpo (arXiv 2602.05165): each prompt's mean reward is shrunk "
        "towards what the policy has achieved so far. All flags of OpenRLHF "
        f"{installed_release()} work unchanged, and so do the flat ones of releases up to 0.10.1; those of this "
        "project are in the last groups."
    )
    parser.epilog = EXAMPLE
    estimator = parser._option_string_actions[ESTIMATOR]
    estimator.type = functools.partial(registry.known, of_openrlhf=estimator.choices)
    estimator.choices, estimator.metavar = None, "NAME"
    estimator.help = (
        "Advantage estimator; for each, what is subtracted from the rewards, and what follows "
        "(docs/estimator.md has the "
        f"formulas). {registry.described()}; or your own, as MODULE:NAME"
    )
    estimator.option_strings.append("--advantage_estimator")
    parser._option_string_actions["--advantage_estimator"] = estimator
    estimator_flags.add_flags(parser)
    policy_loss.add_flags(parser)
    prompts.add_flags(parser)
    prompt_sets.add_flag(parser)
    eval_metrics.add_flags(parser)
    hub_flags.add_flags(parser)
    add_flags(parser)
    restarts.add_flags(parser)
    return parser


def add_flags(parser: argparse.ArgumentParser) -> None:
    reward_settings.add_flags(parser)
    group = parser.add_argument_group("run directory and checks")
    save_times.add_flag(group)
    run_settings.add_flags(group)
    group.add_argument(
        "--logger.no_policy_metrics",
        action="store_true",
        help="do not measure policy/entropy and policy/kl_per_step, which take extra forward passes in every step",
    )
    add_trust_flag(group)
    group.add_argument(
        "--dry_run", action="store_true", help="check everything, print the resolved configuration and stop"
    )
    train_sample.add_flag(group)
    train_notices.add_flag(group)


def resolve(flat: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Fill in what depends on other flags: run directory, absolute paths, EBPO's parts, explicit reward clipping,
    what a failure earns, secrets."""
    values = vars(flat)
    values["ckpt.load_enable"] = values["ckpt.load_enable"] or values["ckpt.load_step"] is not None
    values["logger.run_dir"] = values["logger.run_dir"] or str(Path(values["ckpt.output_dir"]) / "run")
    clip = values["reward.clip_range"]
    # upstream's default clamps the value after the baseline; under ebpo only a range that was asked for applies
    values["algo.advantage.ebpo.reward_clip_range"] = (
        tuple(clip) if clip is not parser.get_default("reward.clip_range") else None
    )
    prefix = "algo.advantage.ebpo."
    values["algo.advantage.estimator"], values[prefix + "preset"] = registry.split(values["algo.advantage.estimator"])
    if values["algo.advantage.estimator"] == "ebpo":
        given = {part: values[prefix + part] for part in (*presets.PARTS, "half_life")}
        parts = presets.chosen(values[prefix + "preset"], given)
        values.update({prefix + part: choice for part, choice in parts.items()})
    preflight.absolute_paths(values)
    values["reward.timeout"] = RewardSettings.from_args(nested(values)).timeout
    hide_secrets(values)


if __name__ == "__main__":
    main()
