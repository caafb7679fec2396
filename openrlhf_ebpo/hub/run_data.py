"""Publish a run directory, or results of openrlhf-ebpo eval, as a data set repo with a card that explains every column.

The repo has the layout of a run directory, so that a downloaded copy is one. Tables in Parquet are added that the Hub's
viewer shows, and datasets.load_dataset(REPO, "metrics") reads (also "rollouts", "evaluations", and "eval-PROTOCOL-TASK"
with a split for each step).

  openrlhf-ebpo hub push-run out/run --repo me/my-run --dry_run     what would go
  openrlhf-ebpo hub push-run out/run --repo me/my-run               again later: only what is new goes
  openrlhf-ebpo hub push-run results/base --repo me/base-results    evaluations that belong to no run

A run that is still training can be pushed. Secrets, the folders of local paths and unknown files are left
out; weights and checkpoints do not go with it (openrlhf-ebpo hub push). The repo is private unless --public.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.eval.tasks import BENCHMARKS
from openrlhf_ebpo.files import read_json_lines
from openrlhf_ebpo.hub import columns, data_repo, evaluations
from openrlhf_ebpo.hub.card import PICTURE, RECORDS, read, reward_curve
from openrlhf_ebpo.hub.card_metadata import dig
from openrlhf_ebpo.hub.content import Content
from openrlhf_ebpo.hub.local_files import files_below, local_file, named, print_left_out
from openrlhf_ebpo.hub.markdown import Markdown, code, identifier, render, words
from openrlhf_ebpo.hub.notes import with_slot
from openrlhf_ebpo.hub.places import target
from openrlhf_ebpo.hub.public import Edited, changes, edited_json, public, public_name, public_run, public_text, slug
from openrlhf_ebpo.hub.tables import publishable_parquet, read_schema
from openrlhf_ebpo.hub.upload import head_of, read_file
from openrlhf_ebpo.hub_client import HubError
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.run import checkpoints
from openrlhf_ebpo.run.catalogue import Metric
from openrlhf_ebpo.run.heartbeat import FILE as BEAT
from openrlhf_ebpo.run.own_metrics import own_metrics
from openrlhf_ebpo.run.results import SAMPLES_FILE, SUMMARY, Result, find_results, result_directories, whole_name
from openrlhf_ebpo.run.run_log import DROPPED, LOCK, PRIOR_STARTS, read_metrics

METRICS = "tables/metrics.parquet"
EVALUATIONS = "tables/evaluations.parquet"
RESULT = (SUMMARY, SAMPLES_FILE)
RUN = (*RECORDS, "rollouts/step-[0-9]*.parquet", *(f"eval/*/*/step-*/{name}" for name in RESULT))
IDENTITY = ("protocol_fingerprint", "task_fingerprint", "model_identity")  # what results in one place agree on
OWN = (  # of the run directory, and staying in it
    *("superseded", "failed_step-*", "hub", "hub.json", "training.png"),
    *(LOCK, BEAT),
)
OURS = (
    *("rollouts/step-*.parquet", "eval/*", "tables/*", "images/*"),
    *("checkpoints.jsonl", "prior.json", PRIOR_STARTS, DROPPED),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_dir",
        metavar="RUN_DIR",
        type=Path,
        help="--logger.run_dir of a training (run.json is in it), or --output_dir of openrlhf-ebpo eval",
    )
    data_repo.add_flags(parser)


def run(args: argparse.Namespace) -> None:
    """Push a run or results.

    Raises:
        UsageError: no run and no results, something else in the repo, or no right to write.
        HubError: the push failed.
    """
    args.repo = target(args.repo, kind=data_repo.DATASET)
    results = results_of(args.run_dir)
    warn_of_gated_questions(results.values(), args.repo)
    publish = _push_run if is_run(args.run_dir) else _push_results
    with tempfile.TemporaryDirectory() as folder:
        publish(args, results, Path(folder))


def _push_run(args: argparse.Namespace, results: Mapping[str, Result], folder: Path) -> None:
    def make_files(api) -> dict[str, Content]:
        files = run_files(args.run_dir, args.repo, folder / "copies")
        there = data_repo.looked_up(args, lambda: remote_run(api, args.repo), None)
        check_same_run(there, json.loads(files["run.json"]), args.repo)
        return files

    others = files_below(args.run_dir, skip=lambda path: named(path.parts[0], OWN))
    print_left_out([path for path in others if not named(path, RUN)], "parts of a run's record")
    data_repo.push(args, make_files, message=f"run {public_text(args.run_dir.absolute().name)}", delete=OURS)


def _push_results(args: argparse.Namespace, results: Mapping[str, Result], folder: Path) -> None:
    def make_files(api) -> dict[str, Content]:
        before = data_repo.looked_up(args, lambda: remote_results(api, args.repo), [])
        check_same_results(before, evaluations.rows_of(results.values()), args.repo)
        return results_files(args.run_dir, results, args.repo, folder / "copies")

    found = [result.path / path for result in results.values() for path in files_below(result.path)]
    strangers = [path.relative_to(args.run_dir) for path in found if path.name not in RESULT]
    print_left_out(strangers, "results")
    data_repo.push(args, make_files, message=f"results of {len(results)} evaluations")


def is_run(folder: Path) -> bool:
    """Anything without run.json and without results counts as a run, whose reader says what is missing."""
    return (folder / "run.json").exists() or not result_directories(folder)


def results_of(folder: Path) -> dict[str, Result]:
    """Results by their place in the repo, eval/PROTOCOL/TASK/step-000000.

    Raises:
        UsageError: one is damaged, of another version, or a link out of the folder.
    """
    found = evaluations.of_run(folder) if is_run(folder) else find_results(folder)
    return {_place(result.protocol["name"], result.task, result.step): result for result in found}


def _place(protocol: str, task: str, step: int) -> str:
    return f"eval/{public_name(protocol)}/{public_name(task)}/step-{step:06d}"


def warn_of_gated_questions(results: Iterable[Result], repo: str) -> None:
    """Warn of questions whose publishers ask that they stay off the public web."""
    names = sorted({result.task for result in results if whole_name(result.task) in BENCHMARKS})
    held = [
        name for name in names if any(getattr(each, "gated", False) for each in BENCHMARKS[whole_name(name)].copies)
    ]
    if held:
        print(
            f"warning: {', '.join(held)}: its publishers ask that its questions are not put online, and samples.parquet has "
            f"them: keep {repo} private, or push a folder without these results"
        )


def remote_run(api, repo: str) -> dict | None:
    """run.json of the repo, None if that is new.

    Raises:
        UsageError: it holds something else than a run.
    """
    commit = data_repo.check_ours(api, repo, "run", "run.json")
    return json.loads(read_file(api, repo, data_repo.DATASET, commit, "run.json")) if commit else None


def remote_results(api, repo: str) -> list[dict]:
    """The table of results that the repo has.

    Raises:
        UsageError: the repo holds a run, or something else.
    """
    _, names = head_of(api, repo, data_repo.DATASET)
    if "run.json" in names:
        raise UsageError(f"--repo {repo} holds a run, and its results with it; choose another repo")
    if not (commit := data_repo.check_ours(api, repo, "table of results", EVALUATIONS)):
        return []
    table = pa.BufferReader(read_file(api, repo, data_repo.DATASET, commit, EVALUATIONS))
    return pq.read_table(table).to_pylist()


def check_same_results(before: Sequence[dict], rows: Sequence[dict], repo: str) -> None:
    """Check that a push loses no result of the repo: all are here, of the same model, task version and protocol.

    Raises:
        UsageError: one is not.
    """
    own = {_place(row["protocol"], row["task"], row["step"]): row for row in rows}
    for row in before:
        place = _place(row["protocol"], row["task"], row["step"])
        if place not in own:
            raise UsageError(f"--repo {repo} has {place}, which is not in this folder; choose another repo")
        if different := [name for name in IDENTITY if row.get(name) != own[place][name]]:
            details = "; ".join(f"{name} {row.get(name)!r} there, {own[place][name]!r} here" for name in different)
            raise UsageError(f"--repo {repo} has other results in {place} ({details}); choose another repo")


def check_same_run(there: Mapping | None, here: Mapping, repo: str) -> None:
    """Check that the run in the repo, if it has one, is this one, known by its start.

    Raises:
        UsageError: the repo holds another run, which this push would overwrite.
    """
    if there is not None and there.get("started") != here.get("started"):
        raise UsageError(
            f"--repo {repo} holds another run: {there.get('name')!r}, started {there.get('started')}; this one is "
            f"{here.get('name')!r}, started {here.get('started')}. Choose another repo, or delete that one on the Hub"
        )


def run_files(run_dir: Path, repo: str, scratch: Path) -> dict[str, Content]:
    """Everything of a run that is published, by path in the repo; copies of what has to be changed go to `scratch`.

    Raises:
        UsageError: no run is there, or a file of it is damaged.
    """
    run_dir = Path(run_dir)
    found = read(run_dir)
    results = results_of(run_dir)
    files = _records(run_dir, found) | _rollouts(run_dir, scratch) | _evaluations(run_dir, results, scratch)
    if metrics := [public(row) for row in read_metrics(run_dir)]:
        files[METRICS] = data_repo.parquet_bytes(metrics_table(metrics))
    rows = evaluations.rows_of(results.values())
    if rows:
        files[EVALUATIONS] = data_repo.parquet_bytes(rows, evaluations.SCHEMA)
    if picture := reward_curve(run_dir, max([row["step"] for row in metrics], default=0)):
        files[PICTURE] = picture
    files["README.md"] = data_card(public_run(found), repo, files, metrics, rows).encode()
    return files


def _records(run_dir: Path, found: dict) -> dict[str, Content]:
    """The JSON files. Lines that are still being written stay behind."""
    files: dict[str, Content] = {"run.json": edited_json(found, public_run(found))}
    lines = {name: read_json_lines(run_dir / name) for name in ("metrics.jsonl", PRIOR_STARTS)}
    for name, rows in {**lines, checkpoints.LIST: checkpoints.rows(run_dir)}.items():
        if rows:
            pairs = [(row, public(row)) for row in rows]
            places = (place for before, after in pairs for place in changes(before, after))
            files[name] = Edited.of("".join(json.dumps(after) + "\n" for _, after in pairs), places)
    return files | _record(run_dir, "prior.json")


def _record(run_dir: Path, name: str) -> dict[str, Content]:
    """A JSON file, if it is there.

    Raises:
        UsageError: it is damaged.
    """
    if not (run_dir / name).is_file():
        return {}
    try:
        stored = json.loads((run_dir / name).read_bytes())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{run_dir / name} is damaged ({error}); repair it, or move it away") from error
    return {name: edited_json(stored, public(stored))}


def _rollouts(run_dir: Path, scratch: Path) -> dict[str, Content]:
    """The files that are there, and dropped.json: a training may drop some of them meanwhile (--logger.keep_rollouts), and
    says so before it does."""
    files: dict[str, Content] = {}
    for path in sorted((run_dir / "rollouts").glob("step-*.parquet")):
        if named(path.relative_to(run_dir), RUN):
            try:
                files[f"rollouts/{path.name}"] = publishable_parquet(local_file(path, run_dir), scratch)
            except (FileNotFoundError, HubError):
                if os.path.lexists(path):
                    raise
    gone = [name for name in files if not (run_dir / name).exists()]
    return {name: file for name, file in files.items() if name not in gone} | _record(run_dir, DROPPED)


def _evaluations(folder: Path, results: Mapping[str, Result], scratch: Path) -> dict[str, Content]:
    files: dict[str, Content] = {}
    for place, result in results.items():
        local_file(result.path / SUMMARY, folder)
        files[f"{place}/{SUMMARY}"] = edited_json(result.summary, public(result.summary))
        if (samples := result.path / SAMPLES_FILE).is_file():
            files[f"{place}/{SAMPLES_FILE}"] = publishable_parquet(local_file(samples, folder), scratch)
    return files


def results_files(folder: Path, results: Mapping[str, Result], repo: str, scratch: Path) -> dict[str, Content]:
    """Collect what is published of results outside a run, by path in the repo.

    Raises:
        UsageError: a file is damaged, or a link out of `folder`.
    """
    rows = evaluations.rows_of(results.values())
    files = _evaluations(folder, results, scratch)
    files[EVALUATIONS] = data_repo.parquet_bytes(rows, evaluations.SCHEMA)
    files["README.md"] = data_card({}, repo, files, [], rows).encode()
    return files


def metrics_table(rows: list[dict]) -> pa.Table:
    """One row per step; step is an integer, every other number a float, anything else text."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: _column(name, [row.get(name) for row in rows]) for name in names})


