r"""Write generated tasks of reasoning-gym, which `--reward.remote_url reasoning_gym` scores with the scorers of that package.

  openrlhf-ebpo data gym --list                                 all kinds of tasks, with their settings
  openrlhf-ebpo data gym --list chain_sum                       one of them
  openrlhf-ebpo data gym 'chain_sum:{"size": 2000, "max_terms": 4}' --validation 200 --output gym/train.parquet
  openrlhf-ebpo data gym 'spell_backward:{"size": 3000}' countdown leg_counting --output mix.jsonl
  openrlhf-ebpo data gym chain_sum --template $'{question}\nAnswer: ' --output bare.jsonl       for a base model

NAME:{"size": 2000, "seed": 7, "max_terms": 4} is 2,000 tasks of a kind, with these settings of its configuration, as JSON;
--list NAME shows them.
Several are a mixture, in shares by size, shuffled. One kind may come several times, with other settings.

Every task is tried before it is written: reasoning-gym's own answer has to get full marks, and wrong ones must not. A kind
where that fails is refused by name. Questions are different from each other, and what is held out is never trained on; a kind that has
not so many different questions is refused, with how many it has.

What it writes, all at once or not at all:
  OUTPUT                       columns id, prompt, label (the entry, for the reward), question, datasource (the kind)
  X.validation.parquet         for X.parquet, X.validation.jsonl for X.jsonl: the held-out tasks, with --validation
  OUTPUT.report.json           settings, and for each kind how many were drawn, repeated or left out

The next steps take the file as `data prepare`'s: topics, difficulty, order, train.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import random
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from openrlhf_ebpo.command import command
from openrlhf_ebpo.data import report
from openrlhf_ebpo.data.clean import held_out, prepared_schema
from openrlhf_ebpo.data.gym_tasks import SIZE, Drawn, Kind, draw, shares
from openrlhf_ebpo.data.prepare import number_or_share
from openrlhf_ebpo.data.questions import check_template, shown
from openrlhf_ebpo.data.table import check_suffix, write_table
from openrlhf_ebpo.errors import UsageError, raise_problems
from openrlhf_ebpo.rewards import gym
from openrlhf_ebpo.rewards.pool import shared_pool
from openrlhf_ebpo.rewards.reasoning_gym import GRADER

TEMPLATES = {
    "answer": "{question}\n\nThink step by step. Then give the final answer alone, between <answer> and </answer>."
}
ALWAYS = ("size", "seed")  # settings of every kind
MAX_LIST_CHARS = 100  # of the settings in the list of all kinds


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("kinds", nargs="*", metavar='NAME[:{"size": N, …}]', help=f"kinds of tasks; {SIZE} of each without a size")
    add("--output", metavar="FILE", help="tasks to train on: .parquet or .jsonl")
    add("--force", action="store_true", help="replace an output that was made with other settings")
    add("--list", action="store_true", help="print the kinds, or those named, with their settings, and end")
    add(
        "--validation",
        type=number_or_share,
        default=0,
        metavar="N|SHARE",
        help="tasks held out, in addition to those to train on: a number of all kinds together, or a share of each kind's size "
        "such as 0.02 (default: %(default)s)",
    )
    add(
        "--template",
        default="answer",
        metavar="answer|own|chat|TEXT",
        help="what the model is shown. answer: the question, and to give the answer between <answer> and </answer> "
        "(default). own: the question alone. chat: the question as chat messages, for --data.apply_chat_template. Anything "
        "else is text with {question} in it; in bash, $'...' makes \\n a line break",
    )
    add("--system", metavar="TEXT", help="with --template chat: a system message before the user's")
    add(
        "--seed",
        type=int,
        default=42,
        help="of the order, of what is held out, and of the kinds without their own seed (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> None:
    """Write the tasks, or list the kinds.

    Raises:
        UsageError: about a flag, a kind, its settings or its scorer; the problems of all kinds, a line each.
    """
    if args.list:
        print(list_kinds(args.kinds))
        return
    check(args)
    kinds = collect(lambda spec: Kind.of(spec, args.seed), args.kinds)
    settings = output_settings(args, kinds)
    made = None if args.force else report.finished(args.output, settings)
    if made and (not holds_out(made) or validation_path(args.output).exists()):
        print(f"{args.output} is done already with these settings; --force makes it again\n")
    else:
        made = write(args, kinds, settings)
    print(as_text(made, args.output))


def write(args: argparse.Namespace, kinds: list[Kind], settings: dict) -> dict:
    """Draw the tasks, write them and the report; returns that."""
    held = shares([kind.size for kind in kinds], args.validation)
    found = draw_kinds(kinds, held)
    train, validation = split(found, held, args.seed)
    beside = validation_path(args.output)
    if not validation and holds_out(report.read(args.output)):
        beside.unlink(missing_ok=True)
    made = {"settings": settings, "kinds": [summarise(*each) for each in zip(kinds, found, held, strict=True)]}
    with report.replaced(args.output, made):
        if validation:
            write_table(table(validation, args.template, args.system), beside)
        write_table(table(train, args.template, args.system), args.output)
    return made


def holds_out(made: dict) -> bool:
    """Return True if a report counts held-out tasks."""
    return any(kind["validation"] for kind in made.get("kinds", ()))


def draw_kinds(kinds: list[Kind], held: list[int]) -> list[Drawn]:
    """Draw the tasks of each kind, those to hold out among them.

    Raises:
        UsageError: a kind is refused, or has too few; nothing is written then.
    """
    counts = [kind.size + count for kind, count in zip(kinds, held, strict=True)]
    taken, found, pool = set(), [], shared_pool(GRADER)
    # one task of each, before much is drawn for nothing
    collect(lambda kind: check_drawn(kind, 1, draw(kind, 1, set(), pool)), kinds)
    with tqdm(total=sum(counts), unit=" tasks") as bar:
        for kind, count in zip(kinds, counts, strict=True):
            bar.set_description(kind.name)
            found.append(draw(kind, count, taken, pool, bar.update))
            check_drawn(kind, count, found[-1])
    return found


def check_drawn(kind: Kind, count: int, found: Drawn) -> None:
    if found.refused:
        raise UsageError(f"{found.problem}. It cannot be trained on: leave {kind.name} out")
    if len(found.rows) < count:
        known = ", ".join(name for name in gym.kinds()[kind.name].__dataclass_fields__ if name not in ALWAYS)
        failed = f", and {found.failed:,} failed their own scorer ({found.problem})" if found.failed else ""
        raise UsageError(
            f"{kind.spec}: {count:,} different tasks are asked for (size={kind.size}, and {count - kind.size:,} held "
            f"out), and {found.draws:,} draws gave {len(found.rows):,}: {found.repeats:,} were repetitions{failed}. Give a "
            f"smaller size, or other settings ({known or 'it has none'})"
        )


def collect(function: Callable, items: list) -> list:
    """Return the results for all items.

    Raises:
        UsageError: the problems of all items, a line each.
    """
    results, problems = [], []
    for item in items:
        try:
            results.append(function(item))
        except UsageError as error:
            problems.append(str(error))
    raise_problems(problems)
    return results


def split(found: list[Drawn], held: list[int], seed: int) -> tuple[list[dict], list[dict]]:
    """Return the rows of both files, shuffled. What is held out follows from id and seed, as in `data prepare`."""
    train, validation = [], []
    for each, count in zip(found, held, strict=True):
        mask = held_out(np.array([int(number, 16) for number in each.rows], np.uint64), count, seed)
        for row, out in zip(each.rows.values(), mask.tolist(), strict=True):
            (validation if out else train).append(row)
    for rows in (train, validation):
        random.Random(seed).shuffle(rows)
    return train, validation


def table(rows: list[dict], template: str, system: str | None) -> pa.Table:
    schema = prepared_schema(messages=template == "chat")
    prompts = [row["question"] for row in rows]
    if template != "own":
        prompts = [shown([{"role": "user", "content": text}], text, template, system, TEMPLATES) for text in prompts]
    return pa.Table.from_pylist(
        [{**row, "prompt": prompt} for row, prompt in zip(rows, prompts, strict=True)], schema=schema
    )


def check(args: argparse.Namespace) -> None:
    if not args.kinds:
        raise UsageError("name a kind of tasks, such as chain_sum; --list shows them all")
    if not args.output:
        raise UsageError("--output is missing: a .parquet or .jsonl file")
    check_suffix(args.output, "--output")
    check_template(args.template, ("own", *TEMPLATES, "chat"), args.system)
    if args.seed < 0:
        raise UsageError(f"--seed is {args.seed}; give a whole number from 0 on")
    if args.validation > gym.MAX_TASKS:
        raise UsageError(f"--validation is {args.validation}; at most {gym.MAX_TASKS:,} tasks can be held out")
    beside = validation_path(args.output)
    if beside.exists() and not Path(args.output).exists() and not args.force:
        raise UsageError(f"{beside} is there, and {args.output} is not: name another --output, or --force replaces it")


def validation_path(output: str) -> Path:
    path = Path(output)
    return path.with_name(f"{path.stem}.validation{path.suffix}")


def output_settings(args: argparse.Namespace, kinds: list[Kind]) -> dict:
    """Return the settings that determine the output."""
    return {
        "kinds": [f"{kind.name}:{json.dumps(kind.settings)}" for kind in kinds],
        **{name: getattr(args, name) for name in ("template", "system", "validation", "seed")},
        "reasoning_gym": importlib.metadata.version("reasoning-gym"),
    }


def summarise(kind: Kind, found: Drawn, held: int) -> dict:
    counts = {name: count for name, count in asdict(found).items() if isinstance(count, int)}
    return {"kind": kind.spec, "train": kind.size, "validation": held, **counts}


def as_text(made: dict, output: str) -> str:
    lines = [f"{'train':>9}{'held out':>10}{'repeats':>9}{'failed':>8}  kind"]
    for row in made["kinds"]:
        counts = f"{row['train']:>9,}{row['validation']:>10,}{row['repeats']:>9,}{row['failed']:>8,}"
        lines.append(f"{counts}  {row['kind']}")
    lines += [
        "",
        "repeats: drawn again and left out; failed: left out, as reasoning-gym's own answer got no full marks, a wrong one "
        "did, or the task cannot be saved",
    ]
    held = validation_path(output) if holds_out(made) else None
    chat = made["settings"]["template"] == "chat"
    training = report.training_command(output, "--reward.remote_url reasoning_gym", chat=chat, validation=held)
    return "\n".join([*lines, f"\ntrain on it:  {training}"])


def list_kinds(names: list[str]) -> str:
    """Return a line for each kind, with its settings and their defaults.

    Raises:
        UsageError: no such kind, or reasoning-gym is not installed.
    """
    kinds = gym.kinds()
    for name in names:
        gym.config_of(name)  # raises, and says which are near
    texts = {name: json.dumps(defaults(kinds[name])) for name in names or sorted(kinds)}
    longest = None if names else MAX_LIST_CHARS
    return "\n".join(f"{name:<28}{text[:longest]}{'…' * (text != text[:longest])}" for name, text in texts.items())


def defaults(config: type) -> dict:
    """Return the settings that not every kind has, in JSON's types."""
    return {each.name: gym.as_json(gym.default(each)) for each in fields(config) if each.name not in ALWAYS}


main = command("openrlhf-ebpo data gym", __doc__, add_flags, run, extra="data")
