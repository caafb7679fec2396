"""Publish a run directory as a data set repo with a card that explains every column.

The repo has the layout of a run directory, so that a downloaded copy is one. Tables in Parquet are added that the Hub's
viewer shows, and datasets.load_dataset(REPO, "metrics") reads (also "rollouts", "evaluations", and "eval-PROTOCOL-TASK"
with a split for each step).

  openrlhf-ebpo hub push-run out/run --repo me/my-run --dry_run     list what would go
  openrlhf-ebpo hub push-run out/run --repo me/my-run               again later: only what is new goes

A run that is still training can be pushed. Secrets, the folders of local paths and unknown files are left
out; weights and checkpoints do not go with it (openrlhf-ebpo hub push). The repo is private unless --public.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import read_json_lines
from openrlhf_ebpo.hub import evaluations
from openrlhf_ebpo.hub.card import RECORDS, read
from openrlhf_ebpo.hub.content import Content, Publishable, files_below, local_file, named, print_left_out, size
from openrlhf_ebpo.hub.data_card import EVALUATIONS, METRICS, data_card
from openrlhf_ebpo.hub.public import Edited, changes, edited_json, public, public_name, public_run, public_text
from openrlhf_ebpo.hub.publish import CARD, Commit, Owner, Published, Repo, print_files, publish, same_run
from openrlhf_ebpo.hub.response_tables import publishable_parquet
from openrlhf_ebpo.hub.settings import check_write_access, target
from openrlhf_ebpo.hub_client import HubError, hub_api, hub_errors, in_time, retrying
from openrlhf_ebpo.run import checkpoints
from openrlhf_ebpo.run.heartbeat import FILE as BEAT
from openrlhf_ebpo.run.results import SAMPLES_FILE, SUMMARY, Result
from openrlhf_ebpo.run.run_log import LOCK, read_metrics

DATASET = "dataset"
RUN = (
    *(*RECORDS, "rollouts/step-[0-9]*.parquet"),
    *(f"eval/*/*/step-*/{name}" for name in (SUMMARY, SAMPLES_FILE)),
)
OWN = (  # of the run directory, and staying in it
    *("superseded", "failed_step-*", "hub", "hub.json", "training.png"),
    *(LOCK, BEAT),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_dir", metavar="RUN_DIR", type=Path, help="--logger.run_dir of a training (run.json is in it)"
    )
    parser.add_argument(
        "--repo", required=True, metavar="OWNER/NAME", help="data set repo; created if it does not exist"
    )
    parser.add_argument("--public", action="store_true", help="a repo that is made can be seen by everybody")
    parser.add_argument("--dry_run", action="store_true", help="list the files that would go, with sizes, and stop")


def run(args: argparse.Namespace) -> None:
    """Push a run.

    Raises:
        UsageError: RUN_DIR holds no run, the repo holds something else, or the token may not write.
        HubError: the push failed; the repeated command continues where it stopped.
    """
    args.repo = target(args.repo, kind=DATASET)
    read(args.run_dir)
    others = files_below(args.run_dir, skip=lambda path: named(path.parts[0], OWN))
    print_left_out([path for path in others if not named(path, RUN)], "parts of a run's record")
    repo = Repo(hub_api(), args.repo, DATASET)
    with tempfile.TemporaryDirectory() as folder:

        def collect() -> tuple[dict[str, Content], Owner]:
            files = run_files(args.run_dir, args.repo, Path(folder) / "copies")
            return files, same_run(json.loads(files["run.json"]))

        def publish_once() -> Published:  # collects them again, since a push that came in between fails it (412)
            files, owner = collect()
            total = sum(map(size, files.values()))
            return in_time(lambda: publish(repo, files, commit, owner), f"pushing to {args.repo}", total)

        if args.dry_run:
            print_files(Publishable(collect()[0]), args.repo)
            return
        commit = Commit(f"run {public_text(args.run_dir.absolute().name)}", private=not args.public)
        retrying(lambda: in_time(lambda: check_write_access(repo), f"looking at {args.repo}"))
        done = retrying(publish_once)
    with hub_errors(f"looking at {args.repo}"):
        visibility = "private" if repo.api.repo_info(args.repo, repo_type=DATASET).private else "public"
    for path in done.kept:
        print(f"{path} of {args.repo} was written or edited by somebody, and stays as it is")
    sent = f"{len(done.sent)} files sent, {done.unchanged} unchanged" if done.sent else "nothing had changed"
    print(f"pushed: {done.url} ({sent}; {visibility})")


def run_files(run_dir: Path, repo: str, scratch: Path) -> dict[str, Content]:
    """Everything of a run that is published, by path in the repo; copies of what has to be changed go to `scratch`.

    Raises:
        UsageError: no run is there, or a file of it is damaged.
    """
    run_dir = Path(run_dir)
    found = read(run_dir)
    results = evaluations.of_run(run_dir)
    files = _records(run_dir, found) | _rollouts(run_dir, scratch) | _evaluations(run_dir, results, scratch)
    if metrics := [public(row) for row in read_metrics(run_dir)]:
        files[METRICS] = parquet_bytes(metrics_table(metrics))
    if rows := evaluations.rows_of(results):
        files[EVALUATIONS] = parquet_bytes(pa.Table.from_pylist(rows, schema=evaluations.SCHEMA))
    files[CARD] = data_card(public_run(found), repo, files).encode()
    return files


def _records(run_dir: Path, found: dict) -> dict[str, Content]:
    """The JSON files. Lines that are still being written stay behind."""
    files: dict[str, Content] = {"run.json": edited_json(found, public_run(found))}
    lines = read_json_lines(run_dir / "metrics.jsonl")
    for name, rows in {"metrics.jsonl": lines, checkpoints.LIST: checkpoints.rows(run_dir)}.items():
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
    """The files that are there, some may be deleted meanwhile."""
    files: dict[str, Content] = {}
    for path in sorted((run_dir / "rollouts").glob("step-*.parquet")):
        if named(path.relative_to(run_dir), RUN):
            try:
                files[f"rollouts/{path.name}"] = publishable_parquet(local_file(path, run_dir), scratch)
            except (FileNotFoundError, HubError):
                if os.path.lexists(path):
                    raise
    gone = [name for name in files if not (run_dir / name).exists()]
    return {name: file for name, file in files.items() if name not in gone}


def _evaluations(run_dir: Path, results: Sequence[Result], scratch: Path) -> dict[str, Content]:
    files: dict[str, Content] = {}
    for result in results:
        protocol, task = public_name(result.protocol["name"]), public_name(result.task)
        place = f"eval/{protocol}/{task}/step-{result.step:06d}"
        local_file(result.path / SUMMARY, run_dir)
        files[f"{place}/{SUMMARY}"] = edited_json(result.summary, public(result.summary))
        if (samples := result.path / SAMPLES_FILE).is_file():
            files[f"{place}/{SAMPLES_FILE}"] = publishable_parquet(local_file(samples, run_dir), scratch)
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


def parquet_bytes(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


main = command("openrlhf-ebpo hub push-run", __doc__, add_flags, run, extra="hub")
