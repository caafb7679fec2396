"""Kill processes of trainings at random moments, resume, and check at the end that nothing is lost.

    bash scripts/faults.sh --minutes 60                    every kind, every mode, 20 kills each; goes on where it stopped
    bash scripts/faults.sh --kinds driver engine --modes async --kills 3
    bash scripts/faults.sh --command 'python -m openrlhf_ebpo.cli.train_ppo_ray --train.max_restarts 9' --dir runs/restarts
    bash scripts/faults.sh --table                         what has been found so far (docs/runs.md)

Everything is appended to DIR/results.jsonl; a command that is cut off is repeated to go on. A kill costs a start of the training: half a
minute or more on two cores.
"""

import argparse
import contextlib
import json
import random
import shlex
import signal
import sys
import time
from pathlib import Path

import forked
import kinds
import moment
import table
import workshop
from story import DISK, Story

from openrlhf_ebpo.files import append_json_line, read_json_lines

HERE = Path(__file__).parent
MOST_TRAININGS = 3  # for a plan whose moments pass unseen


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="faults.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = [*kinds.KINDS, DISK]
    parser.add_argument("--dir", type=Path, default=Path("runs/faults"), help="results and trainings (runs/faults)")
    parser.add_argument(
        "--kinds", nargs="+", choices=every, default=every, metavar="KIND", help=f"of {', '.join(every)}"
    )
    parser.add_argument("--modes", nargs="+", choices=list(workshop.RANKS), default=list(workshop.RANKS))
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="of each kind in each mode, in all (20)")
    parser.add_argument(
        "--episodes", type=int, default=4, metavar="N", help=f"of a training, {workshop.STEPS} steps each (4)"
    )
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="then the training under way is finished and checked"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--command",
        type=shlex.split,
        default=None,
        metavar="WORDS",
        help="what starts a training, to try another version",
    )
    parser.add_argument(
        "--plan",
        nargs="+",
        metavar="KIND@MOMENT",
        help="instead: one training in each mode with these kills, such as policy@saving:2 engine@step+0.5 gcs@start+20",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=1.0,
        metavar="X",
        help="what counts as hung takes X times as long as on a machine without other work (1)",
    )
    parser.add_argument(
        "--forked", action="store_true", help="fork Ray's workers and the engines from one process: a third of the time"
    )
    parser.add_argument("--table", action="store_true", help="only print the table of what was found")
    return parser.parse_args(argv)


def missing(rows: list[dict], args) -> dict[tuple[str, str], int]:
    """Kills still to be done, by mode and kind."""
    pairs = [
        (mode, kind) for mode in args.modes for kind in args.kinds if mode == "async" or kind not in kinds.ASYNC_ONLY
    ]
    wanted = dict.fromkeys(pairs, args.kills)
    for row in rows:
        key = row.get("mode"), row.get("kind")
        if row["event"] in ("kill", "absent") and key in wanted:
            wanted[key] -= 1
    return {key: count for key, count in wanted.items() if count > 0}


def unfinished(rows: list[dict], mode: str) -> tuple[int, bool]:
    """Number of the mode's training that is to be gone on with, and whether there is one already."""
    begun = [row["story"] for row in rows if row["event"] == "begin" and row["mode"] == mode]
    ended = [row["story"] for row in rows if row["event"] in ("end", "stuck") and row["mode"] == mode]
    return (begun[-1], True) if begun and begun[-1] not in ended else (len(begun) + 1, False)


def run(args) -> None:
    folder = args.dir.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    results, until = folder / "results.jsonl", time.monotonic() + 60 * args.minutes
    workshop.build(folder)
    rng = random.Random(f"{args.seed} {len(read_json_lines(results))}")
    with forked.environment(folder) if args.forked else contextlib.nullcontext() as environment:
        run_modes(args, folder, results, until, rng, environment)
    print(table.of(read_json_lines(results)))


def run_modes(args, folder: Path, results: Path, until: float, rng: random.Random, environment: dict | None) -> None:
    for mode in args.modes:
        while (left := by_kind(missing(read_json_lines(results), args), mode)) and time.monotonic() < until:
            number, begun = unfinished(read_json_lines(results), mode)

            def report(event: str, mode=mode, number=number, **row) -> None:
                append_json_line(results, {"event": event, "mode": mode, "story": number, "time": time.time(), **row})
                print(time.strftime("%H:%M:%S"), mode, number, event, json.dumps(row)[:400], flush=True)

            if not begun:
                report("begin", episodes=args.episodes)
            chosen = [word.partition("@")[0] for word in args.plan or args.kinds]
            how = {"command": args.command, "patience": args.patience, "environment": environment}
            with contextlib.closing(Story(folder, mode, number, args.episodes, report, chosen, **how)) as story:
                if args.plan and (play_plan(story, args.plan) or number >= MOST_TRAININGS):
                    break
                if not args.plan:
                    play(story, left, rng, until)
            of_story = [row for row in read_json_lines(results) if (row["mode"], row["story"]) == (mode, number)]
            if story.status == "stuck" and not any(row["event"] == "kill" for row in of_story):
                sys.exit(f"the training does not start, without any kill: {story.output}, log-*.txt")


def by_kind(left: dict[tuple[str, str], int], mode: str) -> dict[str, int]:
    return {kind: count for (each, kind), count in left.items() if each == mode}


def play(story: Story, left: dict[str, int], rng: random.Random, until: float) -> None:
    """One training to its end, killed on its way for as long as there are kills left and time is."""
    while story.status == "running":
        kind = rng.choice(sorted(left)) if left and time.monotonic() < until else None
        if kind is None:
            story.go_on()
        elif story.strike(kind, moment.at_random(rng)):
            left = {each: count - (each == kind) for each, count in left.items() if count > (each == kind)}
    story.check()


def play_plan(story: Story, plan: list[str]) -> bool:
    """One training to its end, with these kills in a row. False where it came to its end before them all: on a busy machine
    a moment may pass unseen."""
    strikes = [(kind, moment.Moment.parse(when)) for kind, _, when in (text.partition("@") for text in plan)]
    while story.status == "running":
        if not strikes:
            story.go_on()
        elif story.strike(*strikes[0]):
            strikes.pop(0)
    story.check()
    return not strikes


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    if args.table:
        print(table.of(read_json_lines(args.dir / "results.jsonl")))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped; repeat the command to go on"))
    kinds.become_subreaper()
    run(args)


if __name__ == "__main__":
    main()
