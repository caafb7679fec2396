"""Load a data set in the forms that OpenRLHF takes, by the calls that OpenRLHF makes.

FILE, FOLDER (of files, or saved by `Dataset.save_to_disk`), FOLDER@SUBFOLDER, TYPE@FOLDER; OWNER/NAME[@SUBFOLDER] on
the Hub.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from openrlhf_ebpo.errors import UsageError

DATA_SUFFIXES = (".json", ".jsonl", ".csv", ".parquet", ".arrow")
TYPES = ("json", "csv", "parquet", "arrow", "text")  # of TYPE@FOLDER, which reads every file of the folder
NOT_LOADED = (
    ". If the Hub cannot be reached from here, download the data set's files elsewhere and name them as FILE or "
    "FOLDER; HF_TOKEN opens data sets that ask for a login"
)


class DataSetError(ValueError):
    """A data set that cannot be read; the message continues its name."""


def parts(name: str) -> tuple[str, str]:
    """Return the place of a data set, and what follows its `@`, or "". A path with an @ in it is a place."""
    if Path(name).exists():
        return name, ""
    place, _, folder = name.partition("@")
    return place.strip(), folder.strip()


def is_local(name: str) -> bool:
    place, folder = parts(name)
    return Path(place).exists() or bool(folder and place in TYPES)


def looks_remote(name: str) -> bool:
    """Return True for a name that the Hub may know: one, or OWNER/NAME."""
    place = parts(name)[0]
    is_path = Path(place).suffix in DATA_SUFFIXES or place.startswith(("/", ".", "~"))
    return not is_path and place.count("/") < 2


def absolute(name: str) -> str:
    """Return the name with absolute paths; unchanged if it is not on this machine."""
    place, folder = parts(os.path.expanduser(name))
    if Path(place).exists():
        return str(Path(place).absolute()) + (f"@{folder}" if folder else "")
    if folder and place in TYPES:
        return f"{place}@{Path(folder).expanduser().absolute()}"
    return name


def local_files(name: str) -> list[Path]:
    """Return the files of a data set on this machine; none of one on the Hub."""
    place, folder = parts(name)
    root = Path(folder) if folder and place in TYPES else Path(place, folder)
    return [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())


def load(name: str, split: str = "train", flag: str = "--input", subset: str | None = None):
    """Return a split of a data set as `datasets.Dataset`.

    name: as of --data.prompt_dataset, given by `flag`. subset: of a data set on the Hub that has several.

    Raises:
        UsageError: it cannot be read, or has no such split.
    """
    try:
        return open_split(name, split, subset)
    except DataSetError as error:
        raise UsageError(f"{flag} {name}: {error}") from error


def open_split(name: str, split: str, subset: str | None = None):
    """Return a split of a data set. Raises DataSetError."""
    try:
        from datasets import DatasetDict, disable_progress_bars
    except ImportError:
        raise DataSetError("cannot be read without `datasets`: pip install 'openrlhf_ebpo[data]'") from None
    disable_progress_bars()
    place = Path(parts(name)[0])
    if not is_local(name) and not looks_remote(name):
        raise DataSetError("no such file")
    if place.is_file() and not place.stat().st_size:
        raise DataSetError("the file is empty")
    try:
        found = _load(name, subset)
    except Exception as error:  # of any library that reads the files, or of the Hub's client
        cause = error.__cause__ or error
        remedy = "" if is_local(name) else NOT_LOADED
        if "onfig" in str(cause) and "available" in str(cause):  # of `datasets`: one configuration has to be chosen
            remedy = ". --subset of openrlhf-ebpo data prepare names one"
        raise DataSetError(f"cannot be read ({type(cause).__name__}: {cause}){remedy}") from error
    if isinstance(found, DatasetDict) and split not in found:
        raise DataSetError(f"has {', '.join(found)}, and no split {split!r}")
    found = found[split] if isinstance(found, DatasetDict) else found
    if not len(found):
        raise DataSetError("it has no rows")
    return found


def _load(name: str, subset: str | None):
    """Call `datasets` as openrlhf.datasets.utils.blending_datasets does."""
    from datasets import load_dataset, load_from_disk

    place, folder = parts(name)
    kind = Path(place).suffix
    if kind in DATA_SUFFIXES:
        logging.getLogger("datasets.packaged_modules").setLevel(logging.CRITICAL)  # the error says it
        return load_dataset("json" if kind == ".jsonl" else kind[1:], data_files=place)
    if Path(place).is_dir():
        try:
            return load_from_disk(place)
        except FileNotFoundError:  # another folder
            pass
    return load_dataset(place, subset, data_dir=folder or None)
