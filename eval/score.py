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
  error      "timeout" or "crash": the answer took all its time or memory, which is wrong, as is "score: …", what the
             benchmark's own scorer raised;
             "gold: …": the gold cannot be read, or "row: …": another mistake in the row; such rows count for nothing
  rules      with --task: how the row was compared, so that the output can be scored again by itself

The answer is the last \\boxed{}, or else the last "Answer:" line, compared by math-verify: 1/2 is 0.5.

--task NAME says how the benchmark's golds are to be read, and which columns of a row say how it is compared:
BENCHMARKS
  my_module:TASK  a custom benchmark; its scorer, if it has one, runs for every row
Rules for a single row: a column `rules` with an object, such as {"tolerance": 0.01, "unit": "cm"}; it may have
is_multiple_answer (all are asked for, in any order), ordered (their order counts), unit, tolerance (largest difference
from the gold that still counts), answer_type (Interval, Tuple, …).

Answers are graded in processes that are killed after --seconds of processor time, so no answer can hold up the others.
Killed or interrupted? Repeat the command: rows that were scored are kept (OUTPUT.progress.jsonl). Another input or
other flags are refused unless --force starts over.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
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
from openrlhf_ebpo.eval.custom_scorer import FAILED
from openrlhf_ebpo.eval.grader import NO_GOLD, SECONDS, Grader
from openrlhf_ebpo.eval.protocols import Protocol
from openrlhf_ebpo.eval.tasks import OWN, Benchmark, Rules, custom_benchmarks
from openrlhf_ebpo.files import replacing
from openrlhf_ebpo.progress import file_identity, output_problems, progress_file, progress_path
from openrlhf_ebpo.rewards.extraction import opened_thoughts
from openrlhf_ebpo.rewards.grading import GoldError

BATCH_SIZE = 128  # rows that are saved together
NO_ROW = "row: "  # how the error of a row begins that cannot be scored for another reason than its gold
TYPES = {"correct": pa.bool_(), **dict.fromkeys(("extracted", "error", "rules"), pa.string())}
MAX_NAMED = 10  # unusable rows in the summary
PLAIN = Benchmark("rows")  # of no benchmark: golds as they are, a list is several answers


class Pair(NamedTuple):
    gold: str
    rules: Rules
    response: str
    in_thoughts: bool = False


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--input", required=True, metavar="FILE", help=".jsonl or .parquet with gold and response")
    parser.add_argument("--output", required=True, metavar="FILE", help=".jsonl or .parquet")
    parser.add_argument("--task", metavar="NAME", help="benchmark of the golds; see above")
    parser.add_argument("--workers", type=int, metavar="N", help="grading processes (default: one per core)")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="processor time for one answer (%(default)s, as in training)"
    )
    parser.add_argument("--force", action="store_true", help="start over; earlier progress is kept under another name")


def run(args: argparse.Namespace) -> None:
    """Score the input file and write the output.

    Raises:
        UsageError: a mistake in the flags or the input; all are found before the first answer is graded.
    """
    check(args)
    protocol = protocols.PROTOCOLS["default"]
    protocols.check_scorer(protocol)
    total = sum(1 for _ in rows_of(args.input))  # reads all of it, so that a broken line is found now
    if not total:
        raise UsageError(f"--input {args.input}: the file is empty")
    if is_parquet(args.output):
        read_table(args.input, ("gold", "response"))  # must fit into columns
    try:
        with progress_file(progress_path(args.output), identity(args, protocol), args.force) as (lines, append):
            grades = [grade for line in lines for grade in line["grades"]]
            for batch in score_rest(args, len(grades), total):
                append({"grades": batch})
                grades += batch
            write(args, grades)
    except OSError as error:
        raise ReportedError(f"{error}; rows that were scored are kept, repeat the command to resume") from error
    print(f"{summary(grades)}\n{args.output}")


def check(args: argparse.Namespace) -> None:
    """Check the flags and the input's columns.

    Raises:
        UsageError: all problems with the flags, one per line; or with the input's columns.
    """
    problems = []
    try:
        benchmark_of(args)
    except UsageError as error:
        problems.append(str(error))
    if args.workers is not None and args.workers < 1:
        problems.append(f"--workers {args.workers}: must be at least 1")
    if not 0 < args.seconds < float("inf"):
        problems.append(f"--seconds {args.seconds}: must be above 0")
    check_suffix(args.output, "--output")
    raise_problems([*problems, *output_problems(args.output, args.input, args.force)])
    if found := column_names(args.input):
        check_columns(found, ("gold", "response"), args.input)


