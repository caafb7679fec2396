"""Publish a run directory as a data set repo: metrics, rollouts, evaluations, and a card that explains every column.

The repo has the layout of the run directory, so that a downloaded copy is one. Beside it lie tables in Parquet that the
Hub's viewer shows, and datasets.load_dataset(REPO, "metrics") reads (also "rollouts", "checkpoints", "evaluations", and
"eval-PROTOCOL-TASK" with a split for each step).

  openrlhf-ebpo hub push-run out/run --repo me/my-run --dry_run     what would go
  openrlhf-ebpo hub push-run out/run --repo me/my-run               again later: only what is new goes

A run that is still going on can be pushed. Secrets, the folders of local paths and files that are no part of a run are left
out; weights and checkpoints do not go with it (openrlhf-ebpo hub push). The repo is private unless --public.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.files import read_json_lines
from openrlhf_ebpo.hub import columns, data_repo, evaluations, published
from openrlhf_ebpo.hub.card import PICTURE, RECORDS, read, reward_curve
from openrlhf_ebpo.hub.content import Content
from openrlhf_ebpo.hub.local_files import files_below, local_file, named, say_left_out
from openrlhf_ebpo.hub.markdown import Markdown, code, identifier, render, words
from openrlhf_ebpo.hub.notes import with_slot
from openrlhf_ebpo.hub.places import target
from openrlhf_ebpo.hub.public import Edited, changes, edited_json, public, public_name, public_run, public_text, slug
from openrlhf_ebpo.hub.tables import publishable_parquet, read_schema
from openrlhf_ebpo.hub_client import HubError
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.run import checkpoints
from openrlhf_ebpo.run.catalogue import Metric
from openrlhf_ebpo.run.heartbeat import FILE as BEAT
from openrlhf_ebpo.run.own_metrics import own_metrics
from openrlhf_ebpo.run.run_log import DROPPED, LOCK, NOTES, PRIOR_STARTS, read_metrics

METRICS = "tables/metrics.parquet"
EVALUATIONS = "tables/evaluations.parquet"
CHECKPOINTS = "tables/checkpoints.parquet"  # the viewer reads one format per repo, so a table beside checkpoints.jsonl
CHECKPOINT_SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("tag", pa.string()),
        ("checkpoint", pa.string()),
        ("model", pa.string()),
        ("complete", pa.bool_()),
    ]
)
RUN = (*RECORDS, "rollouts/step-[0-9]*.parquet", "eval/*/*/step-*/summary.json", "eval/*/*/step-*/samples.parquet")
OWN = (  # of the run directory, and staying in it
    *("superseded", "failed_step-*", "hub", "hub.json", "training.png"),
    *(LOCK, BEAT, NOTES),
)
OURS = (
    *("rollouts/step-*.parquet", "eval/*", "tables/*", "images/*"),
    *("checkpoints.jsonl", "prior.json", PRIOR_STARTS, DROPPED),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_dir", metavar="RUN_DIR", type=Path, help="--logger.run_dir of a training (run.json is in it)"
    )
    data_repo.add_flags(parser)


def run(args: argparse.Namespace) -> None:
    """Push a run, as `add_flags` has it.

    Raises:
        UsageError: no run, another run in the repo, or no right to write.
        HubError: the push failed.
    """
    args.repo = target(args.repo, kind=data_repo.DATASET)
    with tempfile.TemporaryDirectory() as folder:

        def make_files(api) -> dict[str, Content]:
            files = run_files(args.run_dir, args.repo, Path(folder) / "copies")
            there = data_repo.looked_up(args, lambda: remote_run(api, args.repo, Path(folder) / "remote"), None)
            check_same_run(there, json.loads(files["run.json"]), args.repo)
            return files

        say_what_stays(args.run_dir)
        message = f"run {public_text(args.run_dir.absolute().name)}"
        data_repo.push(args, make_files, message=message, delete=OURS)
    if not args.dry_run:
        published.note(args.run_dir, "run", args.repo)


def say_what_stays(run_dir: Path) -> None:
    """Name the files that do not go; what never goes anyway (docs/hub_cards.md) is not named."""
    others = files_below(run_dir, skip=lambda path: named(path.parts[0], OWN))
    say_left_out([path for path in others if not named(path, RUN)], "parts of a run's record")


def remote_run(api, repo: str, scratch: Path) -> dict | None:
    """run.json of the repo, None where that is new.

    Raises:
        UsageError: it holds something else than a run.
    """
    data_repo.check_ours(api, repo, "run", ["run.json"])
    path = data_repo.remote_file(api, repo, "run.json", scratch)
    return json.loads(path.read_text()) if path else None


def check_same_run(there: Mapping | None, here: Mapping, repo: str) -> None:
    """That the run in the repo, if there is one, is this one, told by its start.

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
    files = _records(run_dir, found) | _rollouts(run_dir, scratch) | _evaluations(run_dir, scratch)
    if metrics := [public(row) for row in read_metrics(run_dir)]:
        files[METRICS] = data_repo.parquet_bytes(metrics_table(metrics))
    if saved := checkpoints.rows(run_dir):
        files[CHECKPOINTS] = data_repo.parquet_bytes([public(row) for row in saved], CHECKPOINT_SCHEMA)
    rows = evaluations.rows_of(evaluations.of_run(run_dir))
    if rows:
        files[EVALUATIONS] = data_repo.parquet_bytes(rows, evaluations.SCHEMA)
    if picture := reward_curve(run_dir, max([row["step"] for row in metrics], default=0)):
        files[PICTURE] = picture
    links = published.links(run_dir, "run")
    files["README.md"] = data_card(public_run(found), repo, files, metrics, rows, links).encode()
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
        raise UsageError(f"{run_dir / name} is damaged ({error}); mend it, or move it away") from error
    return {name: edited_json(stored, public(stored))}


