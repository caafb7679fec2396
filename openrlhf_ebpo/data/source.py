"""Find a data set (local files, a folder, or the Hugging Face Hub) and its columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from openrlhf_ebpo.checks.data_files import TYPES, DataSetError, NoSplitError, is_local, parts, split_files
from openrlhf_ebpo.data.training_tables import (
    NEEDS_DATASETS,
    READ_SUFFIXES,
    check_file,
    column_names,
    data_files,
    read_rows,
)
from openrlhf_ebpo.errors import UsageError

# In this order: DAPO's own names first, then what other data sets call them.
PROMPT_COLUMNS = ("prompt", "question", "problem", "query", "instruction", "input")
ANSWER_COLUMNS = (
    "reward_model.ground_truth",
    "answer",
    "final_answer",
    "expected_answer",
    "ground_truth",
    "gold",
    "target",
    "label",
    "solution",
)
SOURCE_COLUMNS = ("datasource", "data_source", "source")


@dataclass(frozen=True)
class Columns:
    """Names of the columns, dots lead into structs. datasource: None if the rows name none."""

    prompt: str
    answer: str
    datasource: str | None

    def values(self, row: dict) -> tuple:
        """Return (prompt, answer, datasource) of a row; None for what is missing."""
        return tuple(lookup(row, name) if name else None for name in (self.prompt, self.answer, self.datasource))


def lookup(row: Mapping, name: str):
    """Return the value at a dotted name, or None. A column whose own name has dots comes first."""
    if name in row:
        return row[name]
    for part in name.split("."):
        row = row.get(part) if isinstance(row, Mapping) else None
    return row


def find_files(path: str, subset: str | None, split: str, revision: str | None) -> list[Path]:
    """Return the data files of --input: itself, or those of a folder or Hub data set, downloaded if need be.

    Raises:
        UsageError: no such file or data set, the Hub cannot be reached, or the files are of a kind that is not read.
    """
    if Path(path).suffix.lower() in READ_SUFFIXES:
        return data_files(path)
    if not is_local(path) and parts(path)[0].count("/") != 1:
        raise UsageError(
            f"--input {path}: neither a {'/'.join(READ_SUFFIXES)} file, a folder, nor OWNER/NAME on the Hub, nor "
            f"TYPE@FOLDER with {', '.join(TYPES)}"
        )
    files = [_local(file) for file in _listed_files(path, subset, split, revision)]
    for file in files:
        check_file(file)
    return files


def find_columns(files: Sequence[Path], prompt: str | None, answer: str | None, source: str | None) -> Columns:
    """Return the columns named by flags, or the first known name that the first file has, in upper or lower case.

    Raises:
        UsageError: the named or every known column is missing.
    """
    found = column_names(files[0])
    return Columns(
        _choose(found, prompt, PROMPT_COLUMNS, "--prompt_column", files[0]),
        _choose(found, answer, ANSWER_COLUMNS, "--answer_column", files[0]),
        _choose(found, source, SOURCE_COLUMNS, "--source_column", files[0], required=source is not None),
    )


def read_values(files: Sequence[Path], columns: Columns) -> Iterator[list[tuple]]:
    """Yield batches of (prompt, answer, datasource); only these columns are read."""
    names = [name for name in (columns.prompt, columns.answer, columns.datasource) if name]
    for file in files:
        for rows in read_rows(file, columns=names):
            yield [columns.values(row) for row in rows]


def _choose(found, named, known, flag, path, required=True) -> str | None:
    by_name = {name.lower(): name for name in reversed(found)}
    name = named or next((by_name[name] for name in known if name in by_name), None)
    if name in found or (name is None and not required):
        return name
    if not found:
        raise UsageError(f"--input {path}: the file is empty")
    missing = f"{flag} {named}: {path} has no such column" if named else f"{path} has none of {', '.join(known)}"
    raise UsageError(f"{missing}, only {', '.join(found)}: name one with {flag} (dots lead into structs)")


def _listed_files(path: str, subset: str | None, split: str, revision: str | None) -> list[str]:
    """List paths or hf:// addresses (commit included) of a split's files, as the data set's card does."""
    try:
        return split_files(path, split, subset, revision)
    except ImportError:
        raise UsageError(NEEDS_DATASETS) from None
    except NoSplitError as error:
        raise UsageError(f"--split {split}: {path} {error}") from error
    except DataSetError as error:
        raise UsageError(f"--input {path}: {error}") from error
    except ValueError as error:  # no such subset, or several to choose from
        message = str(error).split("\nExample")[0]
        raise UsageError(f"--input {path}: {message}\n--subset names one") from error
    except Exception as error:  # the Hub's client lets errors of several libraries through
        raise UsageError(_unreachable(path, error)) from error


def _local(file: str) -> Path:
    """Return the file on this machine. A download that was cut off resumes."""
    if not file.startswith("hf://"):
        return Path(file)
    from huggingface_hub import HfFileSystem, hf_hub_download

    try:
        place = HfFileSystem().resolve_path(file)
        return Path(
            hf_hub_download(place.repo_id, place.path_in_repo, repo_type=place.repo_type, revision=place.revision)
        )
    except Exception as error:  # as above
        raise UsageError(_unreachable(file, error)) from error


def _unreachable(what: str, error: Exception) -> str:
    message = f"--input {what}: {error or type(error).__name__}"
    if is_local(what):
        return f"{message}\nThe folder should hold {', '.join(READ_SUFFIXES)} files."
    return (
        f"{message} (and there is no folder of that name here)\nIf the Hub cannot be reached from here, "
        f"download the data set's .parquet or .jsonl file elsewhere, "
        "copy it here and name it: --input FILE (a folder of such files will do too).\nA download that was cut off "
        "resumes when the command is repeated. HF_TOKEN opens data sets that ask for a login."
    )
