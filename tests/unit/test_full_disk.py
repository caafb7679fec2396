"""A run on a full disk says which disk, and what is written there stays readable."""

import contextlib
import subprocess

import pytest

from openrlhf_ebpo.run.run_log import RunDirectoryError
from openrlhf_ebpo.run.run_settings import RunSettings
from openrlhf_ebpo.run.run_start import open_run


@pytest.fixture
def disk(tmp_path):
    """A file system of a few megabytes, and a function that fills it."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "full", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small disk can only be made by root")

    def fill() -> None:
        with open(tmp_path / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))

    yield tmp_path, fill
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_a_start_on_a_full_disk_names_it_and_says_what_to_do(disk):
    folder, fill = disk
    fill()
    args = {"actor": {"model_name_or_path": "m"}, "data": {"prompt_dataset": "d"}, "train": {"seed": 7}}
    with pytest.raises(
        RunDirectoryError, match=r"the disk of .*/run is full .*run\.json.*: make room on it, or name"
    ) as full:
        open_run(RunSettings(folder / "run", folder / "ckpt"), argv=[], args=args)
    assert str(folder / "run") in str(full.value)
