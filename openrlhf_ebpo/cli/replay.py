"""A run's advantages computed again from its rollouts, by its estimator or by another one.

The estimator that ran: is every advantage what the logged rewards say? Bit for bit for what this package computes, within
float32's rounding for what OpenRLHF computes; anything else ends with status 1. Another one: what it would have given for
the same responses (not where the run would have gone with it). No GPU, no torch; a run that is still going on may be replayed.

  openrlhf-ebpo replay runs/quickstart/run                                check the run
  openrlhf-ebpo replay runs/quickstart/run --estimator group_norm         what GRPO would have given
  openrlhf-ebpo replay runs/quickstart/run --preset corrected             what EBPO would have given with other parts
  openrlhf-ebpo replay runs/quickstart/run --output replayed.parquet      a row for every response, too

How to read the table, which compares the advantages that training used (logged) with the replayed ones
  mean |diff|   mean of |replayed - logged|
  turned        responses whose advantage changes its sign: what was reinforced is discouraged, or the reverse
  zero          responses that teach nothing, because their advantage is 0
  std           standard deviation of the advantages: two estimators may differ in scale alone
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.estimator import config, registry, stored
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Estimator
from openrlhf_ebpo.estimator.replay import Difference, Logged, Replayed, keeps_state, logged, replay, unknown_starts
from openrlhf_ebpo.extension import is_import_path
from openrlhf_ebpo.files import read_json_lines, replacing
from openrlhf_ebpo.record.retention import first_kept
from openrlhf_ebpo.record.rollout_columns import logged_steps, read_columns
from openrlhf_ebpo.record.run_log import PRIOR_STARTS, RunDirectoryError, read_run

PREFIX = config.FLAG.removeprefix("--") + "."
REWARDS = ("fail_reward", "pass_reward", "reward_clip_range")  # the run's, whatever else is asked for
OF_TRAINING = {"n_samples_per_prompt", "reset_prior", "init_prior"}  # of EstimatorConfig, and no settings of a replay
ROUNDING = 1e-4  # of the step's largest advantage: OpenRLHF sums in float32
NOISE = 1e-12  # of the largest advantage: float64's own
MOST_RESPONSES = 2**16  # of a prompt
LINES = 20  # of the table
OUTPUT = pa.schema(
    [
        *(("step", pa.int32()), ("group", pa.int32()), ("sample", pa.int32()), ("prompt_id", pa.string())),
        *(("valid", pa.bool_()), ("reward", pa.float64()), ("baseline", pa.float64()), ("advantage", pa.float64())),
        *(("replayed_baseline", pa.float64()), ("replayed_advantage", pa.float64())),
    ]
)


class Ran(NamedTuple):
    """What run.json says. settings: of the estimator, by the names of EstimatorConfig; unlogged: settings with which
    OpenRLHF changes advantages by what no rollout holds."""

    folder: Path
    estimator: str
    size: int
    settings: dict[str, Any]
    rollouts_every: Any
    running: bool
    unlogged: list[str]


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_dir", metavar="RUN_DIR", type=Path, help="--logger.run_dir of a training (run.json is in it)"
    )
    parser.add_argument(
        *("--estimator", registry.FLAG),
        type=registry.known,
        metavar="NAME",
        help=f"default: the one that ran. {registry.described()}; or your own, MODULE:NAME",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE.parquet",
        help="write a row per response: step, group, sample, prompt_id, valid, reward; baseline and advantage as logged; "
        "replayed_baseline and replayed_advantage",
    )
    parser.add_argument("--force", action="store_true", help="replace --output if it is there")
    config.add_flags(parser)
    for action in parser._actions:
        if action.dest.startswith(PREFIX):
            action.default = argparse.SUPPRESS  # what is not given is as it was in the run
    parser._option_string_actions[f"--{PREFIX}reset_prior"].help = argparse.SUPPRESS
    preset = parser._option_string_actions[f"--{PREFIX}preset"]
    preset.option_strings.append("--preset")
    parser._option_string_actions["--preset"] = preset


def run(args: argparse.Namespace) -> None:
    given = {k.removeprefix(PREFIX): v for k, v in vars(args).items() if k.startswith(PREFIX)}
    if "reset_prior" in given:
        raise UsageError(f"--{PREFIX}reset_prior: a replay begins as the run did; leave it out")
    if args.output and args.output.exists() and not args.force:
        raise UsageError(f"--output {args.output} is there; name another file, or replace it with --force")
    ran = read_ran(args.run_dir)
    estimator = wanted(ran, args.estimator, given)
    same = is_same(ran, estimator)
    files = logged_steps(ran.folder)
    starts = known_starts(ran, estimator, same, given.get("init_prior"))
    dropped = first_kept(ran.folder) - 1
    check_steps(ran, estimator, list(files), starts, dropped)
    print(heading(ran, estimator, len(files), dropped), flush=True)
    steps = (logged(step, read_columns(path), ran.size, str(path)) for step, path in files.items())
    found = compared(replay(estimator, counted(steps, len(files)), starts), args.output)
    if not same:
        print(table(found))
    print(verdict(ran, estimator, same, found))


# What ran, and what is replayed


def read_ran(folder: Path) -> Ran:
    """What run.json says of the estimator.

    Raises:
        RunDirectoryError: there is none, or it is no training's.
    """
    found = read_run(folder)
    if found is None:
        inside = f"; there is one in {folder / 'run'}" if (folder / "run" / "run.json").is_file() else ""
        raise RunDirectoryError(f"{folder} holds no run.json{inside}: give the --logger.run_dir of a training")
    args = found.get("args")
    name, size = dig(args, "algo", "advantage", "estimator"), dig(args, "rollout", "n_samples_per_prompt")
    if not isinstance(name, str) or not (name in registry.ESTIMATORS or is_import_path(name)):
        raise RunDirectoryError(f"{folder}/run.json: its algo.advantage.estimator is {ascii(name)[:80]}, no estimator")
    if type(size) is not int or not 0 < size <= MOST_RESPONSES:
        raise RunDirectoryError(
            f"{folder}/run.json: its rollout.n_samples_per_prompt is {ascii(size)[:80]}, and not 1 to {MOST_RESPONSES}"
        )
    settings = dig(args, "algo", "advantage", "ebpo")
    names = {field.name for field in fields(EstimatorConfig)} - OF_TRAINING
    settings = {k: v for k, v in settings.items() if k in names} if isinstance(settings, dict) else {}
    every = dig(args, "logger", "rollouts_every")
    return Ran(folder, name, size, settings, every, found.get("status") == "running", list(unlogged(args, name)))


def dig(args: Any, *path: str) -> Any:
    for part in path:
        args = args.get(part) if isinstance(args, dict) else None
    return args


def unlogged(args: Any, estimator: str) -> Iterator[str]:
    """Settings under which OpenRLHF's own advantages hold more than the rewards say."""
    coefficient = dig(args, "algo", "kl", "init_coef")
    if isinstance(coefficient, (int, float)) and coefficient > 0 and not dig(args, "algo", "kl", "use_loss"):
        yield f"--algo.kl.init_coef {coefficient:g} (KL penalties)"
    if estimator == "reinforce" and dig(args, "algo", "advantage", "gamma") not in (None, 1):
        yield "--algo.advantage.gamma (discounts)"
    if dig(args, "algo", "advantage", "no_std_norm"):
        yield "--algo.advantage.no_std_norm"


