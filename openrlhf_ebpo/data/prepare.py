r"""Turn a data set into a clean training set: each question once, with one gold answer, and a held-out validation set.

  openrlhf-ebpo data prepare --output data/dapo                       DAPO-Math-17K from the Hugging Face Hub
  openrlhf-ebpo data prepare --input dapo.parquet --output data/dapo  a copy of it on this machine
  openrlhf-ebpo data prepare --input gsm.jsonl --prompt_column question --answer_column final --output data/gsm
  openrlhf-ebpo data prepare --input OWNER/NAME --subset en --template $'{question}\nThink, then \\boxed{} the answer.'
  ...

Each row has a question and a gold answer. The command
  - finds the bare question: DAPO's instruction is recognised and removed, so the same question with and without it is
    one question. White space and Unicode form do not count. Its hash is the id: the same in every run and data set.
  - drops rows whose question or answer is empty, and repetitions (DAPO-Math-17K holds each question about 100 times).
  - drops questions that come with different gold answers: the right one is unknown. 34, 34.0 and $34$, or 0.5
    and \frac{1}{2}, are the same answer; sqrt(8) and 2 sqrt(2) are not, since no algebra is done.
  - holds out the validation set by a hash of id and seed, whatever the order of the rows. When the data set grows,
    no question moves from training to validation.

It writes into --output, all at once or not at all:
  train.parquet, validation.parquet   columns id, prompt, label, question, datasource
  report.json                         settings, input, what was dropped and why

A finished --output is recognised (same settings, same input) and left alone; anything else is not overwritten without
--force, which moves it aside. 1.8 million rows take about a minute at most and less than 1 GB of memory, so a killed
run leaves nothing and is repeated from the start; an interrupted download resumes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from openrlhf_ebpo.command import command
from openrlhf_ebpo.data import output_report
from openrlhf_ebpo.data.clean import CONFLICT, Tally, as_texts, clean, held_out, selected_rows
from openrlhf_ebpo.data.data_files import load, local_files
from openrlhf_ebpo.data.questions import DAPO_TEMPLATE, WHOLE_CHATS, check_template, format_prompt
from openrlhf_ebpo.data.source import (
    ANSWER_COLUMNS,
    PROMPT_COLUMNS,
    SOURCE_COLUMNS,
    choose_column,
    first_known,
    lookup,
)
from openrlhf_ebpo.data.training_tables import batches, nested_names, write_table
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.run.run_log import move_aside

TEMPLATES = {"dapo": DAPO_TEMPLATE}
SETTINGS = (
    *("input", "subset", "split", "prompt_column", "answer_column"),
    *("template", "system", "validation", "seed"),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--input",
        default="BytedTsinghua-SIA/DAPO-Math-17k",
        metavar="FILE|FOLDER|TYPE@FOLDER|OWNER/NAME",
        help="a data set in any form of --data.prompt_dataset: a .parquet, .jsonl, .json, .csv or .arrow file, a "
        "folder of them or saved by `datasets`, or one on the Hugging Face Hub (default: %(default)s)",
    )
    add("--output", required=True, metavar="FOLDER", help="folder of the result; it must be new or empty")
    add("--force", action="store_true", help="if --output holds something else, move that aside")
    add("--subset", help="configuration of a Hub data set that has several, such as `all` of DAPO-Math-17k-Processed")
    add("--split", default="train", help="split of a folder or Hub data set (default: train)")
    add(
        "--prompt_column",
        metavar="NAME",
        help="column with a text, or with messages of which one is the user's; a dot enters a struct "
        "(default: the usual names)",
    )
    add(
        "--answer_column",
        metavar="NAME",
        help="column with the gold answer, a text or number, such as reward_model.ground_truth "
        "(default: the usual names)",
    )
    add(
        "--template",
        default="own",
        metavar="own|dapo|chat|TEXT",
        help="the prompt that the model gets. own: the prompt as the data set has it, instruction included, and a chat "
        "of several messages as a chat (default). dapo: the bare question in DAPO-Math-17K's instruction. chat: own, "
        "always as chat messages for --data.apply_chat_template. Anything else is text with {question} in it; in "
        "bash, $'...' makes \\n a line break",
    )
    add("--system", metavar="TEXT", help="with --template chat: the system message, in place of the data set's own")
    add(
        "--validation",
        type=number_or_share,
        default=500,
        metavar="N|SHARE",
        help="questions held out, a number or a share such as 0.02; 0: none (default: %(default)s)",
    )
    add("--seed", type=int, default=42, help="another seed holds out other questions (default: %(default)s)")


def run(args: argparse.Namespace) -> None:
    check_template(args.template, ("own", *TEMPLATES, "chat"), args.system)
    output = Path(args.output)
    settings = settings_of(args)
    made = None if args.force else finished(output, settings)
    if made:
        print(f"{output} is complete: same settings, same input. --force makes it again.\n")
    else:
        data = load(args.input, args.split, subset=args.subset)
        found = nested_names(data.features.arrow_schema)
        columns = {
            "prompt": choose_column(found, PROMPT_COLUMNS, args.input, "--prompt_column", args.prompt_column),
            "answer": choose_column(found, ANSWER_COLUMNS, args.input, "--answer_column", args.answer_column),
            "datasource": first_known(found, SOURCE_COLUMNS),
        }
        source = f"{columns['datasource']!r}" if columns["datasource"] else "none (--input's name is used)"
        print(
            f"columns: prompt {columns['prompt']!r}, answer {columns['answer']!r}, data source {source}; "
            "--prompt_column and --answer_column name others"
        )
        with new_folder(output, args.force) as folder:
            made = {"settings": settings, **prepare(data, columns, args, folder)}
            write_json(folder / output_report.NAME, made)
    print(as_text(made, output))


def settings_of(args: argparse.Namespace) -> dict:
    """Collect the settings that determine the result, for its report."""
    return {name: getattr(args, name) for name in SETTINGS}


def prepare(data, columns: dict[str, str | None], args: argparse.Namespace, folder: Path) -> dict:
    """Fill `folder` with the sets of `data`, a `datasets.Dataset`; returns the report. columns: names of those of
    prompt, answer and datasource, in this order; dots lead into structs.

    Raises:
        UsageError: nothing is left to train on.
    """
    questions = folder / "questions.parquet"
    show = functools.partial(format_prompt, template=args.template, system=args.system, named=TEMPLATES)
    tally = Tally(whole_chats=args.template in WHOLE_CHATS, keep_system=args.system is None)
    clean(with_progress(data, columns), Path(args.input).stem, show, tally, questions)
    as_shown = as_texts if args.template == "own" and not tally.chats else iter
    kept = tally.kept()
    validation = np.zeros_like(kept)
    validation[kept] = held_out(np.fromiter(tally.index, np.uint64, len(kept))[kept], args.validation, args.seed)
    made = describe(
        fingerprint(args.input) or commit(args.input, args.subset), columns, tally, int(validation.sum()), args.template
    )
    if not (kept & ~validation).any():
        print(as_table(made))
        raise UsageError(
            f"--input {args.input}: {kept.sum()} usable questions, --validation {args.validation} leaves none "
            f"to train on"
        )
    write_table(as_shown(selected_rows(questions, kept & ~validation)), folder / "train.parquet")
    if validation.any():
        write_table(as_shown(selected_rows(questions, validation)), folder / "validation.parquet")
    questions.unlink()
    return made


def with_progress(data, columns: dict[str, str | None]) -> Iterator[list[tuple]]:
    """Yield batches of (prompt, answer, datasource); None for what is missing."""
    names = dict.fromkeys(name for name in columns.values() if name)
    read = [name if name in data.column_names else name.partition(".")[0] for name in names]
    with tqdm(total=len(data), unit=" rows", unit_scale=True, desc="cleaning") as bar:
        for rows in batches(data, list(dict.fromkeys(read))):
            yield [tuple(lookup(row, name) if name else None for name in columns.values()) for row in rows]
            bar.update(len(rows))


def number_or_share(text: str) -> int | float:
    with contextlib.suppress(ValueError):
        value = float(text) if "." in text or "e" in text else int(text)
        if value >= 0 and (isinstance(value, int) or value < 1):
            return value
    raise argparse.ArgumentTypeError(f"{text}: a whole number of questions, or a share below 1 such as 0.02")


def finished(output: Path, settings: dict) -> dict | None:
    """Return the report of these settings and of this input as it is now; None without an output.

    Raises:
        UsageError: the output exists and is not from this command with these settings.
    """
    made = output_report.read_finished(output, settings)
    now = fingerprint(settings["input"])  # nothing for a data set on the Hub, which its settings name
    if made and now and now != made["files"]:
        raise output_report.other_output(output, "the input has changed since")
    return made


@contextlib.contextmanager
def new_folder(output: Path, force: bool) -> Iterator[Path]:
    """Yield a folder next to `output` that takes its name when all has gone well, and is removed otherwise. What a
    killed run left is removed first."""
    output = output.resolve()
    folder = output.with_name(f".{output.name}.tmp")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
        yield folder
        if force and output.exists():
            print(f"moved what was there to {move_aside(output)}")
        folder.rename(output)  # an empty folder gives way
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# the report


def fingerprint(name: str) -> list[dict]:
    """Return paths, bytes and times of the last change (ns) of a data set's files, by which a changed input is
    noticed."""
    stats = [(file.absolute(), file.stat()) for file in local_files(name)]
    return [{"path": str(path), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns} for path, stat in stats]


def commit(name: str, subset: str | None) -> list[dict]:
    """Return a data set on the Hub with its commit, in the place of files."""
    from datasets import load_dataset_builder

    return [{"path": f"{name}@{load_dataset_builder(name, subset).hash}"}]


def describe(files: list[dict], columns: dict[str, str | None], tally: Tally, validation: int, template: str) -> dict:
    """Make the report, without the settings."""
    kept, questions, warnings = int(tally.kept().sum()), max(len(tally.rows), 1), []
    if tally.long_answers > 0.1 * questions:
        warnings.append(
            f"{tally.long_answers / questions:.0%} of the answers have several lines. A verifier wants the final "
            "answer, not a worked solution: --answer_column names another column"
        )
    if template in ("own", "chat") and tally.bare > 0.5 * questions:
        warnings.append(
            f"{tally.bare / questions:.0%} of the prompts are without DAPO's instruction and are shown as they are. If "
            "nothing else in them says how to give the answer, --template dapo or --template TEXT does"
        )
    return {
        "files": files,
        "columns": columns,
        "rows": tally.total,
        "dropped": tally.dropped(),
        "first_rows": tally.first,
        "chats": template == "chat" or bool(tally.chats),
        "kept": kept,
        "train": kept - validation,
        "validation": validation,
        "conflicting_questions": len(tally.conflicting),
        "warnings": warnings,
    }


def as_text(made: dict, folder: Path) -> str:
    parts = [as_table(made), *(f"warning: {text}" for text in made["warnings"])]
    train, validation = (folder / f"{name}.parquet" for name in ("train", "validation"))
    validation = validation if made["validation"] else None
    training = output_report.training_command(train, chat=made["chats"], validation=validation)
    first = f"openrlhf-ebpo data topics (or difficulty) --input {shlex.quote(str(train))} --help"
    return "\n\n".join([*parts, f"train on it:  {training}\nor first:     {first}"])


def as_table(made: dict) -> str:
    total = made["rows"]
    lines = [(total, "read")]
    for reason, count in sorted(made["dropped"].items(), key=lambda item: -item[1]):
        questions = f" (questions: {made['conflicting_questions']:,})" if reason == CONFLICT else ""
        row = f" (the first: row {made['first_rows'][reason]:,})" if reason in made["first_rows"] else ""
        lines.append((count, f"dropped: {reason}{questions}{row}"))
    lines.append((made["kept"], f"kept: {made['train']:,} to train, {made['validation']:,} for validation"))
    lines = [f"{count:>12,} {count / max(total, 1):>8.2%}  {text}" for count, text in lines]
    return "\n".join(["        rows    share", *lines])


main = command("openrlhf-ebpo data prepare", __doc__, add_flags, run, extra="data")
