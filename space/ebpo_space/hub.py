"""Runs from data set repos of the Hub: only names that a run has, only after their sizes are known, read-only."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from .errors import RunError

MAX_RUN_BYTES = 2 * 2**30
MAX_FILE_BYTES = 512 * 2**20
TOKEN = "EBPO_SPACE_HF_TOKEN"  # a read-only token
_PART = r"[A-Za-z0-9][\w.-]{0,95}"
_HUB_NAME = re.compile(rf"(?!.*(\.\.|--)){_PART}/{_PART}", re.ASCII)
_NAME = r"[\w@+=,.:-]{1,200}"
_FILES = re.compile(
    r"run\.json|metrics\.jsonl|prior\.json|checkpoints\.jsonl|README\.md|rollouts/step-\d{1,9}\.parquet"
    rf"|(eval/)?{_NAME}/{_NAME}/step-\d{{1,9}}/(summary\.json|samples\.parquet)",
    re.ASCII,
)


def is_repo(text: str) -> bool:
    """Test if it names a repo, and not a folder: of a folder the first part exists."""
    return bool(_HUB_NAME.fullmatch(text)) and not os.path.exists(text.partition("/")[0])


def select_files(
    files: Sequence[tuple[str, int | None]], total: int = MAX_RUN_BYTES, single: int = MAX_FILE_BYTES
) -> tuple[list[str], list[str]]:
    """List names to download, and what is left out and why; small files first, of the rollouts the latest steps.

    Args:
        files: (name, bytes) of everything in the repo; bytes None where the Hub does not say.
    """
    known = [(name, size) for name, size in files if _FILES.fullmatch(name) and ".." not in name.split("/")]
    unknown = [f"{name}: its size is not known" for name, size in known if size is None]
    large = [f"{name}: {size >> 20} MiB, the limit is {single >> 20}" for name, size in known if size and size > single]
    fitting = [(name, size) for name, size in known if size is not None and size <= single]
    others = sorted(f for f in fitting if not f[0].startswith("rollouts/"))
    rollouts = sorted((f for f in fitting if f[0].startswith("rollouts/")), reverse=True)
    names, used, beyond = [], 0, 0
    for name, size in [*others, *rollouts]:
        if used + size > total:
            beyond += 1
            continue
        names.append(name)
        used += size
    left_out = [f"{beyond} files beyond the limit of {total >> 20} MiB a run"] if beyond else []
    return names, [*unknown, *large, *left_out]


def fetch(repo: str, cache: Path | None = None, login: bool = False) -> tuple[Path, list[str]]:
    """Download a run; a later call downloads what is new.

    Args:
        login: without TOKEN ask as the user of this machine (HF_TOKEN, `hf auth login`), otherwise anonymously.

    Returns:
        its directory, and what was left out.

    Raises:
        RunError: it does not exist, cannot be reached, or holds no run.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError

    token = os.environ.get(TOKEN) or (None if login else False)
    try:
        info = HfApi(token=token).repo_info(repo, repo_type="dataset", files_metadata=True, timeout=20)
        names, left_out = select_files([(file.rfilename, file.size) for file in info.siblings or []])
        if not names:
            raise RunError(f"{repo} holds no run (no run.json, metrics.jsonl, rollouts or evaluation results).")
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        directory = (cache or caches / "openrlhf_ebpo_space") / repo
        snapshot_download(
            repo, repo_type="dataset", revision=info.sha, allow_patterns=names, local_dir=directory, token=token
        )
        for path in directory.rglob("*"):  # what the repo no longer has, as after a roll-back
            name = path.relative_to(directory).as_posix()
            if path.is_file() and _FILES.fullmatch(name) and name not in names:
                path.unlink()
    except RunError:
        raise
    except RepositoryNotFoundError:
        raise RunError(
            f"{repo} is neither a directory here nor a data set repo of the Hub that may be read (a private one: "
            f"{'HF_TOKEN or ' if login else ''}{TOKEN})."
        ) from None
    except Exception as error:  # the client's errors are untyped where the network or the Hub fails
        why = f"and as a data set repo of the Hub it cannot be fetched ({type(error).__name__}): try again later"
        raise RunError(f"{repo} is not a directory here, {why}, or write a directory as ./{repo}.") from error
    return directory, left_out
