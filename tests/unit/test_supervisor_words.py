"""How the supervisor describes an end that nobody else can explain."""

from openrlhf_ebpo.supervisor.ends import count_killed_for_memory, describe_death
from openrlhf_ebpo.supervisor.restarts import how_to_continue


def test_a_death_names_its_signal_and_memory_where_it_may_be_that():
    assert describe_death(-9, 0).endswith(
        "killed by SIGKILL: by somebody, or because the machine or its container ran out of memory"
    )
    assert describe_death(-9, 2).endswith(
        "killed by SIGKILL: the machine ran out of memory, and the kernel ended 2 of its processes"
    )
    assert describe_death(-11, 2) == "the driver was killed by SIGSEGV"
    assert describe_death(-99, 0) == "the driver was killed by signal 99"
    assert "status 1 and gave no reason" in describe_death(1, 0)
    assert count_killed_for_memory() >= 0


def test_how_to_continue_names_the_newest_whole_checkpoint(tmp_path):
    none = (False, f"no checkpoint was complete in {tmp_path} (--ckpt.save_steps is 5)")
    assert how_to_continue(str(tmp_path), "ebpo", 5) == none
