"""Write evaluation results into a model's card on the Hub: into its `model-index`, which the Hub shows as a table.

The rest of the card stays as it is, and results of different protocols are never put into one row. The responses go as a
data set: openrlhf-ebpo hub push-run.

  openrlhf-ebpo hub push-results out/run --model me/my-model --dry_run
  openrlhf-ebpo hub push-results out/run --model me/my-model

RESULTS_DIR is the --output_dir of openrlhf-ebpo eval, a run directory, or a part of one.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub import evaluations, published
from openrlhf_ebpo.hub.places import check_write_access, target
from openrlhf_ebpo.hub.push import newest_step
from openrlhf_ebpo.hub.upload import commit_of, publish
from openrlhf_ebpo.hub_client import hub_api, hub_errors, retrying
from openrlhf_ebpo.run.results import SERVER, TRAINING, find_results

ROW = ("type", "config", "split", "revision")  # of a data set: what makes one row of the model-index


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results_dir", metavar="RESULTS_DIR", type=Path, help="results of openrlhf-ebpo eval, or a run")
    parser.add_argument("--model", metavar="OWNER/MODEL", help="the model whose card gets the results")
    parser.add_argument("--repo", help=argparse.SUPPRESS)
    parser.add_argument(
        "--step",
        type=int,
        metavar="N",
        help="write the results of this step (default: the last there is, if the model is of it)",
    )
    parser.add_argument("--dry_run", action="store_true", help="say what would be written, and stop")


def run(args: argparse.Namespace) -> None:
    """Write results into the card of --model.

    Raises:
        UsageError: no results, results of another step or of unknown weights, no such model, or no right to write.
        HubError: the push failed.
    """
    if args.repo or not args.model:
        found = f"--repo {args.repo}" if args.repo else "no --model"
        raise UsageError(
            f"{found}: push-results writes into the card of --model OWNER/MODEL; results as a data set of their own are "
            f"pushed by: openrlhf-ebpo hub push-run {args.results_dir} --repo OWNER/NAME"
        )
    rows = of_step(evaluations.rows_of(find_results(args.results_dir)), args.step)
    check_weights_known(rows, args.model)
    args.model = target(args.model, "--model")
    what = f"{len(evaluations.headline(rows))} results of step {rows[0]['step']}"
    if args.dry_run:
        print(f"dry run: {what} would be written into the card of {args.model}")
        return
    api = hub_api()
    retrying(lambda: check_model(api, args.model))
    retrying(lambda: check_step(api, args.model, rows[0]["step"], args.step is not None))
    data = published.known(args.results_dir).get("run")
    new = evaluations.eval_results(rows, f"{api.endpoint}/datasets/{data}" if data else None)

    def write():
        with hub_errors(f"looking at {args.model}"):
            commit = commit_of(api, args.model, "model", "main")
        files = {"README.md": with_results(_card(api, args.model, commit), new, args.model).encode()}
        how = {"message": f"evaluation {what}", "manifest": None, "based_on": commit}  # not upon a newer step's card
        return publish(api, args.model, files, **how)

    done = retrying(write)
    print(f"card of {args.model}: {what} {'written' if done.sent else 'were there already'}")


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


def check_weights_known(rows: Sequence[dict], model: str) -> None:
    """A card is about weights, and a server does not say which it has.

    Raises:
        UsageError: the results are of a model behind a server.
    """
    if served := next((row["model"] for row in rows if row["model"].startswith(SERVER)), None):
        raise UsageError(
            f"--model {model}: the results are of {served}, a model behind a server, which does not say what weights it has; "
            "they are no statement about a model on the Hub. Publish them with push-run, or evaluate the model itself"
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


def _card(api, model: str, commit: str) -> str:
    """The text of a model's README.md, "" if it has none."""
    with hub_errors(f"reading the card of {model}"), tempfile.TemporaryDirectory() as folder:
        if not api.file_exists(model, "README.md", revision=commit):
            return ""
        return Path(api.hf_hub_download(model, "README.md", revision=commit, local_dir=folder)).read_text()


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
