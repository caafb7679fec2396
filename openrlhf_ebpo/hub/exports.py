"""The exported models of a run, and which of them the Hub has: what is to be pushed is the difference.

Nothing is recorded about a push: `checkpoints.jsonl` lists what was exported, and the repo has a tag with the same file
hashes for each export that was pushed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from openrlhf_ebpo.hub.content import local_file, matches
from openrlhf_ebpo.hub.model_files import model_content
from openrlhf_ebpo.hub.public import public_run
from openrlhf_ebpo.hub.publish import CARD, Repo, check_owner, compare, same_run
from openrlhf_ebpo.hub_client import hub_errors
from openrlhf_ebpo.run.checkpoint_list import final_model, saved_steps
from openrlhf_ebpo.run.resume import BEST
from openrlhf_ebpo.run.run_log import read_run


class Export(NamedTuple):
    """An exported model: the folder of the step's weights."""

    step: int
    model: Path

    def state(self) -> tuple:
        """Names, sizes and times of its files: other ones after it was exported again."""
        files = sorted(path for path in self.model.glob("*") if path.is_file())
        return tuple((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files)


def step_tag(step: int) -> str:
    """Name of a step's tag on the Hub."""
    return f"step-{step:06d}"


def list_exports(run_dir: Path) -> list[Export]:
    """List every exported model of a run, in the order of the steps: those in checkpoints.jsonl, whatever the flags of
    the start that saved them, and the final one. The best checkpoint's is left out: it makes room for a better one.

    Raises:
        RunDirectoryError: checkpoints.jsonl or run.json is damaged.
    """
    found = {each.step: each.model for each in saved_steps(run_dir) if each.model and not each.tag.startswith(BEST)}
    if final := final_model(run_dir):
        found.setdefault(*final)
    return [Export(step, found[step]) for step in sorted(found)]


def tags(repo: Repo, run_dir: Path) -> dict[str, str]:
    """Tag -> commit of a repo of this run; {} if it does not exist.

    Raises:
        HubError: the Hub cannot be asked, or the repo holds something else.
    """
    commit, _ = check_owner(repo, same_run(public_run(read_run(run_dir) or {})))
    with hub_errors(f"listing the tags of {repo.name}"):
        refs = repo.api.list_repo_refs(repo.name).tags if commit else []
        return {ref.name: ref.target_commit for ref in refs}


def is_pushed(repo: Repo, export: Export, known: Mapping[str, str], force: bool = False) -> bool:
    """True if the repo has the step's tag, on a commit with every file of the model as it is here, or as people have
    changed it there (unless `force`). Of a model that was deleted here the tag is enough.

    Args:
        known: tag -> commit.

    Raises:
        HubError: the Hub cannot be asked. UsageError: the model here cannot be read.
    """
    commit = known.get(step_tag(export.step))
    if not commit or not export.model.is_dir():
        return bool(commit)
    files = model_content(export.model)
    files.pop(CARD, None)  # its place is the generated card's

    with hub_errors(f"listing {repo.name}"):
        there = {path: entry for path, entry in repo.files(commit).items() if path in files}
        changed, _, _ = compare(repo, commit, there, files, force)
    # --not_secret FILE was sent as it is, and not as the filter makes it
    return all(path in there and matches(local_file(export.model / path), there[path]) for path in changed)
