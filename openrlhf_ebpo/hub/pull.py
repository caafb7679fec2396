"""openrlhf-ebpo hub pull: a model or prior from the Hub into a folder, checked file by file.

Only files that cannot run code are downloaded: safetensors, JSON, text, the tokenizer's own. Every file is compared
with the Hub's listing and with sha256.json, which was pushed with it; neither tells who pushed it, so the model must
also be complete: every shard of its index, every file as long as its header says. A JSON file that names code
(auto_map) is reported; the code runs only with --trust_remote_code. An interrupted pull resumes where it stopped.

  openrlhf-ebpo hub pull owner/name model
  openrlhf-ebpo hub pull owner/name model --revision step-000010
  openrlhf-ebpo eval --model model --template dapo --chat_template --tasks math500 --output_dir results      measure it
  openrlhf-ebpo train --actor.model_name_or_path model --algo.advantage.ebpo.init_prior model/prior.json ...   train on
"""

from __future__ import annotations

import argparse
import glob
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.extension import TRUST
from openrlhf_ebpo.files import TEMPORARY, write_json
from openrlhf_ebpo.hub.content import PICKLES, escape_names, local_file, sha256
from openrlhf_ebpo.hub.exports import step_tag
from openrlhf_ebpo.hub.publish import HASHES_FILE, NOT_HASHED, Repo, parse_manifest
from openrlhf_ebpo.hub.settings import place
from openrlhf_ebpo.hub_client import HubError, hub_api, hub_errors, in_time, retrying
from openrlhf_ebpo.models.auto_map import ModelFileError, custom_code
from openrlhf_ebpo.models.model_folder import INDEX, missing_files, missing_weights, problems

# What cannot run code where it is loaded: weights, configuration, tokenizer, prior, pictures, licences.
SAFE = (".safetensors", ".json", ".jsonl", ".txt", ".md", ".model", ".tiktoken", ".jinja", ".parquet", ".png", ".svg")
LICENCES = ("LICENSE", "NOTICE")
WEIGHTS = (".safetensors", ".gguf", *PICKLES)
MAX_AT_ONCE = 8  # files
RECORD = ".hub_pull.json"  # in the folder: where its content is from
LAST = ("config.json", "adapter_config.json")  # without them no loader takes what a killed pull leaves


@dataclass(frozen=True)
class Pulled:
    """commit: that the files are of. skipped: paths in the repo that were not pulled, for their types are not safe.
    manifest: True if the files were compared with one."""

    folder: Path
    commit: str
    files: tuple[str, ...]
    skipped: tuple[str, ...]
    manifest: bool


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("repo", metavar="OWNER/NAME[@REVISION]", help="model repo on the Hub, or its address")
    parser.add_argument("folder", type=Path, metavar="DIR", help="where to; new, empty, or of an earlier pull")
    parser.add_argument(
        "--revision", help="a step (10, or its tag step-000010), a branch or a commit; the newest if not given"
    )


def run(args: argparse.Namespace) -> None:
    api = hub_api()
    name, named = place(args.repo, "OWNER/NAME")
    if named and args.revision:
        raise UsageError(f"--revision {args.revision}: OWNER/NAME names the revision {named} already: give one of them")
    pulled = pull(Repo(api, name), args.folder, revision_of(args.revision or named or ""))
    unlisted = f"as the Hub lists them ({HASHES_FILE} is missing: not pushed by hub push)"
    checked = "all as they were pushed" if pulled.manifest else unlisted
    print(f"{name} ({pulled.commit[:12]}) is in {pulled.folder}: {len(pulled.files)} files, {checked}")
    if pulled.skipped:
        print(f"left out, not of a safe type or not pushed with the others: {escape_names(pulled.skipped, most=100)}")
    print(*next_step(pulled.folder), sep="\n")


def next_step(folder: Path) -> list[str]:
    """Lines that say what to do with a pulled model; a warning if it comes with custom code."""
    try:
        brought = custom_code(folder)
    except ModelFileError as error:
        return [f"warning: {error}"]
    if brought:
        return [
            f"warning: the model comes with custom code: {'; '.join(map(str, brought))}",
            "That code was not pulled, read or run. If the model does not load without it, train and eval refuse the "
            f"model unless {TRUST} is given: read the code first.",
        ]
    command = (
        f"openrlhf-ebpo eval --model {folder} --template dapo --chat_template --tasks math500 --output_dir results"
    )
    has_model = (folder / "config.json").exists()
    return [f"next: {command}", "(--template and --chat_template as in its training)"] if has_model else []


