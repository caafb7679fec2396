"""A push without a Hub: what would stand in the repo, as files of this machine."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub.content import Content, Publishable
from openrlhf_ebpo.hub.local_files import LocalFile


def check_free(folder: Path) -> None:
    """Check that nothing is at `folder`, or an empty one.

    Raises:
        UsageError: something is, and stays.
    """
    if folder.is_symlink() or (folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))):
        raise UsageError(f"--folder {folder} is there already; remove it, or name another one")


def write(files: Publishable, folder: Path) -> None:
    """All of `files` or none."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as part:
        copy(files, Path(part, "files"))
        Path(part, "files").replace(folder)


def copy(files: Mapping[str, Content], folder: Path) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, LocalFile):
            with content.open() as source, open(path, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        else:
            path.write_bytes(content)
