"""The driver of a training: checks the command line, starts Ray, and runs upstream's `train_ppo_ray` in it."""

from __future__ import annotations

import json
import os
import secrets
import sys
import warnings
from types import SimpleNamespace

from openrlhf_ebpo.command import error_exit
from openrlhf_ebpo.data import preflight
from openrlhf_ebpo.data.training_prompts import recorded_instruction
from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.extension import is_import_path, share_search_path
from openrlhf_ebpo.hub.training import Pushes
from openrlhf_ebpo.redact import redacted
from openrlhf_ebpo.rewards.processes.pool import close_shared_pool
from openrlhf_ebpo.run import changed_settings, heartbeat, run_lock
from openrlhf_ebpo.run.resume import Search
from openrlhf_ebpo.run.run_log import read_metrics, read_rollouts, read_run, record_warning, step_files
from openrlhf_ebpo.run.run_start import check_run_dir, checkpoint_to_resume
from openrlhf_ebpo.train import machine, old_flags, prompt_sets, reward_check
from openrlhf_ebpo.train import sample as train_sample
from openrlhf_ebpo.train.end import recorded_end
from openrlhf_ebpo.train.flags import Command, fill_defaults
from openrlhf_ebpo.train.model_check import MODEL, check_saving
from openrlhf_ebpo.train.plan import count_rows, plan_lines
from openrlhf_ebpo.train.supervisor import restarts
from openrlhf_ebpo.train.supervisor.link import SupervisorLink
from openrlhf_ebpo.train.train_settings import TrainSettings
from openrlhf_ebpo.train.trained_rows import identify_rows
from openrlhf_ebpo.train.upstream_main import UpstreamMain, adapt_args
from openrlhf_ebpo.upstream.check import check_release, installed_release
from openrlhf_ebpo.upstream.controller import mismatch, step_notices
from openrlhf_ebpo.upstream.install import all_seams, install

MODULE = "openrlhf.cli.train_ppo_ray"


@error_exit()
def main(argv: list[str], supervisor: SupervisorLink | None = None) -> None:
    """Train, or say what a training would do. supervisor: None for a command that does not come to train."""
    warnings.filterwarnings("ignore", "The pynvml package is deprecated", FutureWarning)
    # torch then counts GPUs without starting CUDA in the driver, also where it cannot start (machine.py says why)
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    try:
        run(argv, supervisor)
    except Exception as error:
        if supervisor:  # for run.json, where a restart is refused; of a training, `recorded_end` has said it
            supervisor.end("failed", str(error) or type(error).__name__, final=True)
        raise


def run(argv: list[str], supervisor: SupervisorLink | None = None) -> None:
    check_release(all_seams())
    install()
    upstream = UpstreamMain(MODULE)
    command = Command.parse(upstream, argv)
    if supervisor and supervisor.saved is not None:
        command = command.resumed_after_failure(supervisor.saved)
    fill_defaults(command.args)
    settings = TrainSettings.from_args(command.args, command.force)
    run_lock.check_free(settings.run.run_dir)
    run_lock.check_free(settings.run.ckpt_path)
    check_run_dir(settings.run, command.recorded, redacted(command.args), command.force)
    settings.check()  # before anything heavy is imported
    access = settings.ask_hub() + (machine.training_notices() if command.assume_cuda is None else [])

    args = upstream.validate(command.args)
    args.ckpt.attempt = secrets.token_hex(8)
    notices = [
        f"OpenRLHF {installed_release()}: {len(all_seams())} replacements, in this process and in every Ray worker; "
        "run.json lists them, python -m openrlhf_ebpo.upstream explains them",
        *settings.notices(),
    ]
    notices += adapt_args(args) if command.assume_cuda is None else []
    check_run_dir(settings.run, command.recorded, redacted(args), command.force)
    found = checkpoint_to_resume(settings.run, contents=not command.dry_run) if settings.run.resume else None
    resumed, changes = changed_settings.resume(args, settings.run, found)
    notices += [*access, *changes]
    if command.dry_run:
        show_dry_run(command, settings, args, notices, found)
        return
    print(*notices, sep="\n", flush=True)
    settings.files.check_models_fetched()
    check_saving(args, MODEL)
    prepare_workers(settings)
    train(supervisor, upstream, command, args, settings, found, resumed)


def show_dry_run(
    command: Command, settings: TrainSettings, args: SimpleNamespace, notices: list[str], found: Search | None
) -> None:
    """Print what a training would begin with, and a sample of answers where one was requested."""
    preflight.check_agent_by_importing(settings.rewards.agent)
    settings.files.check_weights()
    check_saving(args, MODEL)
    if command.verbose:
        print(json.dumps(redacted(args), indent=2))
    print(*notices, *warnings_of_prompts(settings), sep="\n")
    if found:
        identify_rows(args, found)
    if command.assume_cuda is not None:
        memory = f", of {command.assume_cuda} GB" if command.assume_cuda else ""
        print(f"checked as for a machine with GPUs: {settings.placement.gpus}{memory}")
        print("not checked for it: its libraries and drivers (openrlhf-ebpo doctor, there)")
    if command.is_translated:
        print(old_flags.shell_command(command.recorded, "python -m openrlhf_ebpo.cli.train_ppo_ray"))
    if command.sample:
        settings.files.check_models_fetched()
        name, *_ = preflight.split_names(args.data.prompt_dataset)
        rows = prompt_sets.open_prompts(args, name, args.data.prompt_split, command.sample)
        prompts = prompt_sets.make_prompts(args, rows, args.actor.model_name_or_path)
        for line in train_sample.sample(args, settings.rewards, prompts):
            print(line, flush=True)
    data = args.data
    count = None if data.prompt_probs else count_rows(args, data.prompt_dataset, data.prompt_split)
    print(*plan_lines(args, settings.batches, count), sep="\n")
    print(f"dry run: flags, files and settings are fine; {'no training' if command.sample else 'nothing'} was started")