def _column(name: str, values: list) -> pa.Array:
    if name == "step":
        return pa.array(values, pa.int64())
    if any(isinstance(value, str) for value in values):
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    return pa.array([None if value is None else float(value) for value in values], pa.float64())


def configs(files: Mapping[str, Content]) -> list[dict]:
    """The card's `configs`: one per table, one per protocol and task with a split per step."""
    found = []
    if METRICS in files:
        found.append(data_repo.config("metrics", METRICS, default=True))
    if any(path.startswith("rollouts/") for path in files):
        found.append(data_repo.config("rollouts", "rollouts/step-*.parquet"))
    if EVALUATIONS in files:
        found.append(data_repo.config("evaluations", EVALUATIONS, default=METRICS not in files))
    return found + data_repo.sample_configs(path for path in files if path.startswith("eval/"))


def data_card(run: dict, repo: str, files: Mapping[str, Content], metrics: list[dict], rows: list[dict]) -> str:
    """run: {} for results that belong to no run."""
    estimator = str(dig(run, "algo.advantage.estimator") or "unknown")
    tags = ["reinforcement-learning", "openrlhf", "rollouts", slug(estimator)] if run else ["evaluation", "openrlhf"]
    found = configs(files)
    make = functools.partial(
        render,
        "run_card.md",
        metadata=data_repo.metadata(repo, tags, found),
        name=identifier(repo.rpartition("/")[2]),
        steps=len(metrics),
        run=Markdown("run" if run else ""),
        ebpo=estimator == "ebpo" or not run,
        picture=Markdown(PICTURE) if PICTURE in files else None,
        facts=_facts(run, registry.title(estimator)) if run else _models(rows),
        versions=[(identifier(part), code(version)) for part, version in run.get("versions", {}).items()],
        reading=data_repo.reading(repo, found),
        protocols=evaluations.by_step(rows),
        tables=_tables(files, metrics, found, own_metrics(run.get("metrics"))),
    )
    return with_slot(lambda slot: redacted_text(make(notes=slot)))


