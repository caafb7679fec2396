"""Publish evaluation results as a data set repo, and write them into a model's card.

The repo holds PROTOCOL/TASK/step-N/ with summary.json and samples.parquet, a table of all metrics, and a card. Several
pushes may go into one repo, of other tasks, steps or protocols: what is there stays. With --model the results of one step
are also written into that model's card, into its `model-index`, from which the Hub makes the table of results; the rest of
the card stays as it is, and results of different protocols are never put into one row.

  openrlhf-ebpo hub push-results results/base --repo me/base-results --dry_run
  openrlhf-ebpo hub push-results out/run --repo me/my-results --model me/my-model

RESULTS_DIR is the --output_dir of openrlhf-ebpo eval, a run directory, or a part of one. Repeated, only what is new goes.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.eval.tasks import BENCHMARKS
from openrlhf_ebpo.hub import columns, data_repo, evaluations, published
from openrlhf_ebpo.hub.content import Content
from openrlhf_ebpo.hub.local_files import files_below, local_file, say_left_out
from openrlhf_ebpo.hub.markdown import Markdown, identifier, render
from openrlhf_ebpo.hub.notes import with_slot
from openrlhf_ebpo.hub.places import check_write_access, target
from openrlhf_ebpo.hub.public import edited_json, public, public_name
from openrlhf_ebpo.hub.push import newest_step
from openrlhf_ebpo.hub.tables import publishable_parquet, read_schema
from openrlhf_ebpo.hub.upload import commit_of, publish
from openrlhf_ebpo.hub_client import hub_api, hub_errors, retrying
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.run.results import SERVER, TRAINING, Result, find_results, whole_name

FILES = ("summary.json", "samples.parquet")
INDEX = "tables/evaluations.parquet"
IDENTITY = ("protocol_fingerprint", "task_fingerprint", "model_identity")  # what one place must agree with
NO_LINKS = Markdown("")
ROW = ("type", "config", "split", "revision")  # of a data set: what makes one row of the model-index


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results_dir", metavar="RESULTS_DIR", type=Path, help="results of openrlhf-ebpo eval, or a run")
    data_repo.add_flags(parser)
    parser.add_argument("--model", metavar="OWNER/MODEL", help="also write the results into this model's card")
    parser.add_argument(
        "--step",
        type=int,
        metavar="N",
        help="of --model: write the results of this step (default: the last there is, if the model is of it)",
    )


def run(args: argparse.Namespace) -> None:
    """Push results, and write them into the model's card if --model names one.

    Raises:
        UsageError: no results, others in the same place of the repo, or no right to write.
        HubError: a push failed.
    """
    args.repo = target(args.repo, kind=data_repo.DATASET)
    results = find_results(args.results_dir)
    rows = evaluations.rows_of(results)
    chosen = of_step(rows, args.step) if args.model else []
    check_weights_known(chosen, args.model)
    if args.model:
        args.model = target(args.model, "--model")
        if not args.dry_run:
            retrying(lambda: check_model(hub_api(), args.model))
            retrying(lambda: check_step(hub_api(), args.model, chosen[0]["step"], args.step is not None))
    with tempfile.TemporaryDirectory() as folder:

        def make_files(api) -> dict[str, Content]:
            before = data_repo.looked_up(args, lambda: remote_rows(api, args.repo, Path(folder) / "remote"), [])
            known = merged(before, rows, args.repo)
            links = published.links(args.results_dir, "results", args.model)
            return results_files(args.results_dir, results, known, args.repo, Path(folder) / "copies", links)

        say_what_stays(args.results_dir, results)
        say_conditions(results, args.repo)
        data_repo.push(args, make_files, message=f"results of {len(results)} evaluations", manifest=None)
    if not args.dry_run:
        published.note(args.results_dir, "results", args.repo)
    if args.model:
        write_into_model(args, chosen)


def of_step(rows: Sequence[dict], step: int | None) -> list[dict]:
    """The rows of a step, or of the last there is; evaluations during training choose it only where there are no others.

    Raises:
        UsageError: there are no results of this step.
    """
    steps = sorted({row["step"] for row in rows})
    evaluated = [row["step"] for row in rows if row["protocol"] != TRAINING] or steps
    chosen = max(evaluated) if step is None else step
    if chosen not in steps:
        raise UsageError(f"--step {step}: there are results of step {', '.join(map(str, steps))}")
    return [row for row in rows if row["step"] == chosen]


def check_weights_known(rows: Sequence[dict], model: str | None) -> None:
    """A card is about weights, and a server does not say which it has.

    Raises:
        UsageError: the results are of a model behind a server.
    """
    if served := next((row["model"] for row in rows if row["model"].startswith(SERVER)), None):
        raise UsageError(
            f"--model {model}: the results are of {served}, a model behind a server, which does not say what weights it has; "
            "they are no statement about a model on the Hub. Push them without --model, or evaluate the model itself"
        )


def check_model(api, model: str) -> None:
    """That --model is on the Hub and may be changed.

    Raises:
        UsageError: there is no such model, or the token may not change it.
    """
    check_write_access(api, model, flag="--model")
    with hub_errors(f"looking at {model}"):
        found = commit_of(api, model, "model", "main")
    if not found:
        raise UsageError(f"--model {model}: no such model on the Hub; push it first: openrlhf-ebpo hub push")


def check_step(api, model: str, step: int, named: bool) -> None:
    """The card belongs to what is on main, the newest step; results of another one, such as the base model's, are no
    statement about it.

    Raises:
        UsageError: they are of another step, and --step has not named it.
    """
    newest = newest_step(api, model)
    if newest not in (-1, step) and not named:
        raise UsageError(
            f"--model {model} is of step {newest}, the results are of step {step}: evaluate step {newest}, or name them "
            f"with --step {step} if they are of that model all the same"
        )


def remote_rows(api, repo: str, scratch: Path) -> list[dict]:
    """The table of results that the repo has.

    Raises:
        UsageError: the repo holds a run, or something else.
    """
    if data_repo.remote_file(api, repo, "run.json", scratch):
        raise UsageError(
            f"--repo {repo} holds a run (hub push-run, which publishes its results too); choose another repo"
        )
    data_repo.check_ours(api, repo, "table of results", [INDEX])
    path = data_repo.remote_file(api, repo, INDEX, scratch)
    return pq.read_table(path).to_pylist() if path else []


def merged(before: Iterable[dict], rows: Sequence[dict], repo: str) -> list[dict]:
    """All rows that the repo then has.

    Raises:
        UsageError: in a place of the new results are others, of another model, task version or protocol.
    """
    own = {place(row): row for row in rows}
    kept = []
    for row in before:
        new = own.get(place(row))
        if new is None:
            kept.append(row)
        elif different := [name for name in IDENTITY if row.get(name) != new[name]]:
            details = "; ".join(f"{name} {row.get(name)!r} there, {new[name]!r} here" for name in different)
            raise UsageError(f"--repo {repo} has other results in {place(row)} ({details}); choose another repo")
    return evaluations.ordered([*kept, *rows])


def place(row: dict) -> str:
    """Folder of a result in the repo."""
    return f"{public_name(row['protocol'])}/{public_name(row['task'])}/step-{row['step']:06d}"


def say_what_stays(results_dir: Path, results: Sequence[Result]) -> None:
    """Name the files beside results that do not go."""
    folders = {result.path for result in results}
    beside = [(folder / path) for folder in sorted(folders) for path in files_below(folder)]
    say_left_out([path.relative_to(results_dir) for path in beside if path.name not in FILES], "results")


def say_conditions(results: Sequence[Result], repo: str) -> None:
    """Warn of questions that were had on the condition that they stay off the public web."""
    names = sorted({result.task for result in results if whole_name(result.task) in BENCHMARKS})
    held = [
        name for name in names if any(getattr(copy, "gated", False) for copy in BENCHMARKS[whole_name(name)].copies)
    ]
    if held:
        print(
            f"warning: {', '.join(held)}: its publishers ask that its questions are not put online, and samples.parquet has "
            f"them: keep {repo} private, or push a folder without these results"
        )


def results_files(
    results_dir: Path,
    results: Sequence[Result],
    rows: Sequence[dict],
    repo: str,
    scratch: Path,
    links: Markdown = NO_LINKS,
) -> dict[str, Content]:
    """What goes, by path in the repo.

    Args:
        rows: of these results and of those that are there already.

    Raises:
        UsageError: a file is damaged, or a link out of `results_dir`.
    """
    files: dict[str, Content] = {}
    for result in results:
        folder = place({"protocol": result.protocol["name"], "task": result.task, "step": result.step})
        local_file(result.path / "summary.json", results_dir)
        files[f"{folder}/summary.json"] = edited_json(result.summary, public(result.summary))
        if (samples := result.path / "samples.parquet").is_file():
            files[f"{folder}/samples.parquet"] = publishable_parquet(local_file(samples, results_dir), scratch)
    files[INDEX] = data_repo.parquet_bytes(rows, evaluations.SCHEMA)
    schema = next((read_schema(file) for path, file in files.items() if path.endswith("samples.parquet")), None)
    files["README.md"] = data_card(rows, repo, schema, links).encode()
    return files


def data_card(rows: Sequence[dict], repo: str, schema: pa.Schema | None, links: Markdown) -> str:
    places = dict.fromkeys(f"{place(row)}/samples.parquet" for row in rows)
    found = [data_repo.config("evaluations", INDEX, default=True), *data_repo.sample_configs(places if schema else ())]
    make = functools.partial(
        render,
        "results_card.md",
        metadata=data_repo.metadata(repo, ["evaluation", "openrlhf", "ebpo"], found),
        name=identifier(repo.rpartition("/")[2]),
        links=links,
        models=sorted({(row["step"], row["model"]) for row in rows}),
        protocols=evaluations.by_step(rows),
        reading=data_repo.reading(repo, found),
        evaluations=data_repo.explained(evaluations.SCHEMA, evaluations.MEANING),
        samples=data_repo.explained(schema, columns.SAMPLES) if schema else None,
    )
    return with_slot(lambda slot: redacted_text(make(notes=slot)))


def write_into_model(args: argparse.Namespace, rows: Sequence[dict]) -> None:
    """Put the rows into the model-index of the card of --model."""
    api = hub_api()
    url = f"{api.endpoint}/datasets/{args.repo}"
    new = evaluations.eval_results(rows, url)
    what = f"{len(new)} results of step {rows[0]['step']}"
    if args.dry_run:
        print(f"dry run: {what} would be written into the card of {args.model}")
        return

    def write():
        with hub_errors(f"looking at {args.model}"):
            commit = commit_of(api, args.model, "model", "main")
        card = with_results(_file(api, args.model, "README.md", commit), new, args.model).encode()
        before = _file(api, args.model, evaluations.ENTRIES, commit)
        files = {"README.md": card, **with_entries(before, evaluations.entries(rows, url))}
        how = {"message": f"evaluation {what}", "manifest": None, "based_on": commit}  # not upon a newer step's card
        return publish(api, args.model, files, **how)

    done = retrying(write)
    print(f"card of {args.model}: {what} {'written' if done.sent else 'were there already'}")


def _file(api, model: str, name: str, commit: str) -> str:
    """The text of a file of a model, "" where it has none."""
    with hub_errors(f"reading {name} of {model}"), tempfile.TemporaryDirectory() as folder:
        if not api.file_exists(model, name, revision=commit):
            return ""
        return Path(api.hf_hub_download(model, name, revision=commit, local_dir=folder)).read_text()


def with_entries(before: str, new: Sequence[dict]) -> dict[str, bytes]:
    """Our file in .eval_results/ with new entries in place of those of the same data set, task and protocol; {} where there
    is nothing to say."""
    import yaml

    try:
        there = yaml.safe_load(before) or []
    except yaml.YAMLError:
        there = []
    keys = {_key(entry) for entry in new}
    kept = [entry for entry in there if _key(entry) not in keys] if isinstance(there, list) else []
    return {evaluations.ENTRIES: evaluations.entries_file([*kept, *new])} if new else {}


def _key(entry) -> tuple:
    dataset = entry.get("dataset") if isinstance(entry, dict) else None
    dataset = dataset if isinstance(dataset, dict) else {}
    notes = str(entry.get("notes")) if isinstance(entry, dict) else ""
    return str(dataset.get("id")), str(dataset.get("task_id")), notes.partition(";")[0]


def with_results(card: str, new: Sequence, model: str) -> str:
    """The card with results (EvalResult) in its model-index; everything else in it stays. Not by way of ModelCard, which
    drops fields of a model-index that it does not know, and merges results of one data set with other arguments.

    Raises:
        UsageError: its metadata cannot be read.
    """
    import yaml
    from huggingface_hub.repocard import REGEX_YAML_BLOCK
    from huggingface_hub.repocard_data import eval_results_to_model_index
    from huggingface_hub.utils import yaml_dump

    match = REGEX_YAML_BLOCK.search(card)
    name = model.rpartition("/")[2]
    try:
        data = (yaml.safe_load(match[2]) if match else None) or {}
        index = data.setdefault("model-index", None) or [{"name": name, "results": []}]
        results = index[0].setdefault("results", [])
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, IndexError) as error:
        raise UsageError(
            f"--model {model}: the metadata of its card cannot be read ({error}); mend README.md"
        ) from error
    for entry in eval_results_to_model_index(name, list(new))[0]["results"]:
        _put(results, entry)
    data["model-index"] = index
    body = card[match.end() :] if match else card or f"\n# {name}\n"
    return f"---\n{yaml_dump(data, sort_keys=False)}---\n{body}"


def _put(results: list[dict], entry: dict) -> None:
    """Add an entry, or its metrics to the one of the same task and data set, in place of those of the same type."""
    for there in results:
        if _row(there) == _row(entry):
            types = {metric["type"] for metric in entry["metrics"]}
            kept = [metric for metric in there.get("metrics", []) if metric.get("type") not in types]
            there.update({**entry, "metrics": kept + entry["metrics"]})
            return
    results.append(entry)


def _row(entry: dict) -> tuple:
    dataset = entry.get("dataset", {})
    return (entry.get("task", {}).get("type"), *(dataset.get(name) for name in ROW))


main = command("openrlhf-ebpo hub push-results", __doc__, add_flags, run, extra="hub")
