"""What the supervisor says of an end that nobody else can tell of."""

import shutil
from types import SimpleNamespace

from openrlhf_ebpo.supervisor.words import death, full_disk, how_to_continue, times_killed_for_memory


def test_a_death_names_its_signal_and_memory_where_it_may_be_that():
    assert death(-9, 0).endswith(
        "killed by SIGKILL: by somebody, or because the machine or its container ran out of memory"
    )
    assert death(-9, 2).endswith(
        "killed by SIGKILL: the machine ran out of memory, and the kernel ended 2 of its processes"
    )
    assert death(-11, 2) == "the driver was killed by SIGSEGV"
    assert death(-99, 0) == "the driver was killed by signal 99"
    assert "status 1 and gave no reason" in death(1, 0)
    assert times_killed_for_memory() >= 0


def test_a_full_disk_is_said_and_one_that_does_not_answer_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5 << 20))
    assert full_disk(tmp_path) == f"warning: the disk of {tmp_path} is full: 5 MiB are free"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5 << 30))
    assert full_disk(tmp_path) is None
    monkeypatch.undo()
    assert full_disk(tmp_path / "nowhere") is None


def test_how_to_continue_names_the_newest_whole_checkpoint(tmp_path):
    none = (False, f"no checkpoint was complete in {tmp_path} (--ckpt.save_steps is 5)")
    assert how_to_continue(str(tmp_path), "ebpo", 5) == none
