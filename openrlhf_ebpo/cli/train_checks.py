"""Check before `train` starts anything: flags, files, the run directory, and by importing for a dry run."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

from openrlhf_ebpo.checks import model_check, preflight
from openrlhf_ebpo.engines import arguments
from openrlhf_ebpo.errors import UsageError, raise_problems
from openrlhf_ebpo.estimator import registry, stored
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.extension import is_import_path
from openrlhf_ebpo.record import checkpoints, run_lock
from openrlhf_ebpo.record.resume import Search, check_fresh, groups, newest_whole
from openrlhf_ebpo.record.run_log import check_run_dir
from openrlhf_ebpo.redact import redacted
from openrlhf_ebpo.rewards import limits
from openrlhf_ebpo.seams import remote_code
from openrlhf_ebpo.supervisor import restarts
from openrlhf_ebpo.training import eval_metrics, lora, policy_loss, save_times
from openrlhf_ebpo.training.checkpoint import stored_prior


def check_dry_run_flags(flat: argparse.Namespace) -> None:
    """Raises UsageError: --sample or --assume_cuda without --dry_run, together, or with a number that makes no sense."""
    sample, assumed = flat.sample, flat.assume_cuda
    mistakes = {
        "--sample goes with --dry_run: add it, or leave --sample out to train": sample is not None and not flat.dry_run,
        f"--sample is {sample}; give 1 or more prompts": sample is not None and sample < 1,
        "--assume_cuda goes with --dry_run: add it, or leave --assume_cuda out to train on this machine": (
            assumed is not None and not flat.dry_run
        ),
        "--assume_cuda checks for another machine, and --sample starts an engine on this one: give one": (
            sample is not None and assumed is not None
        ),
        f"--assume_cuda is {assumed}; give the memory of one GPU in GB, such as 80, or no number": (
            assumed is not None and assumed < 0
        ),
    }
    raise_problems([mistake for mistake, made in mistakes.items() if made])


def check_before_imports(flat: argparse.Namespace, stored_argv: list[str]) -> None:
    """All that can be found wrong within a second."""
    values = vars(flat)
    policy_loss.check_flags(values)
    restarts.check_flags(values)
    arguments.check_flags(values)
    preflight.check_files(values)
    model_check.check_model(values)
    raise_problems(lora.check(values))
    limits.check_flags(values)
    eval_metrics.check_flags(values)
    save_times.check_flag(flat)
    if values["ckpt.load_step"] is not None and values["ckpt.load_step"] < 1:
        raise UsageError(
            f"--ckpt.load_step is {values['ckpt.load_step']}; give a step from 1 on, or begin anew with --force"
        )
    for flag in ("logger.rollouts_every", "logger.keep_rollouts"):
        if values[flag] is not None and values[flag] < 1:
            raise UsageError(f"--{flag} is {values[flag]}; give 1 or more")
    run_dir, load = Path(values["logger.run_dir"]), values["ckpt.load_enable"]
    run_lock.check_free(run_dir)
    run_lock.check_free(Path(values["ckpt.path"]))
    check_run_dir(run_dir, stored_argv, redacted(_nested(values)), load, flat.force)
    check_estimator(values)
    if load:
        checkpoint_to_resume(values, force=flat.force)
    elif not flat.force and not values["ckpt.disable_ds"]:
        check_fresh(values["ckpt.path"], values["algo.advantage.estimator"])


def checkpoint_to_resume(values: dict, contents: bool = False, force: bool = False) -> Search:
    """The checkpoint that a resume begins with; without a tag where none was ever complete.

    Args:
        contents: compare checksums too, which reads all of it.
        force: the run in the run directory is moved aside.

    Raises:
        CheckpointError: as `Search.check`, and where the run in the run directory has lost its checkpoints.
    """
    folders = groups(values["ckpt.path"], values["algo.advantage.estimator"])
    found = newest_whole(folders, values["ckpt.load_step"], contents)
    found.check()
    if found.tag is None and not force:
        checkpoints.check_none_lost(Path(values["logger.run_dir"]), folders[0])
    return found


def check_estimator(values: dict) -> None:
    """Settings, stored state and code of an estimator that is computed here."""
    name, prefix = values["algo.advantage.estimator"], "algo.advantage.ebpo."
    settings = {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}
    try:
        config = EstimatorConfig(n_samples_per_prompt=values["rollout.n_samples_per_prompt"], **settings)
    except ValueError as error:
        raise UsageError(str(error)) from None
    estimator = registry.build(name, config)
    if estimator is None:
        return
    if is_import_path(name):
        from openrlhf_ebpo.estimator.rehearsal import rehearse

        rehearse(estimator)
    if not values["vllm.num_engines"]:
        raise UsageError("--vllm.num_engines is not set: responses are generated by vLLM, give at least 1")
    if config.init_prior:
        stored.read(estimator, config.init_prior)
    state = stored_prior(checkpoint_to_resume(values, force=values["force"])) if values["ckpt.load_enable"] else None
    if state and not config.reset_prior:
        stored.unpack(estimator, state, f"the checkpoint in {values['ckpt.path']}")


def _nested(values: dict) -> dict:
    nested: dict = {}
    for key, value in values.items():
        *parts, leaf = key.split(".")
        node = nested
        for part in parts:
            node = node.setdefault(part, {})
        node[leaf] = value
    return nested


def check_by_importing(args) -> None:
    """For --dry_run: run the imports of the reward's and the agent's file, which the quick check only reads; the
    reward's in a process of its own, as in training. Not of the package's own rewards, which have no such process."""
    from openrlhf_ebpo.rewards.guard import is_packaged
    from openrlhf_ebpo.rewards.sources import importing_problem

    reward, agent = (args.reward.remote_url or [None])[0], args.train.agent_func_path
    own_file = reward and reward.endswith(".py") and not is_packaged(reward)
    if own_file and (problem := importing_problem(reward, remote_code.hook())):
        raise UsageError(problem)
    if agent:
        check_agent_by_importing(agent)


def check_agent_by_importing(path: str) -> None:
    spec = importlib.util.spec_from_file_location("checked_by_dry_run", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"{path} fails when imported: {type(error).__name__}: {error}") from error
    if not callable(getattr(module, "AgentExecutor", None)):
        raise UsageError(f"{path}: AgentExecutor is not callable")