def _facts(run: dict, estimator: str) -> list[tuple[Markdown, Markdown]]:
    labels = words("run", "status", "model", "training data", "estimator", "seed", "started", "ended")
    names = ("name", "status", "model", "dataset", "estimator", "seed", "started", "ended")
    values = [{**run, "estimator": estimator}.get(each) for each in names]
    return [(label, code(value)) for label, value in zip(labels, values, strict=True) if value is not None]


def _models(rows: list[dict]) -> list[tuple[Markdown, Markdown]]:
    return [
        (Markdown(f"model at step {step}"), code(model))
        for step, model in sorted({(r["step"], r["model"]) for r in rows})
    ]


def _tables(
    files: Mapping[str, Content], metrics: list[dict], found: list[dict], own: Mapping[str, Metric]
) -> list[list[Markdown]]:
    """Of each configuration its name, what a row of it is, and its columns explained. own: the run's metrics."""
    names = [entry["config_name"] for entry in found]
    blocks = []
    if "metrics" in names:
        meanings = {column: columns.metric_meaning(column, own) for row in metrics for column in row}
        explained = data_repo.explained(metrics_table(metrics).schema, meanings)
        blocks.append([*words("metrics", "One row per step."), explained])
    if "rollouts" in names:
        last = [content for path, content in files.items() if path.startswith("rollouts/step-")][-1]  # is dropped last
        explained = data_repo.explained(read_schema(last), columns.ROLLOUTS)
        blocks.append([*words("rollouts", "One row per response."), explained])
    if "evaluations" in names:
        explained = data_repo.explained(evaluations.SCHEMA, evaluations.MEANING)
        blocks.append(
            [*words("evaluations", "One row per metric of one task at one step under one protocol."), explained]
        )
    samples = [content for path, content in files.items() if path.endswith(f"/{SAMPLES_FILE}")]
    if samples:
        fields = {field.name: field for content in samples for field in read_schema(content)}
        explained = data_repo.explained(pa.schema(fields.values()), columns.SAMPLES)
        meaning = "One row per response; one configuration per protocol and task, one split per step."
        blocks.append([*words("eval-…", meaning), explained])
    return blocks


main = command("openrlhf-ebpo hub push-run", __doc__, add_flags, run, extra="hub")
