"""Find and check a model by its name: a folder, or OWNER/NAME on the Hub, whose files huggingface_hub keeps in its
cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from openrlhf_ebpo import model_folder
from openrlhf_ebpo.errors import raise_problems
from openrlhf_ebpo.extension import models_trusted
from openrlhf_ebpo.hub_client import HubError, hub_api, hub_errors
from openrlhf_ebpo.model_folder import WEIGHT_PICKLES

CONFIGURATION = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")  # and the tokenizer
NOT_LOADED = ("*/*", "consolidated*")  # subfolders, and Mistral's second form of the same weights
REFUSED = (401, 403, 404)  # statuses of the Hub that no retry changes


def local_folder(name: str) -> Path | None:
    """The folder on this machine with the model's config.json."""
    if (Path(name) / "config.json").is_file():
        return Path(name)
    if Path(name).exists() or name.count("/") > 1:
        return None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError:  # not a name on the Hub
        return None
    return Path(found).parent if isinstance(found, str) else None


def download_model(name: str) -> Path | None:
    """`download` with all files that loading the model reads; pickles of weights only with --trust_remote_code."""
    folder = download(name, (*CONFIGURATION, "*.safetensors"))
    if folder is None or not models_trusted() or any(folder.glob("*.safetensors")):
        return folder
    return download(name, (*CONFIGURATION, *(f"*{ending}" for ending in WEIGHT_PICKLES)))


def download(name: str, patterns: tuple[str, ...]) -> Path | None:
    """The folder in the cache with the files of a model that fit the patterns, downloaded if they are not there; None
    if this machine does not have them and the Hub cannot be reached.

    Raises:
        HubError: the Hub refuses, or has no such model, or this machine's disk is full.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    api, which = hub_api(), {"allow_patterns": patterns, "ignore_patterns": NOT_LOADED}
    try:
        if not constants.HF_HUB_OFFLINE:
            with hub_errors(f"downloading {name}"):
                return Path(api.snapshot_download(name, **which))
    except HubError as error:
        if isinstance(error.__cause__, HFValidationError):
            raise HubError(f"no such folder, and not a name on the Hub either ({error.__cause__})") from None
        if error.status in REFUSED or error.permanent:
            raise HubError(f"no such folder, and {error}" if error.status else str(error)) from error
    try:
        return Path(api.snapshot_download(name, local_files_only=True, **which))
    except LocalEntryNotFoundError:
        return None


def model_problems(flag: str, name: str, ask_hub: bool = True) -> list[str]:
    """Check a model: in a folder, that it is complete and inert; on the Hub, only that it needs no own code, by its
    configuration, which is downloaded with the tokenizer. `check_fetched` checks the rest before the model is loaded. A
    Hub that cannot be reached is not a problem."""
    path = Path(name)
    if path.is_dir() and not (path / "config.json").is_file():
        return [f"{flag} {name}: the folder has no config.json, so it is not a model"]
    if not path.exists() and (path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1):
        return [f"{flag} {name}: no such folder"]
    if not path.is_dir() and not ask_hub:
        return []
    if path.is_dir():
        found = model_folder.problems(path)
    else:
        found = _problems_on_hub(name, lambda name: download(name, CONFIGURATION), model_folder.code_problems)
    return [f"{flag} {name}: {problem}" for problem in found]


def _problems_on_hub(name: str, fetch: Callable[[str], Path | None], judge: Callable[[Path], list[str]]) -> list[str]:
    try:
        folder = fetch(name)
    except HubError as error:
        return [str(error)]
    return judge(folder) if folder else []


def check_fetched(flag: str, *names: str) -> None:
    """Download the models that are named by the Hub, as loading them would, and check that they are complete and inert;
    then the weights of all.

    Raises:
        UsageError: one is not; one problem a line.
    """
    on_hub = [name for name in names if not Path(name).exists()]  # folders were checked at the start
    found = {name: _problems_on_hub(name, download_model, model_folder.problems) for name in on_hub}
    raise_problems([f"{flag} {name}: {problem}" for name, problems in found.items() for problem in problems])
    check_weights(flag, *names)


def check_weights(flag: str, *names: str) -> None:
    """Compare the weights of models that are on this machine with their configurations: a policy begins with random
    numbers where one is missing, and an engine refuses it after minutes.

    Raises:
        UsageError: one lacks weights; one problem a line.
    """
    folders = {name: folder for name in names if (folder := local_folder(name))}
    found = {name: model_folder.missing_weights(folder) for name, folder in folders.items()}
    raise_problems([f"{flag} {name}: {problem}" for name, problems in found.items() for problem in problems])
