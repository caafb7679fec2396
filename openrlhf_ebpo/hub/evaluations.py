"""Evaluation results in cards. Those of different protocols (name and fingerprint) are never put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from openrlhf_ebpo.hub.content import local_file
from openrlhf_ebpo.hub.markdown import Markdown, code
from openrlhf_ebpo.hub.public import hub_id, public, slug
from openrlhf_ebpo.run.catalogue import REWARD
from openrlhf_ebpo.run.results import Result, find_results
from openrlhf_ebpo.run.score_text import majorities, passes, score


def of_run(run_dir: Path) -> list[Result]:
    """The results in a run directory as they may be published, in the order of protocols, tasks and steps.

    Raises:
        UsageError: one is damaged, of another version, or a link out of the run.
    """
    summaries = list((run_dir / "eval").glob("*/*/step-*/summary.json"))
    for path in summaries:
        local_file(path, run_dir)
    found = find_results(run_dir) if summaries else []
    cleaned = (Result(each.path, public(each.summary)) for each in found)
    return sorted(cleaned, key=lambda each: (*protocol_of(each), each.task, each.step))


def protocol_of(result: Result) -> tuple[str, str]:
    """Name and fingerprint of the protocol."""
    return result.protocol["name"], result.protocol.get("fingerprint", "")


def settings_of(result: Result) -> dict:
    return {key: value for key, value in result.protocol.items() if key not in ("name", "fingerprint")}


def headline(result: Result) -> list[str]:
    """Names of the metrics that cards show: pass@1, and the largest maj@k and pass@k that there are."""
    found = passes(result.metrics)
    return list(dict.fromkeys([*found[:1], *majorities(result.metrics)[-1:], *found[-1:]]))


def of_step(results: Sequence[Result], step: int) -> tuple[list[Result], list[Result]]:
    """Results of the model of a step, and of the one before training."""
    own, before = ([each for each in results if each.step == wanted] for wanted in (step, 0 if step else None))
    return own, before


def change(results: Sequence[Result], before: Sequence[Result], metrics: Sequence[dict]) -> Markdown | None:
    """The result for a card's first sentence: one task's pass@1, with that of the model before training; or the mean
    reward of the first and the last of the steps in `metrics`. None without any."""
    if results:
        found = results[0]
        same = (each for each in before if (protocol_of(each), each.task) == (protocol_of(found), found.task))
        values = [f"{100 * each.metrics['pass@1']['value']:.1f}" for each in (*same, found)]
        return Markdown(f"pass@1 {' → '.join(values)} % on {code(found.task)}")
    rewards = [row[REWARD] for row in metrics if isinstance(row.get(REWARD), (int, float))]
    return Markdown(f"mean reward {rewards[0]:.3f} → {rewards[-1]:.3f}") if rewards else None


def tables(results: Sequence[Result], base: Sequence[Result] = ()) -> list[dict]:
    """Collect what templates/protocols.md shows of each protocol: a heading, a table of tasks and the settings.

    base: results of the model before training; its pass@1 becomes a column where the protocol is the same.
    """
    found = []
    for protocol, group in groupby(results, key=protocol_of):
        group = list(group)
        before = {each.task: each.metrics["pass@1"] for each in base if protocol_of(each) == protocol}
        shown = {name for each in group for name in headline(each)}
        metrics = list(dict.fromkeys([*passes(shown)[:1], *majorities(shown), *passes(shown)]))
        head = ["task", "questions", "runs", *(["pass@1 before training"] if before else []), *metrics]
        settings = settings_of(group[0]).items()
        found.append(
            {
                "name": protocol[0],
                "fingerprint": protocol[1],
                "settings": [(key, value) for key, value in settings if value not in (None, {}, [])],
                "head": [Markdown(each) for each in head],
                "rows": [_row(each, metrics, before) for each in group],
            }
        )
    return found


def _row(result: Result, metrics: Sequence[str], before: Mapping[str, Mapping]) -> list:
    scored = [before.get(result.task)] * bool(before) + [result.metrics.get(name) for name in metrics]
    counts = [result.metrics["questions"], result.metrics["samples_per_question"]]
    return [result.task, *map(Markdown, counts), *(Markdown(score(each)) for each in scored)]


def eval_results(results: Sequence[Result]) -> list:
    """huggingface_hub.EvalResult for the headline metrics, in percent, for `model-index`.

    The Hub shows `model-index` for any task; `.eval_results/*.yaml` counts only for benchmarks that it lists, which
    ours are not, and has no place for k, error, interval or protocol. The protocol is the data set's `config`: the
    card's metadata puts results of one task type, data set, config, split and revision into one row, and so no row
    mixes two protocols.
    """
    from huggingface_hub import EvalResult

    found = []
    for result, name in ((each, name) for each in results for name in headline(each)):
        (protocol, fingerprint), metric = protocol_of(result), result.metrics[name]
        source, _, revision = str(result.summary["task"].get("source", "")).partition("@")
        known = hub_id(source)
        arguments = {key: result.metrics[key] for key in ("questions", "samples_per_question")}
        arguments["interval_95"] = [_percent(each) for each in metric["interval"]]
        if metric.get("standard_error") is not None:
            arguments["standard_error"] = _percent(metric["standard_error"])
        if metric.get("run_interval"):
            arguments["run_interval_95"] = [_percent(each) for each in metric["run_interval"]]
        found.append(
            EvalResult(
                task_type="text-generation",
                task_name="Text generation",
                dataset_type=known or slug(result.task),
                dataset_name=result.task,
                dataset_config=f"{protocol} ({fingerprint})",
                dataset_revision=revision if known and revision else None,
                dataset_args={"protocol": protocol, **settings_of(result)},
                metric_type=name,
                metric_name=f"{name} in percent, protocol {protocol}",
                metric_value=_percent(metric["value"]),
                metric_args=arguments,
            )
        )
    return found


def _percent(value: float) -> float:
    """A number for the metadata, with a digit more than the text has (run/score_text.py)."""
    return round(100 * value, 2)
