"""Push a run directory, or the results of `eval --output_dir`, to a data set repo with a card.

The repo has the layout of the directory, so that a downloaded copy is one, and the Space shows it. The Hub's viewer and
datasets.load_dataset read "rollouts" and "eval".

  openrlhf-ebpo hub push-run out/run --repo me/my-run --dry_run     list what would go
  openrlhf-ebpo hub push-run out/run --repo me/my-run               again later: only what is new goes

A run that is still training can be pushed. Of its records (JSON) secrets and the folders of local paths are left out;
its tables go as they are, and a secret in one stops the push. Unknown files, weights and checkpoints do not go
(openrlhf-ebpo hub push). The repo is private unless --public.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.hub import evaluations
from openrlhf_ebpo.hub.content import Content, Publishable, files_below, local_file, named, print_left_out, size
from openrlhf_ebpo.hub.hub_settings import check_target, target
from openrlhf_ebpo.hub.markdown import Markdown, code, fill_template
from openrlhf_ebpo.hub.public import hub_id, public_json, public_run, public_text, run_tag, slug
from openrlhf_ebpo.hub.publish import CARD, Commit, Repo, megabytes, print_files, publish_with_timeout, same_run
from openrlhf_ebpo.hub_client import hub_api, retrying
from openrlhf_ebpo.redact import without_secrets
from openrlhf_ebpo.run.results import SAMPLES_FILE, SUMMARY
from openrlhf_ebpo.run.run_log import get_nested, read_metrics, read_run

DATASET = "dataset"
RECORDS = ("run.json", "metrics.jsonl", "checkpoints.jsonl", "prior.json")
RESULTS = tuple(f"*/*/step-*/{name}" for name in (SUMMARY, SAMPLES_FILE))
FOLDERS = ("rollouts", "eval")
RUN = (*RECORDS, "rollouts/step-[0-9]*.parquet", *(f"eval/{name}" for name in RESULTS))
FACTS = ("name", "status", "model", "dataset", "seed", "hardware", "started", "ended")
# name for load_dataset -> files. Of Parquet alone: it reads a repo with one reader
TABLES = {"rollouts": "rollouts/*.parquet", "eval": "**/samples.parquet"}


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_dir", metavar="DIR", type=Path, help="--logger.run_dir of a training, or --output_dir of an evaluation"
    )
    parser.add_argument(
        "--repo", required=True, metavar="OWNER/NAME", help="data set repo; created if it does not exist"
    )
    parser.add_argument("--public", action="store_true", help="a repo that is made can be seen by everybody")
    parser.add_argument(
        "--not_secret", nargs="+", default=[], metavar="FILE", help="files that you have checked: they hold no secrets"
    )
    parser.add_argument("--dry_run", action="store_true", help="list the files that would go, with sizes, and stop")


def run(args: argparse.Namespace) -> None:
    """Push a run or results.

    Raises:
        UsageError: DIR holds neither, the repo holds something else, or the token may not write.
        HubError: the push failed; the repeated command continues where it stopped.
    """
    repo = Repo(hub_api(), target(args.repo, kind=DATASET), DATASET)
    files = run_files(args.run_dir, repo.name, args.not_secret)
    others = files_below(args.run_dir, skip=lambda path: path.parts[0] == "superseded")
    print_left_out([path for path in others if path.as_posix() not in files], "parts of a run's record")
    if args.dry_run:
        print_files(files, repo.name)
        return
    owner = same_run(json.loads(files["run.json"]) if "run.json" in files else None, files)
    print(*check_target(repo, args.public, owner), sep="\n", file=sys.stderr)
    commit = Commit(f"run {public_text(args.run_dir.absolute().name)}", owner, private=not args.public)
    retrying(lambda: publish_with_timeout(repo, files, commit))


def run_files(run_dir: Path, repo: str, not_secret: list[str] = ()) -> Publishable:
    """Everything that is published of a run or of results, by path in the repo.

    Raises:
        UsageError: the folder holds neither, a file of it is damaged or a link out of the folder, or holds a secret.
    """
    paths = files_below(run_dir)
    for path in (path for path in paths if path.parts[0] in FOLDERS and (run_dir / path).is_symlink()):
        local_file(run_dir / path, run_dir)  # which refuses a link out of the run
    there, patterns = set(paths), RUN if Path("run.json") in paths else RESULTS
    incomplete = {path for path in paths if path.name == SAMPLES_FILE and path.with_name(SUMMARY) not in there}
    found = [path.as_posix() for path in paths if named(path, patterns) and path not in incomplete]
    if not found:
        raise UsageError(
            f"{run_dir} holds no run.json and no results: name the run directory of a training (--logger.run_dir), or "
            "the --output_dir of an evaluation"
        )
    files: dict[str, Content] = {name: local_file(run_dir / name, run_dir) for name in found}
    records = [name for name in found if not name.endswith(".parquet") and name not in not_secret]
    files |= {name: public_json(files[name]) for name in records}
    files = {name: content for name, content in files.items() if content != b""}  # before the first step
    return Publishable(files, {CARD: data_card(run_dir, repo, files).encode()}, not_secret=not_secret)


def data_card(run_dir: Path, repo: str, files: Mapping[str, Content]) -> str:
    """README.md of the repo. files: the others, by path in it."""
    run = public_run(read_run(run_dir) or {})
    estimator = str(get_nested(run, "args", "algo", "advantage", "estimator") or "")
    repo_of_models, results = get_nested(run, "args", "hub", "repo"), evaluations.of_run(run_dir)
    last = max((each.step for each in results), default=0)
    tables = [name for name, pattern in TABLES.items() if any(fnmatch(path, pattern) for path in files)]
    text = fill_template(
        "run_card.md",
        metadata=metadata(repo, [slug(each) for each in (estimator, *run_tag(run)) if each], tables),
        name=Markdown(repo.rpartition("/")[2]),
        repo=Markdown(repo),
        ebpo=estimator == "ebpo",
        headline=evaluations.change(*evaluations.of_step(results, last), read_metrics(run_dir)),
        facts=[(Markdown(key), run[key]) for key in FACTS if run.get(key) is not None],
        estimator=code(registry.title(estimator)) if estimator else None,
        count=Markdown(len(files)),
        size=Markdown(megabytes(sum(map(size, files.values())))),
        table=Markdown(tables[0]) if tables else None,
        model=Markdown(repo_of_models) if hub_id(repo_of_models) else None,
        tag=next((Markdown(tag) for tag in run_tag(run)), None),
    )
    return without_secrets(text)


def metadata(repo: str, tags: list[str], tables: list[str]) -> Markdown:
    """The card's YAML, with the tables that the viewer shows and load_dataset(repo, name) reads. Without any the viewer
    would show run.json and the like as data."""
    from huggingface_hub import DatasetCardData

    configs = [{"config_name": name, "data_files": TABLES[name]} for name in tables]
    data = DatasetCardData(
        license="other",
        pretty_name=repo.rpartition("/")[2],
        task_categories=["text-generation"],
        tags=["reinforcement-learning", "openrlhf", "rollouts", *tags],
        **({"configs": configs} if configs else {"viewer": False}),
    )
    return Markdown(data.to_yaml())


main = command("openrlhf-ebpo hub push-run", __doc__, add_flags, run, extra="hub")
