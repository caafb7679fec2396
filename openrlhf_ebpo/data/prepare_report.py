"""report.json of a prepared set: which columns were read, what was dropped and why; and the same as text."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from openrlhf_ebpo.command import one_line
from openrlhf_ebpo.data.clean import CONFLICT, Tally, selected
from openrlhf_ebpo.data.report import NAME, training_command
from openrlhf_ebpo.data.source import Columns

SHOWN = 3  # examples in the text; report.json has more
WIDTH = 60  # characters of a question in the text


def fingerprint(files: Sequence[Path]) -> list[dict]:
    """Return paths, bytes and times of the last change (ns), by which a changed input is noticed."""
    stats = [(file.absolute(), file.stat()) for file in files]
    return [{"path": str(path), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns} for path, stat in stats]


def build(
    files: Sequence[Path], columns: Columns, tally: Tally, questions: Path, validation: int, template: str
) -> dict:
    """The report, without the settings. questions: the file that `clean` wrote."""
    kept = int(tally.kept().sum())
    return {
        "files": fingerprint(files),
        "columns": vars(columns),
        "rows": tally.total,
        "dropped": tally.dropped(),
        "kept": kept,
        "train": kept - validation,
        "validation": validation,
        "conflicting_questions": len(tally.conflicting),
        "conflicts": _examples(tally.conflicting, questions, len(tally.rows)),
        "warnings": _warnings(tally, template),
    }


def as_text(report: dict, folder: Path) -> str:
    parts = [as_table(report), *_shown_conflicts(report), *(f"warning: {text}" for text in report["warnings"])]
    return "\n\n".join([*parts, _next_steps(report, folder)])


def as_table(report: dict) -> str:
    total = report["rows"]
    lines = [(total, "read")]
    for reason, count in sorted(report["dropped"].items(), key=lambda item: -item[1]):
        questions = f" (questions: {report['conflicting_questions']:,})" if reason == CONFLICT else ""
        lines.append((count, f"dropped: {reason}{questions}"))
    lines.append((report["kept"], f"kept: {report['train']:,} to train, {report['validation']:,} for validation"))
    lines = [f"{count:>12,} {count / max(total, 1):>8.2%}  {text}" for count, text in lines]
    return "\n".join(["        rows    share", *lines])


def chosen_columns(columns: Columns) -> str:
    source = f"{columns.datasource!r}" if columns.datasource else "none (--input's name is used)"
    return (
        f"columns: prompt {columns.prompt!r}, answer {columns.answer!r}, data source {source}; "
        "--prompt_column, --answer_column, --source_column name others"
    )


def _examples(found: dict[int, list[str] | None], questions: Path, count: int) -> list[dict]:
    """For the questions whose answers were kept: id, question, and the answers, the first one first."""
    others = {place: answers for place, answers in sorted(found.items()) if answers}
    mask = np.zeros(count, bool)
    mask[list(others)] = True
    rows = [row for table in selected(questions, mask) for row in table.to_pylist()]
    return [
        {"id": row["id"], "question": row["question"], "answers": [row["label"], *answers]}
        for row, answers in zip(rows, others.values(), strict=True)
    ]


def _warnings(tally: Tally, template: str) -> list[str]:
    questions = max(len(tally.rows), 1)
    warnings = []
    if tally.long_answers > 0.1 * questions:
        warnings.append(
            f"{tally.long_answers / questions:.0%} of the answers have several lines. A verifier wants the final answer, "
            "not a worked solution: --answer_column names another column"
        )
    if template in ("own", "chat") and tally.bare > 0.5 * questions:
        warnings.append(
            f"{tally.bare / questions:.0%} of the prompts are without DAPO's instruction and are shown as they are. If "
            "nothing else in them says how to give the answer, --template dapo or --template TEXT does"
        )
    return warnings


def _shown_conflicts(report: dict) -> list[str]:
    found, number = report["conflicts"][:SHOWN], report["conflicting_questions"]
    if not found:
        return []
    lines = [
        f"  {one_line(c['question'], WIDTH)}  ->  {' | '.join(one_line(a, 20) for a in c['answers'])}" for c in found
    ]
    return ["\n".join([f"different answers ({len(found)} of {number:,} questions; more in {NAME}):", *lines])]


def _next_steps(report: dict, folder: Path) -> str:
    settings = report["settings"]
    train, validation = (folder / f"{name}.{settings['format']}" for name in ("train", "validation"))
    training = training_command(
        train, chat=settings["template"] == "chat", validation=validation if report["validation"] else None
    )
    return (
        f"train on it:  {training}\n"
        f"or first:     openrlhf-ebpo data topics (or difficulty) --input {shlex.quote(str(train))} --help"
    )
