"""The small files of a model on the Hub, before anything else of it: from this machine's cache, or else fetched."""

from __future__ import annotations

import functools
from pathlib import Path

from openrlhf_ebpo.hub.client import HubError, hub_errors
from openrlhf_ebpo.models.auto_map import Reader, read_file

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
