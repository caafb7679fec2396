"""--hub.resume_from: a new run starts from the weights and the prior of a pushed step."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub.publish import Repo
from openrlhf_ebpo.hub.pull import pull, read_record, revision_of
from openrlhf_ebpo.hub.settings import place
from openrlhf_ebpo.hub_client import HubError, hub_api
from openrlhf_ebpo.run.run_log import PRIOR


class Start(NamedTuple):
    """model: folder for --actor.model_name_or_path. prior: file for --algo.advantage.ebpo.init_prior, None if the step
    has none. notices: for the user."""

    model: str
    prior: str | None
    notices: list[str]


def pull_start(resume_from: str, ckpt_path: Path, resumes: bool) -> Start:
    """Pull --hub.resume_from into `ckpt_path`/hub.

    Args:
        resumes: the training resumes from a checkpoint of its own, so it keeps the weights that it began with.

    Raises:
        UsageError: it cannot be pulled, or is an adapter.
    """
    repo, named = place(resume_from, "--hub.resume_from")
    revision = revision_of(named or "")
    folder = ckpt_path.expanduser().absolute() / "hub" / f"{repo}@{revision or 'main'}".replace("/", "--")
    there, notices = (read_record(folder) or {}).get("complete"), []
    if there and resumes:  # a branch may have moved on since; the reference policy must not
        notices = [f"{folder}, pulled when the run began, is used as it is"]
    else:
        try:
            pull(Repo(hub_api(), repo), folder, revision)
        except HubError as error:
            if not there or error.permanent:
                raise UsageError(f"--hub.resume_from {resume_from}: {error}") from error
            notices = [f"warning: the Hub cannot be reached ({error}); {folder} was pulled before and is used as it is"]
    if (folder / "adapter_config.json").is_file():
        raise UsageError(
            f"--hub.resume_from {resume_from} is a LoRA adapter: merge {folder} into its base model and name the "
            "result with --actor.model_name_or_path"
        )
    prior = folder / PRIOR
    return Start(str(folder), str(prior) if prior.is_file() else None, notices)
