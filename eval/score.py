"""Score responses against gold answers: any file with the columns `gold` and `response`, no model needed.

example:
  openrlhf-ebpo eval score --input pairs.jsonl --output scored.jsonl
  openrlhf-ebpo eval score --input pairs.parquet --output scored.parquet --task aime24

  pairs.jsonl   {"gold": "\\\\frac{1}{2}", "response": "We get \\\\boxed{0.5}."}
  scored.jsonl  the same, and "correct": true, "extracted": "0.5", "error": null

input:  .jsonl or .parquet; a gold may be a text, a number, or a list of several answers
        `prompt`, where a row has one: if it ends in an open <think>, a response without </think> gives no answer
output: the same rows in the same order with all their columns, and
  correct    whether the response gives the gold answer
  extracted  what it gives as its answer; empty where it gives none, which is wrong
  error      "timeout" or "crash": the answer took all its time or memory, which is wrong, as is "reward: …", why a
             reward file gave no reward;
             "gold: …": the gold cannot be read, or "row: …": another mistake in the row; such rows count for nothing
  rules      with --task: how the row was compared, so that the output can be scored again by itself

The answer is the last \\boxed{}, or else the last "Answer:" line, compared by math-verify: 1/2 is 0.5. --reward FILE.py
grades by a reward_func instead, as training does: 1 or more is right.

--task NAME says how the benchmark's golds are to be read, and which columns of a row say how it is compared:
BENCHMARKS
  my_module:TASK  a custom benchmark; graded by the reward that it names
Rules for a single row: a column `rules` with an object, such as {"tolerance": 0.01, "unit": "cm"}; it may have
is_multiple_answer (all are asked for, in any order), ordered (their order counts), unit, tolerance (largest difference
from the gold that still counts), answer_type (Interval, Tuple, …).

Answers are graded in processes that are killed after two seconds of processor time (OPENRLHF_EBPO_MATH_SECONDS), so no
answer can hold up the others.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from openrlhf_ebpo.command import command
from openrlhf_ebpo.data.training_tables import (
    check_columns,
    check_suffix,
    column_names,
    read_rows,
    read_table,
    with_column,
    write_table,
)
from openrlhf_ebpo.errors import ReportedError, UsageError, raise_problems
from openrlhf_ebpo.eval import protocols, tasks
from openrlhf_ebpo.eval.eval_settings import add_reward_flags, reward_settings
from openrlhf_ebpo.eval.grader import NO_GOLD, Grader
from openrlhf_ebpo.eval.reward_file import FAILED, Asked, grade_all, reward_identity
from openrlhf_ebpo.eval.tasks import MATH, Benchmark, Rules
from openrlhf_ebpo.files import replace_file
from openrlhf_ebpo.progress import output_problems
from openrlhf_ebpo.rewards.math.grading import GoldError
from openrlhf_ebpo.rewards.reward_settings import RewardSettings

BATCH_SIZE = 128  # rows that are read together
NO_ROW = "row: "  # how the error of a row begins that cannot be scored for another reason than its gold
TYPES = {"correct": pa.bool_(), **dict.fromkeys(("extracted", "error", "rules"), pa.string())}
MAX_NAMED = 10  # unusable rows in the summary
PLAIN = Benchmark("rows")  # of no benchmark: golds as they are, a list is several answers


class Pair(NamedTuple):
    """prompt: "" where the row has none as text."""

    gold: str
    rules: Rules
    response: str
    prompt: str = ""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input", required=True, metavar="FILE", help=".jsonl or .parquet with the columns gold and response"
    )
    parser.add_argument("--output", required=True, metavar="FILE", help=".jsonl or .parquet of the result")
    parser.add_argument("--task", metavar="NAME", help="benchmark of the golds; see above")
    add_reward_flags(parser)
    parser.add_argument("--force", action="store_true", help="replace the output")


def run(args: argparse.Namespace) -> None:
    """Score the input file and write the output.

    Raises:
        UsageError: a mistake in the flags or the input; all are found before the first answer is graded.
    """
    benchmark = check_input(args)
    reward = args.reward or str(benchmark.reward or MATH)
    if reward == MATH:
        protocols.check_scorer(protocols.PROTOCOLS["default"])
        grades = score(args.input, benchmark)
    else:
        grades = score_by_file(args.input, benchmark, dataclasses.replace(reward_settings(args), sources=(reward,)))
    try:
        write(args, grades)
    except OSError as error:
        raise ReportedError(f"--output {args.output}: {error}") from error
    print(f"{summary(grades)}\n{args.output}")


def check_input(args: argparse.Namespace) -> Benchmark:
    """Check the flags and the input's columns; return the benchmark.

    Raises:
        UsageError: all problems with the flags, one per line; or with the input's columns.
    """
    reward_settings(args)
    own = args.reward if args.reward not in (None, MATH) else None
    problems, benchmark = [], dataclasses.replace(PLAIN, reward=own and Path(own))
    try:
        benchmark = benchmark if args.task is None else tasks.find_benchmark(args.task, "--task")
    except UsageError as error:
        problems.append(str(error))
    check_suffix(args.output, "--output")
    raise_problems([*problems, *output_problems(args.output, args.input, args.force)])
    if not (found := column_names(args.input)):
        raise UsageError(f"--input {args.input}: the file is empty")
    check_columns(found, ("gold", "response"), args.input)
    if is_parquet(args.output):
        read_table(args.input, ("gold", "response"))  # must fit into columns
    return benchmark


def is_parquet(path: str) -> bool:
    return Path(path).suffix.lower() == ".parquet"


def rows_of(path: str) -> Iterator[dict]:
    return itertools.chain.from_iterable(read_rows(path, batch_size=BATCH_SIZE))


def score(path: str, benchmark: Benchmark) -> list[dict]:
    """Return correct, extracted, error, rules of each row, behind a progress bar."""
    from tqdm import tqdm

    def grade(row: dict) -> dict:
        pair = pair_or_error(row, benchmark)
        return {**grader.grade(*pair), "rules": pair.rules.text()} if isinstance(pair, Pair) else pair

    total = sum(1 for _ in rows_of(path))  # reads all of it, so that a broken line is found now
    grades, rows = [], rows_of(path)
    with Grader() as grader, tqdm(total=total, unit="row", mininterval=0.5, smoothing=0.05) as bar:
        while batch := list(itertools.islice(rows, BATCH_SIZE)):
            grades += grader.map(grade, batch)
            bar.update(len(batch))
    return grades


def score_by_file(path: str, benchmark: Benchmark, settings: RewardSettings) -> list[dict]:
    """Return the same as `score`, graded by a reward file."""
    identity = reward_identity(settings.sources[0], "--reward")
    pairs = [pair_or_error(row, benchmark) for row in rows_of(path)]
    asked = [Asked(each.prompt, each.gold, each.response) for each in pairs if isinstance(each, Pair)]
    found = iter(grade_all(settings, identity, asked))
    return [{**next(found), "rules": each.rules.text()} if isinstance(each, Pair) else each for each in pairs]


def pair_or_error(row: Mapping, benchmark: Benchmark) -> Pair | dict:
    """Return `read_pair`, or the grade of a row that cannot be used."""
    try:
        return read_pair(row, benchmark)
    except ValueError as error:
        start = NO_GOLD if isinstance(error, GoldError) else NO_ROW
        return {"correct": False, "extracted": None, "error": f"{start}{error}", "rules": None}


def read_pair(row: Mapping, benchmark: Benchmark = PLAIN) -> Pair:
    """Read gold, answer and rules of a row. benchmark: gives the rules; the `rules` of a row override them.

    Raises:
        GoldError: the gold answer is missing. ValueError: another mistake in the row.
    """
    value, response, prompt = row.get("gold"), row.get("response"), row.get("prompt")
    try:
        gold = benchmark.gold_of(value)
    except ValueError as error:
        raise GoldError(str(error)) from None
    rules = Rules.read(row["rules"]) if row.get("rules") else benchmark.rules_of(row, value, gold)
    if not isinstance(response, (str, type(None))):
        raise ValueError(f"its response is not text but {type(response).__name__}: {str(response)[:60]}")
    return Pair(gold, rules, response or "", prompt if isinstance(prompt, str) else "")


def write(args: argparse.Namespace, grades: list[dict]) -> None:
    """Write the output, all of it or nothing."""
    has_rules = args.task is None or "rules" in column_names(args.input)
    names = ["correct", "extracted", "error"] + ([] if has_rules else ["rules"])
    if is_parquet(args.output):
        table = read_table(args.input)
        for name in names:
            table = with_column(table, name, [grade[name] for grade in grades], TYPES[name])
        write_table(table, args.output)
        return
    with replace_file(args.output) as temporary, open(temporary, "w") as file:
        for row, grade in zip(rows_of(args.input), grades, strict=True):
            file.write(json.dumps({**row, **{name: grade[name] for name in names}}, default=str) + "\n")


def summary(grades: list[dict]) -> str:
    """Return the results, and which rows could not be scored."""
    errors = Counter(grade["error"] for grade in grades if grade["error"] in ("timeout", "crash"))
    failed = Counter(grade["error"] for grade in grades if (grade["error"] or "").startswith(FAILED))
    unusable = [
        (number, grade["error"])
        for number, grade in enumerate(grades, 1)
        if (grade["error"] or "").startswith((NO_GOLD, NO_ROW))
    ]
    scored, correct = len(grades) - len(unusable), sum(grade["correct"] for grade in grades)
    silent = sum(grade["extracted"] is None and not grade["error"] for grade in grades)
    share = f" ({correct / scored:.1%})" if scored else ""
    ended = "".join(f", {count:,} ended in a {name}" for name, count in sorted(errors.items()))
    lines = [f"{correct:,} of {scored:,} correct{share}, {silent:,} without an answer{ended}"]
    lines += [f"{count:,} got no reward and count as wrong: {why}" for why, count in failed.most_common(MAX_NAMED)]
    if unusable:
        lines.append(f"{len(unusable):,} rows cannot be scored and count for nothing:")
        lines += [f"  row {number}: {error}" for number, error in unusable[:MAX_NAMED]]
        lines += [f"  … and {len(unusable) - MAX_NAMED:,} more"] if len(unusable) > MAX_NAMED else []
    return "\n".join(lines)


main = command(
    "openrlhf-ebpo eval score", __doc__.replace("BENCHMARKS", tasks.describe_benchmarks()), add_flags, run, extra="eval"
)

if __name__ == "__main__":
    main()
