"""Download a model, or a prior, from the Hub into a folder, checked file by file.

Only files that cannot run code are downloaded: safetensors, JSON, text, the tokenizer's own. Every file is compared
with the Hub's listing, which does not tell who pushed it, so the model must also be complete: every shard of its index,
every file as long as its header says. A JSON file that names code (auto_map) is reported; the code runs only with
--trust_remote_code. An interrupted pull resumes where it stopped.

  openrlhf-ebpo hub pull owner/name model
  openrlhf-ebpo hub pull owner/name model --revision step-000010
  openrlhf-ebpo eval --model model --tasks math500 --output_dir results                                  evaluate it
  openrlhf-ebpo train --actor.model_name_or_path model --algo.advantage.ebpo.init_prior model/prior.json ...   train on
"""

from __future__ import annotations

import argparse
import glob
import json
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.extension import TRUST
from openrlhf_ebpo.hub.content import PICKLES, escape_names
from openrlhf_ebpo.hub.hub_settings import parse_repo
from openrlhf_ebpo.hub.model_files import BASES, incomplete
from openrlhf_ebpo.hub.public import step_tag
from openrlhf_ebpo.hub.publish import Repo
from openrlhf_ebpo.hub_client import HubError, hub_api, hub_errors, retrying, run_with_timeout
from openrlhf_ebpo.model_folder import custom_code
from openrlhf_ebpo.run.run_log import RunDirectoryError, get_nested, read_run

# What cannot run code where it is loaded: weights, configuration, tokenizer, prior, pictures, licences.
SAFE = (".safetensors", ".json", ".jsonl", ".txt", ".md", ".model", ".tiktoken", ".jinja", ".parquet", ".png", ".svg")
LICENCES = ("LICENSE", "NOTICE")
WEIGHTS = (".safetensors", ".gguf", *PICKLES)
MAX_AT_ONCE = 8  # files
PART = ".hub_pull"  # in the folder, until every file is downloaded and checked; a killed pull continues in it
LAST = ("config.json", "adapter_config.json")  # without them no loader takes a folder that is being filled


class Pulled(NamedTuple):
    """commit: that the files are of. skipped: paths in the repo that were not pulled, for their types are not safe."""

    commit: str
    files: list[str]
    skipped: list[str]


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("repo", metavar="OWNER/NAME[@REVISION]", help="model repo on the Hub, or its address")
    parser.add_argument("folder", type=Path, metavar="DIR", help="where to; a new or an empty folder")
    parser.add_argument(
        "--revision", help="a step (10, or its tag step-000010), a branch or a commit; the newest if not given"
    )


def run(args: argparse.Namespace) -> None:
    api = hub_api()
    name, named = parse_repo(args.repo, "OWNER/NAME")
    if named and args.revision:
        raise UsageError(f"--revision {args.revision}: OWNER/NAME names the revision {named} already: give one of them")
    revision = args.revision or named
    if revision and revision.isdecimal() and len(revision) < 40:
        revision = step_tag(int(revision))
    pulled = pull(Repo(api, name), args.folder, revision)
    print(f"{name} ({pulled.commit[:12]}) is in {args.folder}: {len(pulled.files)} files, all as the Hub lists them")
    if pulled.skipped:
        print(f"left out, not of a safe type: {escape_names(pulled.skipped, most=100)}")
    print(*next_step(args.folder), sep="\n")


def next_step(folder: Path) -> list[str]:
    """List the next steps with a pulled model; a warning if it comes with custom code.

    Raises:
        UsageError: a configuration next to a prior alone is damaged.
    """
    if brought := custom_code(folder):
        return [
            f"warning: the model comes with custom code: {'; '.join(map(str, brought))}",
            "That code was not pulled, read or run. If the model does not load without it, train and eval refuse the "
            f"model unless {TRUST} is given: read the code first.",
        ]
    if (folder / "adapter_config.json").exists():
        base = json.loads((folder / "adapter_config.json").read_bytes()).get(BASES[1])
        return [f"this is a LoRA adapter of {escape_names([str(base)])}: merge the two, or load them with peft"]
    if not (folder / "config.json").exists():
        return []
    run = {}
    with suppress(RunDirectoryError):
        run = read_run(folder) or {}
    own = get_nested(run, "args", "reward", "remote_url") not in (None, "math")
    tasks = "--tasks file:QUESTIONS.jsonl --reward REWARD.py" if own else "--tasks math500"
    asked, chat = "", get_nested(run, "args", "data", "apply_chat_template")
    if not get_nested(run, "instruction", "template"):  # which eval reads in run.json
        asked = " --template TEMPLATE" + ("" if chat is None else " --chat_template" if chat else " --no-chat_template")
    return [f"next: openrlhf-ebpo eval --model {folder} {tasks} --output_dir results{asked}"]


