"""--hub.resume_from: a new run starts from the weights and the prior of a pushed step."""

from __future__ import annotations

from pathlib import Path

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.hub.pull import pull, read_record, revision_of
from openrlhf_ebpo.hub.settings import place
from openrlhf_ebpo.hub_client import HubError, hub_api
from openrlhf_ebpo.run.resume import groups, newest_complete
from openrlhf_ebpo.run.run_log import PRIOR


def resolve_resume(values: dict) -> list[str]:
    """Pull --hub.resume_from and set the flags that name its files, in place; returns notices.

    Raises:
        UsageError: it cannot be pulled, or clashes with other flags.
    """
    wanted = values["hub.resume_from"]
    if not wanted:
        return []
    repo, named = place(wanted, "--hub.resume_from")
    revision = revision_of(named or "")
    if values["actor.model_name_or_path"]:
        raise UsageError(
            f"--hub.resume_from {wanted} and --actor.model_name_or_path {values['actor.model_name_or_path']} both name "
            "the weights to start from: give one of them"
        )
    ckpt = Path(values["ckpt.path"]).expanduser().absolute()
    folder = ckpt / "hub" / f"{repo}@{revision or 'main'}".replace("/", "--")
    own = newest_complete(groups(ckpt, values["algo.advantage.estimator"])).tag
    resumes = values["ckpt.load_enable"] and own is not None
    notices = _pull_once(repo, revision, folder, wanted, resumes)
    if (folder / "adapter_config.json").is_file():
        raise UsageError(
            f"--hub.resume_from {wanted} is a LoRA adapter: merge {folder} into its base model and name the "
            f"result with "
            "--actor.model_name_or_path"
        )
    values["actor.model_name_or_path"] = str(folder)
    prefix = "algo.advantage.ebpo."
    has_prior = (folder / PRIOR).is_file() and registry.computed_here(values["algo.advantage.estimator"])
    if has_prior and not values[prefix + "init_prior"] and not values[prefix + "reset_prior"]:
        values[prefix + "init_prior"] = str(folder / PRIOR)
        notices.append(f"weights and prior are those of {wanted}")
    else:
        notices.append(f"weights are those of {wanted}; the prior is not")
    return notices


def _pull_once(repo: str, revision: str | None, folder: Path, wanted: str, resumes: bool) -> list[str]:
    there = (read_record(folder) or {}).get("complete")
    if there and resumes:  # a branch may have moved on since; the reference policy must not
        return [f"{folder}, pulled when the run began, is used as it is"]
    try:
        pull(hub_api(), repo, folder, revision)
    except HubError as error:
        if there and not error.permanent:
            return [f"warning: the Hub cannot be reached ({error}); {folder} was pulled before and is used as it is"]
        raise UsageError(f"--hub.resume_from {wanted}: {error}") from error
    return []