def pull(repo: Repo, folder: str | Path, revision: str | None = None, report=print) -> Pulled:
    """Bring a revision's safe files into a folder and check each; failures that may pass are retried.

    Raises:
        UsageError: the folder holds something else.
        HubError: no such repo or revision, the Hub stays away, a file is not what was pushed, or the model is
            incomplete.
    """
    folder, looking = Path(folder), f"looking at {repo.name}"
    check_folder(folder, repo.name)
    commit, remote = retrying(lambda: in_time(lambda: find_files(repo, revision), looking), report=report)
    wanted, skipped = choose_files(remote)
    if not wanted:
        names = escape_names(skipped) or "no files"
        raise HubError(f"{repo.name} holds nothing that can be pulled safely ({names})", permanent=True)
    check_listing(repo.name, remote)
    folder.mkdir(parents=True, exist_ok=True)
    record = {"repo": repo.name, "revision": revision, "commit": commit, "complete": False}
    remove_other_files(folder, commit, wanted)
    write_json(folder / RECORD, {**record, "files": wanted})

    def fetch(paths: Iterable[str]) -> None:
        download(repo, commit, {path: remote[path] for path in paths}, folder, report)

    pushed = None  # path -> sha256, as it was pushed
    if HASHES_FILE in wanted:
        fetch([HASHES_FILE])
        try:
            pushed = parse_manifest((folder / HASHES_FILE).read_bytes())
        except ValueError as error:
            raise HubError(f"{HASHES_FILE} of {repo.name} {error}", permanent=True) from error
        skipped += [path for path in wanted if path not in pushed and path not in NOT_HASHED]
        wanted = [path for path in wanted if path not in skipped]
        check_manifest(repo.name, folder, {path: remote[path] for path in wanted}, pushed)
    fetch(path for path in wanted if path not in LAST)
    fetch(path for path in wanted if path in LAST)
    if pushed is not None:
        check_manifest(repo.name, folder, {path: remote[path] for path in wanted}, pushed)
    check_model(repo.name, folder, wanted)
    write_json(folder / RECORD, {**record, "files": wanted, "complete": True})
    return Pulled(folder, commit, tuple(wanted), tuple(skipped), pushed is not None)


def revision_of(text: str) -> str | None:
    """A revision as people write it: a number is a step, nothing the newest."""
    return (step_tag(int(text)) if text.isdecimal() and len(text) < 40 else text) or None


def check_folder(folder: Path, repo: str) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; name a folder")
    found = read_record(folder)
    if not found and folder.is_dir() and any(path.suffix != TEMPORARY for path in folder.iterdir()):
        raise UsageError(f"{folder} is not empty and no earlier pull: name a new folder")
    if found and found["repo"] != repo:
        raise UsageError(f"{folder} holds {found['repo']}: name a new folder for {repo}")


def read_record(folder: Path) -> dict | None:
    """The record of what the folder was pulled from; None for another folder."""
    try:
        record = json.loads((folder / RECORD).read_text())
    except (OSError, ValueError, RecursionError):
        return None
    files = record.get("files") if isinstance(record, dict) and "repo" in record else None
    valid = isinstance(files, list) and all(isinstance(path, str) and stays_inside(path) for path in files)
    return record if valid else None


def remove_other_files(folder: Path, commit: str, wanted: Iterable[str]) -> None:
    """Remove the files of an earlier pull of another commit before anything is downloaded: files of two models must not
    mix, whenever a pull is killed. The folder is incomplete from the first removal on."""
    before = read_record(folder)
    if not before:
        return
    same = before.get("commit") == commit
    if stale := set(before["files"]) - set(wanted if same else []):
        write_json(folder / RECORD, {**before, "commit": commit if same else None, "complete": False})
    for path in stale:
        (folder / path).unlink(missing_ok=True)


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


def choose_files(remote: Iterable[str]) -> tuple[list[str], list[str]]:
    """Paths to pull, and those left out. A path that would leave the folder is never pulled."""
    wanted, skipped = [], []
    for path in sorted(remote):
        if stays_inside(path) and (Path(path).suffix in SAFE or path in LICENCES):
            wanted.append(path)
        elif path != ".gitattributes":
            skipped.append(path)
    return wanted, skipped


def check_listing(repo: str, remote: Iterable[str]) -> None:
    """Check before the download that a model's weights can be pulled: safetensors at the top of the repo.

    Raises:
        HubError: they are in a subfolder, of another type, or missing.
    """
    weights = [path for path in remote if path.endswith(WEIGHTS)]
    if any(path.endswith(".safetensors") and "/" not in path for path in weights):
        return
    if HASHES_FILE in remote or not (weights or "config.json" in remote):
        return  # weights were there when it was pushed, and `check_manifest` names what is gone; or a prior alone
    raise HubError(
        f"{repo} has {escape_names(weights, most=3) or 'no weights'}, and only .safetensors at the top of a repo are "
        "pulled (a pickle can run code): take another revision, or convert them; a model in a subfolder is downloaded "
        "with `hf download REPO --include 'FOLDER/*'`. Nothing was downloaded",
        permanent=True,
    )