def pull(repo: Repo, folder: Path, revision: str | None = None, report=print) -> Pulled:
    """Bring a revision's safe files into a folder and check each; failures that may pass are retried.

    Raises:
        UsageError: the folder holds something.
        HubError: no such repo or revision, the Hub stays away, a file is not as it is listed, or the model is
            incomplete.
    """
    part = folder / PART
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; name a folder")
    if folder.is_dir() and not part.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise UsageError(f"{folder} is not empty: name a new folder")
    commit, remote = retrying(lambda: find_files(repo, revision), report=report)
    wanted = [path for path in sorted(remote) if is_safe(path)]
    skipped = sorted({*remote} - {*wanted, ".gitattributes"})
    check_listing(repo.name, remote, wanted)
    part.mkdir(parents=True, exist_ok=True)
    download(repo, commit, {path: remote[path] for path in wanted}, part, report)
    shutil.rmtree(part / ".cache")
    is_model = any(path == "config.json" or path.endswith(".safetensors") for path in wanted)  # not a prior alone
    if is_model and (found := incomplete(part, code=False)):  # `next_step` reports code; it was not pulled
        raise HubError(
            f"{repo.name} does not hold a model that is complete and safe to load: {'; '.join(found)}. It was pushed "
            "like that: take another revision, or ask who has pushed it",
            permanent=True,
        )
    for path in sorted(part.iterdir(), key=lambda path: path.name in LAST):
        path.replace(folder / path.name)
    part.rmdir()
    return Pulled(commit, wanted, skipped)


def find_files(repo: Repo, revision: str | None) -> tuple[str, dict]:
    """(commit, path -> RepoFile) of a revision."""
    with hub_errors(f"looking at {repo.name}"):
        if commit := repo.commit_of(revision or "main"):
            return commit, repo.files(commit)
        if not revision or not repo.commit_of():
            raise HubError(
                f"the repo {repo.name} has no model or does not exist, or the token may not see it", 404, permanent=True
            )
        refs = repo.api.list_repo_refs(repo.name)
    names = ", ".join(ref.name for ref in [*refs.branches, *refs.tags])
    raise HubError(f"{repo.name} has no revision {revision}; it has {names}", 404, permanent=True)


def is_safe(path: str) -> bool:
    """True if an untrusted path is of a type that cannot run code, and names a file inside its folder, not a hidden one
    at its top, as every system and the client take it."""
    parts = path.split("/")
    inside = "" not in parts and ".." not in parts and not re.search(r"^\.|[\\:]", path) and path.isprintable()
    return inside and (Path(path).suffix in SAFE or path in LICENCES)


def check_listing(repo: str, remote: Collection[str], wanted: Collection[str]) -> None:
    """Check before the download that there is something safe to pull, and of a model safetensors at the top of the
    repo; a prior may be alone.

    Raises:
        HubError: the weights are in a subfolder, of another type, or missing.
    """
    weights = [path for path in remote if path.endswith(WEIGHTS)]
    if any(path.endswith(".safetensors") and "/" not in path for path in weights):
        return
    if not wanted or weights or "config.json" in remote:
        raise HubError(
            f"{repo} has {escape_names(weights, most=3) or 'no weights'}, and only .safetensors at the top of a repo "
            "are pulled (a pickle can run code): take another revision, or convert them; a model in a subfolder is "
            "downloaded with `hf download REPO --include 'FOLDER/*'`. Nothing was downloaded",
            permanent=True,
        )


def download(repo: Repo, commit: str, listed: Mapping, folder: Path, report: Callable[[str], None]) -> None:
    """Download files, several at a time; one whose hash differs from the listing is downloaded again.

    Args:
        listed: path -> RepoFile.

    Raises:
        HubError: one cannot be downloaded, or is damaged every time; a damaged file does not stay. The others stay,
            complete.
    """
    total, doing = sum(entry.size for entry in listed.values()), f"pulling {repo.name}"
    options = {"allow_patterns": [glob.escape(path) for path in listed], "max_workers": MAX_AT_ONCE}

    def attempt() -> None:
        with hub_errors(doing):
            repo.api.snapshot_download(repo.name, local_dir=folder, revision=commit, **options)
            found = repo.api.verify_repo_checksums(repo.name, revision=commit, local_dir=folder)
        wrong = [each["path"] for each in found.mismatches]
        for path in wrong:
            (folder / path).unlink()
        if wrong := sorted({*wrong, *found.missing_paths} & set(listed)):
            raise HubError(
                f"{', '.join(wrong[:5])} of {repo.name} arrived damaged, with another hash than it is listed"
            )
        for path in found.extra_paths:  # of the client, or of a killed pull of another revision
            (folder / path).unlink()

    retrying(lambda: run_with_timeout(attempt, doing, total), report=report)


main = command("openrlhf-ebpo hub pull", __doc__, add_flags, run, extra="hub")