def warnings_of_prompts(settings: TrainSettings) -> list[str]:
    """Compare the prompts with the model and, by a few rewards, with their labels."""
    return [
        *prompt_sets.training_warnings(settings.args),
        *reward_check.training_notices(settings.rewards, settings.args),
    ]


def train(
    supervisor: SupervisorLink,
    upstream: UpstreamMain,
    command: Command,
    args,
    settings: TrainSettings,
    found: Search | None,
    resumed: dict,
) -> None:
    """Train under supervision, and say how it ended. found: the checkpoint to resume, whose contents are compared;
    resumed: what run.json says of it."""
    from openrlhf_ebpo.engines.cluster import FEWER_IN_TRAINING, ClusterError, hardware, ray_with

    rows = identify_rows(args, found)
    print(*plan_lines(args, settings.batches, rows["rows"]), sep="\n", flush=True)
    pushes = Pushes(settings.hub, settings.run.run_dir)
    end = recorded_end(supervisor, lambda: how_to_continue(settings, pushes))
    try:
        with ray_with(settings.placement.gpus, FEWER_IN_TRAINING), end:
            # not before the cluster is known to be big enough
            started = run_entries(command, args, resumed) | {"hardware": hardware(settings.placement.gpus)}
            supervisor.claim(settings.run, settings.supervision, **started)
            heartbeat.Heartbeat(settings.run.run_dir).report(heartbeat.STARTING)
            pushes.start()
            args.ckpt.verified = found.tag if found else None
            args.ckpt.data, args.ckpt.run = rows, read_run(settings.run.run_dir)["id"]
            upstream.train(args)
            warning = lasting_warning(settings)
    except ClusterError as error:  # at a restart the machine may still be busy with the end of the training before
        supervisor.end("failed", f"ClusterError: {error}", final=False)
        raise
    print_summary(settings, args.ckpt.output_dir, counts_zero=not warning)
    pushes.finish()  # Ray and its GPUs are free by now
    if warning:
        print(f"warning: {warning}", flush=True)


def lasting_warning(settings: TrainSettings) -> str | None:
    """Return the final warning of a run most of whose steps taught nothing; it is also written into run.json."""
    run_dir = settings.run.run_dir
    try:
        answers = [text for step in [*step_files(run_dir)][-1:] for text in read_rollouts(run_dir, step)["response"]]
        answer = str(answers[0]) if answers else ""
        found = step_notices.lasting_warning(read_metrics(run_dir), prompt_sets.describe_form(settings.args), answer)
        record_warning(run_dir, found)
    except (OSError, ValueError, LookupError, ReportedError) as error:  # the model is saved, and the run is complete
        print(f"the run's steps were not summed up: {error}", file=sys.stderr, flush=True)
        return None
    return found


def prepare_workers(settings: TrainSettings) -> None:
    """Let workers know custom code, special tokens and the temperature; warn of prompts and rewards that do not fit."""
    from openrlhf_ebpo.upstream.rendering import announce_special_tokens
    from openrlhf_ebpo.upstream.rollout.engine import AT_TEMPERATURE

    os.environ[AT_TEMPERATURE] = "1" if settings.args.rollout.temperature != 1 else ""
    if is_import_path(settings.advantage.name):
        share_search_path()
    announce_special_tokens(settings.args.actor.model_name_or_path)
    lines = warnings_of_prompts(settings)
    close_shared_pool()  # of the driver, which grades rarely
    print(*(f"{line}\n" for line in lines), sep="", end="", flush=True)


def run_entries(command: Command, args, resumed: dict) -> dict:
    """Build the entries of run.json for this start."""
    return {
        "argv": command.recorded,
        "args": redacted(args),
        "instruction": redacted(recorded_instruction(vars(args.data))),
        "seams": [seam.label for seam in all_seams()],
        "resumed": resumed,
    }


def print_summary(settings: TrainSettings, model: str, counts_zero: bool) -> None:
    """counts_zero: steps without an advantage are counted here, because no warning follows."""
    print(f"training is complete: model in {model}, run directory {settings.run.run_dir}", flush=True)
    rows = read_metrics(settings.run.run_dir)
    zero = [(step_notices.ZERO_ADVANTAGE, step_notices.SUMMARY)] if counts_zero else []
    for metric, what in (*zero, (mismatch.STALE, mismatch.SUMMARY)):
        if line := step_notices.count_steps(rows, metric, what):
            print(line, flush=True)


def how_to_continue(settings: TrainSettings, pushes: Pushes) -> str:
    can, how = restarts.how_to_continue(settings.run, settings.supervision.save_steps)
    return how + (pushes.when_stopped() if can else "")