def wanted(ran: Ran, name: str | None, given: dict[str, Any]) -> Estimator:
    """The estimator to replay.

    Raises:
        UsageError: there is none of this name and settings, or nothing but training can compute it.
        RunDirectoryError: run.json has settings that make no sense.
    """
    if name is None and is_import_path(ran.estimator):
        raise UsageError(
            f"{ran.folder}/run.json names code of somebody's own as its estimator. To run that code, give it yourself: "
            f"--estimator {ran.estimator}"
        )
    name = name or ran.estimator
    parts = {k: v for k, v in given.items() if k != "init_prior"}
    kept = {k: v for k, v in ran.settings.items() if k in REWARDS or not parts.keys() - {*REWARDS}}
    try:
        if isinstance(clip := kept.get("reward_clip_range"), list):
            kept["reward_clip_range"] = tuple(map(float, clip))  # JSON's, with infinity as text
        settings = EstimatorConfig(ran.size, **{**kept, **parts})
    except (TypeError, ValueError, ArithmeticError) as error:
        where = "" if parts else f"{ran.folder}/run.json: "
        raise UsageError(f"{where}{str(error)[:300]}") from error
    estimator = registry.offline(name, settings)
    if estimator is None:
        raise UsageError(f"--estimator {name} cannot be replayed: rollouts do not hold a critic's values")
    return estimator


