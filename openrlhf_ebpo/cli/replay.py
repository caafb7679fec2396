"""Recompute a run's advantages from its rollouts, with its estimator or another one.

With the run's own estimator: check that the logged rewards give the logged advantages, bit for bit if this package
computed them, within float32's rounding if OpenRLHF did; the exit status is 1 if they do not. With another one: show
the advantages that it would have given for the same responses. Needs neither GPU nor torch; a run that is still
training may be replayed.

  openrlhf-ebpo replay runs/quickstart/arms/ebpo/run                                check the run
  openrlhf-ebpo replay runs/quickstart/arms/ebpo/run --estimator group_norm         what GRPO would have given
  openrlhf-ebpo replay runs/quickstart/arms/ebpo/run --estimator ebpo.corrected     with other parts of EBPO

The table compares the advantages that training used (logged) with the replayed ones:
  mean |diff|   mean of |replayed - logged|
  turned        responses whose advantage changes its sign
  zero          responses whose advantage is 0
  std           standard deviation of the advantages: two estimators may differ only in scale
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from openrlhf_ebpo.cli.logged_run import LoggedRun
from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.estimator.advantage_settings import add_flags as add_estimator_flags
from openrlhf_ebpo.estimator.config import EBPO_FLAG
from openrlhf_ebpo.estimator.contract import Estimator
from openrlhf_ebpo.estimator.replay import Difference, replay

PREFIX = EBPO_FLAG.removeprefix("--") + "."
MAX_LINES = 20  # of the table


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_dir", metavar="RUN_DIR", type=Path, help="--logger.run_dir of a training (run.json is in it)"
    )
    parser.add_argument(
        *("--estimator", registry.ESTIMATOR_FLAG),
        type=registry.parse_name,
        metavar="NAME",
        help=f"default: the one that ran. Others: {', '.join([*registry.ESTIMATORS, *registry.VARIANTS])} "
        "(`openrlhf-ebpo train --help` describes them), or your own as MODULE:NAME",
    )
    add_estimator_flags(parser)
    for action in parser._actions:
        if action.dest.startswith(PREFIX):
            action.default = argparse.SUPPRESS  # what is not given is as it was in the run
    parser._option_string_actions[f"--{PREFIX}reset_prior"].help = argparse.SUPPRESS


def run(args: argparse.Namespace) -> None:
    given = {k.removeprefix(PREFIX): v for k, v in vars(args).items() if k.startswith(PREFIX)}
    if "reset_prior" in given:
        raise UsageError(f"--{PREFIX}reset_prior: a replay begins as the run did; leave it out")
    ran, name = LoggedRun.read(args.run_dir), args.estimator
    if name:
        name, preset = registry.split_preset(name)
        given |= {"preset": preset} if name == "ebpo" else {}
    estimator = ran.build(name, given)
    starts = ran.starts(estimator, given.get("init_prior"))
    print(heading(ran, estimator), flush=True)
    found = {each.step: Difference.of(each, result) for each, result in replay(estimator, ran.steps(), starts)}
    if not ran.is_of(estimator):
        print(format_table(found))
    print(ran.verdict(estimator, found))


def heading(ran: LoggedRun, estimator: Estimator) -> str:
    more = ", still training" if ran.running else ""
    name, preset = estimator.name, estimator.config.preset
    taken = registry.baseline(name, preset)
    title = registry.title(name if preset == registry.PAPER else f"{name}.{preset}")
    return (
        f"run       {ran.folder}: {registry.title(ran.estimator)}, {len(ran.files):,} logged steps, "
        f"{ran.size} responses a prompt{more}\nreplayed  {f'{title}: {taken}' if taken else name}"
    )


def format_table(found: dict[int, Difference]) -> str:
    """At most MAX_LINES spans of steps, and all of them."""
    steps = list(found)
    spans = [span.tolist() for span in np.array_split(steps, min(MAX_LINES, len(steps)))]
    names = [f"{span[0]}" if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in spans]
    head = (
        f"{'steps':>13} {'responses':>10} {'largest diff':>13} {'mean |diff|':>12} {'turned':>7} "
        f"{'zero: logged':>13} {'replayed':>9} {'std: logged':>12} {'replayed':>9}"
    )
    lines = [_line(name, [found[step] for step in span]) for name, span in zip(names, spans, strict=True)]
    return "\n".join(["", head, *lines, _line("all", found.values()), ""])


def _line(name: str, steps: Iterable[Difference]) -> str:
    found = Difference.over(steps)
    was, now = found.was, found.now
    return (
        f"{name:>13} {len(was):>10,} {found.largest:>13.3g} {np.abs(now - was).mean():>12.3g} "
        f"{(was * now < 0).mean():>7.1%} "
        f"{(was == 0).mean():>13.1%} {(now == 0).mean():>9.1%} {was.std():>12.3f} {now.std():>9.3f}"
    )


main = command("openrlhf-ebpo replay", __doc__, add_flags, run)

if __name__ == "__main__":
    main()
