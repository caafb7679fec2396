"""Evaluation results as one flat table, one row per metric, and what cards show of it. Rows of different protocols
(name and fingerprint) are never put together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from openrlhf_ebpo.hub.content import local_file
from openrlhf_ebpo.hub.markdown import Markdown, code, identifier, table
from openrlhf_ebpo.hub.public import hub_id, public, slug
from openrlhf_ebpo.run.results import Result, find_results
from openrlhf_ebpo.run.score_text import majorities, order, passes, score


def of_run(run_dir: Path) -> list[Result]:
    """The results in a run directory.

    Raises:
        UsageError: one is damaged, of another version, or a link out of the run.
    """
    summaries = list((run_dir / "eval").glob("*/*/step-*/summary.json"))
    for path in summaries:
        local_file(path, run_dir)
    return find_results(run_dir) if summaries else []


def rows_of(results: Iterable[Result]) -> list[dict]:
    """Rows, one per metric, in the order of protocols, tasks and steps."""
    return ordered(row for result in results for row in _rows(result))


def _rows(result: Result) -> list[dict]:
    summary = public(result.summary)
    protocol, task, metrics = summary["protocol"], summary["task"], summary["metrics"]
    common = {
        "protocol": protocol["name"],
        "protocol_fingerprint": protocol.get("fingerprint", ""),
        "settings": {key: value for key, value in protocol.items() if key not in ("name", "fingerprint")},
        "task": task["name"],
        "source": str(task.get("source", "")),
        "step": result.step,
        "questions": metrics["questions"],
        "samples_per_question": metrics["samples_per_question"],
    }
    return [{**metric, **common, "metric": name} for name, metric in metrics.items() if isinstance(metric, dict)]


def ordered(rows: Iterable[dict]) -> list[dict]:
    return sorted(rows, key=lambda row: (*protocol_of(row), row["task"], row["step"], order(row["metric"])))


def protocol_of(row: Mapping) -> tuple[str, str]:
    return row["protocol"], row["protocol_fingerprint"]


def headline(rows: Iterable[dict]) -> list[dict]:
    """The rows that cards show, whatever they show them in: of each protocol, task and step pass@1, and the largest
    maj@k and pass@k that there are."""
    found = []
    for _, group in groupby(ordered(rows), key=lambda row: (*protocol_of(row), row["task"], row["step"])):
        by_name = {row["metric"]: row for row in group}
        names = [*passes(by_name)[:1], *majorities(by_name)[-1:], *passes(by_name)[-1:]]
        found += [by_name[name] for name in dict.fromkeys(names)]
    return found


def result(rows: Sequence[dict], before: Sequence[dict] = ()) -> Markdown | None:
    """One task's pass@1 for a card's first sentence, with that of the model before training; None without any."""
    found = next((row for row in headline(rows) if row["metric"] == "pass@1"), None)
    if not found:
        return None
    same = ("protocol", "protocol_fingerprint", "task", "metric")
    start = next((row for row in before if all(row[key] == found[key] for key in same)), None)
    change = f"{100 * start['value']:.1f} → " if start else ""
    return Markdown(f"pass@1 {change}{100 * found['value']:.1f} % on {code(found['task'])}")


def tables(rows: Sequence[dict], base: Sequence[dict] = ()) -> list[dict]:
    """Collect what templates/protocols.md shows of each protocol: a heading, a table of tasks and the settings.

    base: rows of the model before training; its pass@1 becomes a column where the protocol is the same.
    """
    found = []
    for protocol, group in groupby(headline(rows), key=protocol_of):
        group = list(group)
        before = {row["task"]: row for row in base if protocol_of(row) == protocol and row["metric"] == "pass@1"}
        found.append(
            {
                "name": protocol[0],
                "table": _table(group, before),
                "fingerprint": protocol[1],
                "settings": [
                    (identifier(key), code(value))
                    for key, value in group[0]["settings"].items()
                    if value not in (None, {}, [])
                ],
            }
        )
    return found


def _table(rows: list[dict], before: Mapping[str, dict]) -> Markdown:
    names = {row["metric"] for row in rows}
    metrics = list(dict.fromkeys([*passes(names)[:1], *majorities(names), *passes(names)]))
    head = ["task", "questions", "runs", *(["pass@1 before training"] if before else []), *metrics]
    lines = []
    for task, group in groupby(rows, key=lambda row: row["task"]):
        found = {row["metric"]: row for row in group}
        first = next(iter(found.values()))
        cells = [code(task), first["questions"], first["samples_per_question"]]
        scored = ([before.get(task)] if before else []) + [found.get(name) for name in metrics]
        lines.append([*cells, *(Markdown(score(row)) for row in scored)])
    return table(head, lines, numbers=len(head) - 1)


def eval_results(rows: Sequence[dict]) -> list:
    """huggingface_hub.EvalResult for the headline metrics, in percent, for `model-index`.

    The Hub shows `model-index` for any task; `.eval_results/*.yaml` counts only for benchmarks that it lists, which
    ours are not, and has no place for k, error, interval or protocol. The protocol is the data set's `config`: the
    card's metadata puts results of one task type, data set, config, split and revision into one row, and so no row
    mixes two protocols.
    """
    return [_eval_result(row) for row in headline(rows)]


def _eval_result(row: Mapping):
    from huggingface_hub import EvalResult

    name, _, revision = row["source"].partition("@")
    known = hub_id(name)
    arguments = {"questions": row["questions"], "samples_per_question": row["samples_per_question"]}
    arguments["interval_95"] = [_percent(each) for each in row["interval"]]
    if row.get("standard_error") is not None:
        arguments["standard_error"] = _percent(row["standard_error"])
    if row.get("run_interval"):
        arguments["run_interval_95"] = [_percent(each) for each in row["run_interval"]]
    return EvalResult(
        task_type="text-generation",
        task_name="Text generation",
        dataset_type=known or slug(row["task"]),
        dataset_name=row["task"],
        dataset_config=f"{row['protocol']} ({row['protocol_fingerprint']})",
        dataset_revision=revision if known and revision else None,
        dataset_args={"protocol": row["protocol"], **row["settings"]},
        metric_type=row["metric"],
        metric_name=f"{row['metric']} in percent, protocol {row['protocol']}",
        metric_value=_percent(row["value"]),
        metric_args=arguments,
    )


def _percent(value: float) -> float:
    """A number for the metadata, with a digit more than the text has (run/score_text.py)."""
    return round(100 * value, 2)
