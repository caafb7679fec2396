"""A model on the Hub by its name: first its small files, from this machine's cache or else fetched; then, before anything
is loaded, the whole of it, as it lies in the cache."""

from __future__ import annotations

import functools
from pathlib import Path

from openrlhf_ebpo.models.auto_map import Reader, read_file
from openrlhf_ebpo.models.folder import MODEL_INDEX, PICKLES
from openrlhf_ebpo.models.hub_client import HubError, hub_api, hub_errors
from openrlhf_ebpo.models.weights import read_index

SMALL = (".json", ".txt", ".model", ".jinja", ".tiktoken")
REFUSED = (401, 403, 404)  # statuses of the Hub that stay until somebody does something


class NoModel(Exception):
    """The Hub has no such model, or not for this token; in words."""


def reader(name: str, ask_hub: bool = True) -> Reader:
    """Reads a file of the model `name`; what is neither here nor on the Hub reads as {}.

    ask_hub: fetch what this machine does not have.

    What it returns raises:
        NoModel: the Hub refuses. HubError: it cannot be asked now. ModelFileError: the file is damaged.
    """

    @functools.cache
    def read(file: str) -> dict:
        path = _cached(name, file) or (_fetched(name, file) if ask_hub else None)
        return read_file(path) if path else {}

    return read


def _cached(name: str, file: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, file)
    except HFValidationError as error:
        raise NoModel(f"no such folder, and no name on the Hub either ({error})") from None
    return Path(found) if isinstance(found, str) else None


def _fetched(name: str, file: str) -> Path | None:
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import RemoteEntryNotFoundError

    hub_api()  # no call of the client waits for ever from here on
    try:
        with hub_errors(f"looking at {file}"):
            try:
                get_hf_file_metadata(hf_hub_url(name, file))  # once; a download alone would try for 23 s without a Hub
                return Path(hf_hub_download(name, file))
            except RemoteEntryNotFoundError:
                return None
    except HubError as error:
        if error.status in REFUSED:
            raise NoModel(f"no such folder, and {error}") from error
        raise


def snapshot(name: str) -> Path | None:
    """The folder in the client's cache with all that loading the model reads, fetched where it is not there yet; None
    where this machine has nothing of it and the Hub cannot be reached.

    Raises:
        NoModel: the Hub refuses, or has no such model, or this machine's disk refuses it. WeightsError: its index is none.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        wanted = _wanted(name)
        with hub_errors(f"fetching {name}"):
            return Path(snapshot_download(name, allow_patterns=wanted))
    except HubError as error:
        if error.status in REFUSED or error.permanent:
            raise NoModel(f"no such folder, and {error}" if error.status else str(error)) from error
    try:
        return Path(snapshot_download(name, local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def _wanted(name: str) -> list[str]:
    """Names of files to fetch: weights as the index lists them, and no second form of the same weights.

    Raises:
        HubError: the Hub refuses, or cannot be asked.
    """
    from huggingface_hub import constants, hf_hub_download

    api = hub_api()
    with hub_errors(f"looking at {name}"):
        if constants.HF_HUB_OFFLINE:
            raise HubError(f"looking at {name}: HF_HUB_OFFLINE is set")
        names = [file.rfilename for file in api.model_info(name).siblings if "/" not in file.rfilename]
        index = Path(hf_hub_download(name, MODEL_INDEX)) if MODEL_INDEX in names else None
    weights = set(read_index(index).values()) if index else {each for each in names if each.endswith(".safetensors")}
    weights = weights or {each for each in names if each.endswith(PICKLES)}
    return [each for each in names if each.endswith(SMALL) or each in weights]