def benchmark_of(args: argparse.Namespace) -> Benchmark:
    return PLAIN if args.task is None else tasks.find(args.task, "--task")


def identity(args: argparse.Namespace, protocol: Protocol) -> dict:
    """Return what the grades depend on."""
    scorer = f"{protocol.scorer} {protocol.scorer_version} (sympy {importlib.metadata.version('sympy')})"
    return {
        "input": file_identity(args.input),
        "extraction": protocol.extraction,
        "scorer": scorer,
        "task": args.task if args.task is None else custom_benchmarks.identity(args.task),
        "seconds": args.seconds,
    }


def is_parquet(path: str) -> bool:
    return Path(path).suffix.lower() == ".parquet"


def rows_of(path: str) -> Iterator[dict]:
    return itertools.chain.from_iterable(read_rows(path, batch_size=BATCH_SIZE))


def score_rest(args: argparse.Namespace, done: int, total: int) -> Iterator[list[dict]]:
    """Yield the grades of the rows from number `done` on, in their order and in batches, behind a progress bar."""
    from tqdm import tqdm

    if done == total:
        return
    rows, benchmark = itertools.islice(rows_of(args.input), done, None), benchmark_of(args)
    with (
        Grader(args.workers, args.seconds) as grader,
        tqdm(total=total, initial=done, unit="row", mininterval=0.5, smoothing=0.05) as bar,
    ):
        while batch := list(itertools.islice(rows, BATCH_SIZE)):
            yield list(grader.map(lambda row: grade_row(grader, row, benchmark, args.task or ""), batch))
            bar.update(len(batch))


def grade_row(grader: Grader, row: dict, benchmark: Benchmark, named: str) -> dict:
    """Return correct, extracted, error, rules of one row. named: what --task calls the benchmark."""
    try:
        pair = read_pair(row, benchmark, named)
    except ValueError as error:
        start = NO_GOLD if isinstance(error, GoldError) else NO_ROW
        return {"correct": False, "extracted": None, "error": f"{start}{error}", "rules": None}
    return {**grader.grade(*pair), "rules": pair.rules.text()}


def read_pair(row: Mapping, benchmark: Benchmark = PLAIN, named: str = "") -> Pair:
    """Return what a row asks to compare. benchmark: which the golds are from, and whose rules hold. A row's own `rules`
    win over them, but for who scores: that is `named`, what --task calls the benchmark.

    Raises:
        GoldError: there is no gold answer. ValueError: another mistake in the row.
    """
    value, response = row.get("gold"), row.get("response")
    try:
        gold = benchmark.gold_of(value) if benchmark.answer else ""
    except ValueError as error:
        raise GoldError(str(error)) from None
    rules = Rules.read(row["rules"]) if row.get("rules") else None
    if benchmark.score:
        entry = {"entry": rules.entry} if rules and rules.kind == OWN else {}
        rules = replace(custom_benchmarks.scored_rules(benchmark, named, row), **entry)
    rules = rules or benchmark.rules_of(row, value, gold)
    if rules.kind == OWN and not benchmark.score:  # what a file names is not imported
        raise ValueError(f"it is scored by {rules.scorer.partition('@')[0] or 'a scorer'!r:.80}: name that with --task")
    if not isinstance(response, (str, type(None))):
        raise ValueError(f"its response is not text but {type(response).__name__}: {str(response)[:60]}")
    prompt = row.get("prompt")
    return Pair(gold, rules, response or "", isinstance(prompt, str) and bool(opened_thoughts(prompt)))


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
    with replacing(args.output) as temporary, open(temporary, "w") as file:
        for row, grade in zip(rows_of(args.input), grades, strict=True):
            file.write(json.dumps({**row, **{name: grade[name] for name in names}}, default=str) + "\n")


def summary(grades: list[dict]) -> str:
    """Return what came out, and which rows could not be scored."""
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
    lines += [
        f"{count:,} failed in their scorer and count as wrong: {why}" for why, count in failed.most_common(MAX_NAMED)
    ]
    if unusable:
        lines.append(f"{len(unusable):,} rows cannot be scored and count for nothing:")
        lines += [f"  row {number}: {error}" for number, error in unusable[:MAX_NAMED]]
        lines += [f"  … and {len(unusable) - MAX_NAMED:,} more"] if len(unusable) > MAX_NAMED else []
    return "\n".join(lines)


main = command(
    "openrlhf-ebpo eval score", __doc__.replace("BENCHMARKS", tasks.described()), add_flags, run, extra="eval"
)

if __name__ == "__main__":
    main()