def is_same(ran: Ran, estimator: Estimator) -> bool:
    """Whether this is the estimator that ran, with its settings."""
    return estimator.name == ran.estimator and estimator.identity() == wanted(ran, estimator.name, {}).identity()


def known_starts(ran: Ran, estimator: Estimator, same: bool, init_prior: str | None) -> dict[int, Any]:
    """step -> the state before it: what the run log says, if its states are this estimator's, and --…init_prior.

    Raises:
        RunDirectoryError: the log's file is damaged.
        PriorMismatch: a state belongs to another estimator.
    """
    starts = {1: stored.read(estimator, init_prior)} if init_prior else {}
    if not same or not registry.computed_here(estimator.name):
        return starts
    path = ran.folder / PRIOR_STARTS
    try:
        rows = [(row["step"], row["state"]) for row in read_json_lines(path)]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise RunDirectoryError(f"{path} is damaged ({str(error)[:300]})") from error
    if not all(type(step) is int for step, _ in rows):
        raise RunDirectoryError(f"{path} is damaged (a step is no whole number)")
    return {**{step: stored.unpack(estimator, state, f"{path}, step {step}") for step, state in rows}, **starts}


def check_steps(ran: Ran, estimator: Estimator, steps: Sequence[int], starts: dict[int, Any], dropped: int = 0) -> None:
    """Whether the logged steps are enough. dropped: those up to this one were removed on purpose.

    Raises:
        UsageError: there are none; or the estimator's state before some is not known.
    """
    if not steps:
        raise UsageError(f"{ran.folder}/rollouts holds no step" + (" yet" if ran.running else ""))
    unknown = unknown_starts(steps, starts) if keeps_state(estimator) else []
    if unknown:
        every = ran.rollouts_every
        if type(every) is int and every > 1:
            why = f"the run had --logger.rollouts_every {every}"
        elif unknown[0] == dropped + 1:
            why = f"the rollouts up to step {dropped} were removed, as --logger.keep_rollouts says"
        else:
            why = f"no rollouts of step {unknown[0] - 1} are in {ran.folder}/rollouts"
        raise UsageError(
            f"{estimator.name} keeps a state from step to step, and its state before step {unknown[0]} is not known: {why}. "
            "An estimator without a state can be replayed (--estimator group_norm)"
        )


# What comes out


def counted(steps: Iterable[Logged], total: int) -> Iterator[Logged]:
    """A line on a terminal says how far it is."""
    shown = sys.stderr.isatty()
    for number, step in enumerate(steps, 1):
        if shown:
            print(f"\rreplaying: step {number:,} of {total:,}", end="", file=sys.stderr, flush=True)
        yield step
    print("\r\033[K" if shown else "", end="", file=sys.stderr, flush=True)


def compared(steps: Iterable[Replayed], output: Path | None) -> dict[int, Difference]:
    """step -> how it differs; every response goes to `output`, if one is given."""
    if output is None:
        return {step.logged.step: Difference.of(step) for step in steps}
    found = {}
    with replacing(output) as temporary, pq.ParquetWriter(temporary, OUTPUT, compression="zstd") as writer:
        for step in steps:
            found[step.logged.step] = Difference.of(step)
            writer.write_table(rows(step))
    return found


