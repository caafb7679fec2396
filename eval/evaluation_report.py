"""A report of evaluations: report.md with tables and, of several steps, the validation curve as a picture.

One directory: its results, and where it holds several steps, the first against the last and the validation curve.
Several directories: the models side by side, each at its last step, and every one compared with the first.

  openrlhf-ebpo eval report runs/ebpo                            a run with evaluated checkpoints
  openrlhf-ebpo eval report runs/grpo runs/ebpo --output report  two runs, ebpo compared with grpo
  openrlhf-ebpo eval report results/base results/mine --reported Qwen3-8B,4

A directory is a run (its eval/ is read), an --output_dir of `eval`, or a part of one. Results of different
protocols never share a table: choose one of several with --protocol.

How to read it
  pass@1     mean over all samples; ± is the standard error across runs (the same questions, answered again), the 95 %
             interval is over questions (others of their kind); with one response a question, only the latter is known
  pass@k     unbiased estimate of the probability that at least one of k samples is right
  maj@k      expected correctness of the majority vote of k samples; equivalent answers vote together
  p          two-sided sign-flip test over questions, not corrected for the number of comparisons
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.eval import paper, plots, report_tables
from openrlhf_ebpo.eval.report_tables import Column
from openrlhf_ebpo.files import replace_file, write_text
from openrlhf_ebpo.run.results import Result, check_comparable, find_results

MANY = "eval_report"
PICTURE = "validation.png"
Models = Mapping[str, Mapping[int, Column]]  # the results of each directory by its label: a column a step, in order
PASS_AT_1 = (
    "Mean over all samples ± standard error across runs: these questions, answered again. In brackets the 95 % "
    "interval over questions: others of their kind."
)
PASS_AT_K = "Unbiased pass@k; maj@k is the expected correctness of the majority vote of k samples, ties averaged."
COMPARED = "Interval over questions; p of a two-sided paired sign-flip test, not corrected for many tests."
CURVE = "In percent; bands are 95 % over questions."


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directories", nargs="+", metavar="RUN_OR_DIR", help="run or results directory; the first is the baseline"
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        help=f"where report.md and its picture go (default: with the results of one directory; {MANY}/ for several)",
    )
    parser.add_argument("--protocol", metavar="NAME", help="only results of this protocol, such as default or greedy")
    parser.add_argument(
        "--reported",
        metavar="MODEL,G",
        help="add the paper's numbers for this model and group size, such as Qwen3-8B,4",
    )


def run(args: argparse.Namespace) -> None:
    try:
        path = write_report(args.directories, args.output, args.protocol, args.reported)
    except OSError as error:
        raise ReportedError(f"the report cannot be written: {error}") from error
    print(f"report: {path}")


def write_report(
    directories: Sequence[str | Path],
    output: str | Path | None = None,
    protocol: str | None = None,
    reported: str | None = None,
) -> Path:
    """Write report.md and its picture; arguments as the flags. Returns the path of report.md.

    Raises:
        UsageError: no results, different protocols or questions, or a row that the paper does not have.
    """
    models = gather([Path(directory) for directory in directories], protocol)
    columns = choose(models)
    text = markdown(models, columns, paper.reported(reported) if reported else {})
    if not output:  # of one model, the directory of its protocol, which holds the tasks' directories
        several = len(models) > 1
        output = MANY if several else first_result(columns).path.parent.parent
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    if histories := curves(models):
        with replace_file(output / PICTURE) as temporary:
            plots.validation(histories).savefig(temporary, dpi=130, format="png")
    write_text(output / "report.md", text)
    return output / "report.md"


def gather(directories: Sequence[Path], protocol: str | None) -> Models:
    """Read the models. A column is named by its step where a model has several, and by the model where there are
    several."""
    labels = labels_of(directories)
    if len(set(labels)) < len(labels):
        raise UsageError(f"a directory is given twice: {', '.join(labels)}")
    models, everything = {}, []
    for label, directory in zip(labels, directories, strict=True):
        results = find_results(directory)
        chosen = [result for result in results if protocol in (None, result.protocol["name"])]
        if not chosen:
            there = ", ".join(sorted({result.protocol["name"] for result in results}))
            raise UsageError(f"{directory} has no results of --protocol {protocol}; it has {there}")
        everything += chosen
        steps = sorted({result.step for result in chosen})
        models[label] = {}
        for step in steps:
            name = label if len(steps) == 1 else f"step {step}" if len(labels) == 1 else f"{label}, step {step}"
            models[label][step] = Column(name, {each.task: each for each in chosen if each.step == step})
    check_comparable(everything)
    return models


def labels_of(directories: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that tell them apart."""
    parts = [directory.resolve().parts for directory in directories]
    for depth in range(1, max(map(len, parts)) + 1):
        labels = [str(Path(*each[-depth:])) for each in parts]
        if len(set(labels)) == len(labels):
            break
    return labels


def choose(models: Models) -> list[Column]:
    """Return the columns: each model at its last step; of a single model with several steps, also its first."""
    steps = list(models.values())
    if len(models) > 1:
        return [history[max(history)] for history in steps]
    return [steps[0][each] for each in sorted({min(steps[0]), max(steps[0])})]


def curves(models: Models) -> Models:
    """Return the models that were evaluated at several steps."""
    return {label: history for label, history in models.items() if len(history) > 1}


def first_result(columns: Sequence[Column]) -> Result:
    return next(iter(columns[0].results.values()))


def markdown(models: Models, columns: Sequence[Column], numbers: Mapping) -> str:
    protocol, compared = first_result(columns).protocol, []
    for other in columns[1:]:
        if set(other.results) & set(columns[0].results):
            compared += [f"**{other.label} minus {columns[0].label}**, pass@1 in points:"]
            compared += [report_tables.comparison(columns[0], other)]
    parts = [
        f"# Evaluation of {', '.join(models)}",
        f"Protocol **{report_tables.escape(protocol['name'])}**; its settings are at the end. Scores in percent.",
        "## pass@1",
        report_tables.pass_at_1(columns, numbers),
        PASS_AT_1,
        f"Columns marked *(reported)*: {paper.SOURCE}." if numbers else "",
        *_section("pass@k and maj@k", report_tables.pass_at_k(columns), PASS_AT_K),
        *(_section("Compared on the same questions", *compared, COMPARED) if compared else []),
        *_section("Validation curve", f"![Scores over training steps]({PICTURE})" if curves(models) else "", CURVE),
        "## Questions and answers",
        report_tables.answers(columns),
        "Truncated: the response reached the token limit. Mean length in tokens.",
        "## How it was measured",
        report_tables.table(["setting", "value"], report_tables.settings(protocol), text=2),
        report_tables.sources(columns),
        report_tables.models(columns),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(title: str, *parts: str) -> list[str]:
    """Return the parts under their title; nothing where the first is empty."""
    return [f"## {title}", *parts] if parts[0] else []


main = command("openrlhf-ebpo eval report", __doc__, add_flags, run, extra="plot")

if __name__ == "__main__":
    main()