def _rollouts(run_dir: Path, scratch: Path) -> dict[str, Content]:
    """What is there, and what says which were dropped on purpose: a training may drop some of them meanwhile
    (--logger.keep_rollouts), and says so before it does."""
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


def _evaluations(run_dir: Path, scratch: Path) -> dict[str, Content]:
    """Results that are complete: summary.json is written last."""
    files: dict[str, Content] = {}
    for summary in sorted((run_dir / "eval").glob("*/*/step-*/summary.json")):
        place = "/".join(map(public_name, summary.parent.relative_to(run_dir).parts))
        samples = summary.with_name("samples.parquet")
        found = json.loads(local_file(summary, run_dir).read_bytes())
        files[f"{place}/summary.json"] = edited_json(found, public(found))
        if samples.is_file():
            files[f"{place}/samples.parquet"] = publishable_parquet(local_file(samples, run_dir), scratch)
    return files


def metrics_table(rows: list[dict]) -> pa.Table:
    """One row per step; step is an integer, every other number a float, and what is no number text."""
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
    if CHECKPOINTS in files:
        found.append(data_repo.config("checkpoints", CHECKPOINTS))
    if EVALUATIONS in files:
        found.append(data_repo.config("evaluations", EVALUATIONS))
    return found + data_repo.sample_configs(path for path in files if path.startswith("eval/"))


def data_card(
    run: dict, repo: str, files: Mapping[str, Content], metrics: list[dict], rows: list[dict], links: Markdown
) -> str:
    estimator = str(run.get("args", {}).get("algo", {}).get("advantage", {}).get("estimator", "unknown"))
    tags = ["reinforcement-learning", "openrlhf", "rollouts", slug(estimator)]
    found = configs(files)
    make = functools.partial(
        render,
        "run_card.md",
        metadata=data_repo.metadata(repo, tags, found),
        name=identifier(repo.rpartition("/")[2]),
        steps=len(metrics),
        links=links,
        ebpo=estimator == "ebpo",
        picture=Markdown(PICTURE) if PICTURE in files else None,
        facts=_facts(run, registry.title(estimator)),
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
    if "checkpoints" in names:
        explained = data_repo.explained(CHECKPOINT_SCHEMA, columns.CHECKPOINTS)
        blocks.append([*words("checkpoints", "One row per saved checkpoint."), explained])
    if "evaluations" in names:
        explained = data_repo.explained(evaluations.SCHEMA, evaluations.MEANING)
        blocks.append(
            [*words("evaluations", "One row per metric of one task at one step under one protocol."), explained]
        )
    samples = [content for path, content in files.items() if path.endswith("/samples.parquet")]
    if samples:
        fields = {field.name: field for content in samples for field in read_schema(content)}
        explained = data_repo.explained(pa.schema(fields.values()), columns.SAMPLES)
        meaning = "One row per response; one configuration per protocol and task, one split per step."
        blocks.append([*words("eval-…", meaning), explained])
    return blocks


main = command("openrlhf-ebpo hub push-run", __doc__, add_flags, run, extra="hub")
