"""Data set repos: the flags, the push and the card's metadata that runs and evaluation results have in common."""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub import columns
from openrlhf_ebpo.hub.content import Content
from openrlhf_ebpo.hub.markdown import Markdown, fenced, table, words
from openrlhf_ebpo.hub.notes import CARD, keeping_notes
from openrlhf_ebpo.hub.places import check_write_access
from openrlhf_ebpo.hub.public import slug
from openrlhf_ebpo.hub.upload import MANIFEST, commit_of, head_of, plan, print_plan, publish
from openrlhf_ebpo.hub_client import HubError, hub_api, hub_errors, retrying

T = TypeVar("T")
DATASET = "dataset"


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repo", required=True, metavar="OWNER/NAME", help="data set repo; created if it does not exist"
    )
    parser.add_argument("--public", action="store_true", help="a repo that is made can be seen by everybody")
    parser.add_argument("--dry_run", action="store_true", help="list the files that would go, with sizes, and stop")


def push(args: argparse.Namespace, make_files: Callable[[object], Mapping[str, Content]], **how) -> None:
    """Publish what `make_files(api)` gives, and say what happened; `how` goes to upload.publish.

    Raises:
        UsageError: the token may not write, or files that cannot go.
        HubError: it failed; the repeated command continues where it stopped.
    """
    api = hub_api()
    if not args.dry_run:
        retrying(lambda: check_write_access(api, args.repo, DATASET))
    if args.dry_run:
        what = {"repo_type": DATASET, "delete": how.get("delete", ()), "manifest": how.get("manifest", MANIFEST)}
        print_plan(retrying(lambda: plan(api, args.repo, make_files(api), **what)), args.repo)
        return

    def attempt():
        """All of it, since what goes depends on what is there: another push may have come in between."""
        with hub_errors(f"looking at {args.repo}"):
            before = commit_of(api, args.repo, DATASET, "main")
        files = dict(make_files(api))
        files[CARD] = keeping_notes(api, args.repo, files[CARD], print, DATASET)
        return publish(api, args.repo, files, repo_type=DATASET, private=not args.public, based_on=before, **how)

    done = retrying(attempt)
    sent = f"{len(done.sent)} files sent, {done.unchanged} unchanged" if done.sent else "nothing had changed"
    print(f"pushed: {done.url} ({sent}; {visibility(api, args.repo)})")


def visibility(api, repo: str) -> str:
    """private or public, as the repo is: the visibility of one that was there is left alone."""
    with hub_errors(f"looking at {repo}"):
        return "private" if api.repo_info(repo, repo_type=DATASET).private else "public"


def check_ours(api, repo: str, what: str, mark: str) -> str | None:
    """Check that a repo is new, or holds the file `mark`: what somebody else keeps there is not overwritten.

    Returns:
        The commit with the file; None if there is none.

    Raises:
        UsageError: it holds something else.
    """
    commit, names = head_of(api, repo, DATASET)
    others = sorted(names.keys() - {".gitattributes", "README.md"})
    if others and mark not in names:
        raise UsageError(
            f"--repo {repo} holds something that is not a {what} ({', '.join(others[:3])}), which would be overwritten: "
            "choose another repo"
        )
    return commit if mark in names else None


def looked_up(args: argparse.Namespace, look: Callable[[], T], unknown: T) -> T:
    """`look()`; in a dry run `unknown` if the Hub cannot be asked, or not without a token."""
    try:
        return look()
    except HubError:
        if not args.dry_run:
            raise
        return unknown


def parquet_bytes(rows: Sequence[dict] | pa.Table, schema: pa.Schema | None = None) -> bytes:
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows), schema=schema)
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def config(name: str, files: Mapping[str, str] | str, default: bool = False) -> dict:
    """One entry of the card's `configs`: which files the viewer, and load_dataset(repo, name), read.

    files: path or pattern by split; a single one is the split train.
    """
    splits = {"train": files} if isinstance(files, str) else files
    entry = {"config_name": name, "data_files": [{"split": split, "path": path} for split, path in splits.items()]}
    return {**entry, "default": True} if default else entry


def unique(names: Iterable[str]) -> list[str]:
    """The names, a later one of two equal ones with a number behind it."""
    found: list[str] = []
    for name in names:
        candidate, number = name, 2
        while candidate in found:
            candidate, number = f"{name}-{number}", number + 1
        found.append(candidate)
    return found


def metadata(repo: str, tags: Sequence[str], configs: Sequence[dict]) -> Markdown:
    """The data card's, as YAML. Without any table the Hub's viewer would show run.json and the like as data."""
    from huggingface_hub import DatasetCardData

    tables = {"configs": list(configs)} if configs else {"viewer": False}
    pretty = repo.rpartition("/")[2]
    data = DatasetCardData(pretty_name=pretty, task_categories=["text-generation"], tags=list(tags), **tables)
    return Markdown(data.to_yaml())


def sample_configs(paths: Iterable[str]) -> list[dict]:
    """A configuration for each protocol and task, from paths that end in PROTOCOL/TASK/step-N/samples.parquet."""
    groups: dict[tuple[str, str], dict[str, str]] = {}
    for path in sorted(path for path in paths if path.endswith("/samples.parquet")):
        protocol, task, step = path.split("/")[-4:-1]
        groups.setdefault((protocol, task), {})[step.replace("-", "_")] = path
    names = unique(f"eval-{slug(protocol)}-{slug(task)}" for protocol, task in groups)
    return [config(name, splits) for name, splits in zip(names, groups.values(), strict=True)]


def reading(repo: str, found: Sequence[dict]) -> Markdown:
    """Python that loads every configuration."""
    lines = ["from datasets import load_dataset", ""]
    for entry in found:
        split = entry["data_files"][-1]["split"]
        lines.append(f'load_dataset("{repo}", "{entry["config_name"]}", split="{split}")')
    return fenced("python", "\n".join(lines))


def explained(schema: pa.Schema, meanings: Mapping[str, Markdown]) -> Markdown:
    """A table of columns, types and meanings."""
    rows = [[field.name, field.type, meanings.get(field.name, columns.OTHER)] for field in schema]
    return table(words("column", "type", "meaning"), rows)