def rows(step: Replayed) -> pa.Table:
    batch = step.logged.batch
    groups, size = batch.rewards.shape
    values = {
        "step": np.full(groups * size, step.logged.step),
        "group": np.repeat(np.arange(groups), size),
        "sample": np.tile(np.arange(size), groups),
        "prompt_id": np.repeat(np.array(step.logged.prompt_ids, object), size),
        "valid": batch.valid,
        "reward": np.where(batch.valid, batch.rewards, np.nan),
        "baseline": step.logged.baselines,
        "advantage": step.logged.advantages,
        "replayed_baseline": step.baselines,
        "replayed_advantage": step.advantages,
    }
    arrays = [pa.array(np.ravel(values[f.name]), f.type, from_pandas=True) for f in OUTPUT]
    return pa.table(arrays, schema=OUTPUT)


def heading(ran: Ran, estimator: Estimator, steps: int, dropped: int) -> str:
    now = ", still going on" if ran.running else ""
    now += f" (steps up to {dropped:,} were dropped: --logger.keep_rollouts)" if dropped else ""
    return (
        f"run       {ran.folder}: {registry.title(ran.estimator)}, {steps:,} logged steps, {ran.size} responses a prompt{now}\n"
        f"replayed  {described(estimator)}"
    )


def described(estimator: Estimator) -> str:
    entry = registry.ESTIMATORS.get(estimator.name)
    preset = f", preset {estimator.config.preset}" if estimator.name == "ebpo" else ""
    return f"{entry.title}{preset}: {entry.baseline}" if entry else estimator.name


def table(found: dict[int, Difference]) -> str:
    """At most LINES spans of steps, and all of them."""
    steps = list(found)
    spans = [list(span) for span in np.array_split(steps, min(LINES, len(steps)))]
    head = (
        f"{'steps':>13} {'responses':>10} {'largest diff':>13} {'mean |diff|':>12} {'turned':>7} "
        f"{'zero: logged':>13} {'replayed':>9} {'std: logged':>12} {'replayed':>9}"
    )
    lines = [_line(_span(span), Difference.over([found[step] for step in span])) for span in spans]
    return "\n".join(["", head, *lines, _line("all", Difference.over(list(found.values()))), ""])


def _span(steps: Sequence[int]) -> str:
    return f"{steps[0]}" if len(steps) == 1 else f"{steps[0]}-{steps[-1]}"


def _line(name: str, found: Difference) -> str:
    return (
        f"{name:>13} {found.responses:>10,} {found.largest:>13.3g} {found.mean:>12.3g} {found.turned:>7.1%} "
        f"{found.zero_logged:>13.1%} {found.zero_replayed:>9.1%} {found.std_logged:>12.3f} {found.std_replayed:>9.3f}"
    )


def verdict(ran: Ran, estimator: Estimator, same: bool, found: dict[int, Difference]) -> str:
    """The last line.

    Raises:
        ReportedError: the estimator that ran gives something else than is logged.
    """
    whole = Difference.over(list(found.values()))
    worst = max(found, key=lambda step: found[step].largest)
    size = f"{len(found):,} steps, {whole.responses:,} responses"
    largest = f"the largest difference of an advantage is {whole.largest:.3g}, in step {worst}"
    if not same:
        return f"{size}: {largest}"
    if registry.computed_here(estimator.name):
        if not whole.unequal:
            return f"bit for bit: {size}, baselines and advantages as logged"
        first = next(step for step, each in found.items() if each.unequal)
        cause = ": rounding, of an older version or of another machine" if whole.largest < NOISE * whole.scale else ""
        raise ReportedError(
            f"not as logged: {whole.unequal:,} of {whole.responses:,} responses differ, first in step {first}; {largest}{cause}"
        )
    if ran.unlogged:
        return f"{size}: {largest}. It says little: OpenRLHF also applied {', '.join(ran.unlogged)}, which no rollout holds"
    if any(each.largest > ROUNDING * max(each.scale, 1e-12) for each in found.values()):
        why = " (which gives up to 0.9 to a group whose rewards are all 0.3)" if estimator.name == "group_norm" else ""
        raise ReportedError(f"not as logged: {largest}, more than OpenRLHF's rounding in float32{why}")
    return f"as logged, within OpenRLHF's rounding in float32: {size}; {largest}"


main = command("openrlhf-ebpo replay", __doc__, add_flags, run)

if __name__ == "__main__":
    main()
