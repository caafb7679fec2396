"""A disk that can be full for a while."""

import contextlib
import os
import subprocess
from pathlib import Path

MEGABYTES = 256


class Disk:
    """A small file system at `folder`, where this may be made (root); it can be full for a while.

    Attributes:
        mounted: whether it is there.
    """

    def __init__(self, folder: Path, wanted: bool):
        self.folder, self.filler = folder, folder / "filler"
        self.mounted = os.path.ismount(folder) or (wanted and self._mount())

    def _mount(self) -> bool:
        if any(self.folder.iterdir()):
            return False  # begun without
        command = ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "faults", str(self.folder)]
        return subprocess.run(command, capture_output=True).returncode == 0

    def fill(self) -> None:
        with open(self.filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))

    def free(self) -> None:
        self.filler.unlink(missing_ok=True)

    def remove(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], capture_output=True)