def stays_inside(path: str) -> bool:
    """True if an untrusted path names a file inside its folder, not a hidden one at its top."""
    return ".." not in path.split("/") and not path.startswith(("/", ".")) and "\\" not in path and path.isprintable()


def download(repo: Repo, commit: str, listed: Mapping, folder: Path, report: Callable[[str], None]) -> None:
    """Download files, several at a time; one whose hash differs from the listing is downloaded once more.

    Args:
        listed: path -> RepoFile.

    Raises:
        HubError: one cannot be downloaded, or was damaged twice; a damaged file does not stay. The others stay,
            complete.
    """
    if not listed:
        return
    total, doing = sum(entry.size for entry in listed.values()), f"pulling {repo.name}"
    options = {"allow_patterns": [glob.escape(path) for path in listed], "max_workers": MAX_AT_ONCE}
    options |= {"local_dir": folder, "revision": commit, "tqdm_class": bar_up_to(max(total, len(listed)))}

    def attempt() -> list[str]:
        with hub_errors(doing):
            repo.api.snapshot_download(repo.name, **options)
            found = repo.api.verify_repo_checksums(repo.name, revision=commit, local_dir=folder)
        wrong = {each["path"] for each in found.mismatches} & set(listed)
        for path in wrong:
            (folder / path).unlink()
        return sorted(wrong | set(found.missing_paths) & set(listed))

    for _ in range(2):
        if not (wrong := retrying(lambda: in_time(attempt, doing, total), report=report)):
            return
    raise HubError(
        f"{', '.join(wrong[:5])} of {repo.name} arrived damaged twice, with another hash than the Hub lists, and was "
        "removed",
        permanent=True,
    )


def bar_up_to(limit: int) -> type:
    """A progress bar that fails above `limit` bytes: a server may send more than it has listed, without end."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):
        received = 0.0  # a bar that is not shown does not count

        def update(self, count: float | None = 1):
            self.received += count or 0
            if self.received > limit:
                raise HubError(f"the Hub sends more than the {limit} bytes that it has listed", permanent=True)
            return super().update(count)

    return Bar


def check_manifest(repo: str, folder: Path, listed: Mapping, rows: Mapping[str, str]) -> None:
    """Compare files with sha256.json, which was pushed with them: large ones by the Hub's listing, with which they were
    compared when they were downloaded; small ones by their content, as far as they are here.

    Raises:
        HubError: other content, or a file is missing: the repo was changed after the push. The files are removed.
    """
    pushed = {path: entry for path, entry in listed.items() if path not in NOT_HASHED}
    if not pushed:
        raise HubError(f"{HASHES_FILE} of {repo} lists none of its files: it was not made by a push", permanent=True)
    small = [path for path, entry in pushed.items() if not entry.lfs and (folder / path).is_file()]
    known = {path: entry.lfs.sha256 for path, entry in pushed.items() if entry.lfs}
    known |= {path: sha256(local_file(folder / path)) for path in small}
    wrong = [path for path, digest in known.items() if rows[path] != digest]
    missing = [path for path in choose_files(rows)[0] if path not in (*listed, *NOT_HASHED)]
    for path in wrong:
        (folder / path).unlink(missing_ok=True)
    if wrong or missing:
        raise HubError(
            f"{repo} is not what was pushed: {', '.join([*wrong, *missing][:5])} differ from {HASHES_FILE} or are "
            f"missing. Somebody has changed the repo since; a tag holds what was pushed: --revision {step_tag(10)}. "
            "What differs was removed here.",
            permanent=True,
        )


def check_model(repo: str, folder: Path, pulled: Iterable[str]) -> None:
    """Check that a pulled model is complete and inert: files that are as they were pushed may not be. Code that it
    names was not pulled; `next_step` reports it.

    Raises:
        HubError: it is not. The files stay for inspection; the next pull compares them with the Hub again.
    """
    if not any(path == "config.json" or path.endswith((".safetensors", INDEX)) for path in pulled):
        return  # a prior, say
    if found := [*problems(folder, code=False), *missing_files(folder)] or list(missing_weights(folder)):
        raise HubError(
            f"{repo} does not hold a model that is complete and safe to load: {'; '.join(found)}. It was pushed like "
            "that: take another revision, or ask who has pushed it",
            permanent=True,
        )


main = command("openrlhf-ebpo hub pull", __doc__, add_flags, run, extra="hub")
