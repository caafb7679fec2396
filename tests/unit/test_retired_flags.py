"""Flags that `train` once had are answered with what to use."""

import pytest

from openrlhf_ebpo.cli.retired_flags import RETIRED, refuse
from openrlhf_ebpo.errors import UsageError


@pytest.mark.parametrize("typed", RETIRED)
@pytest.mark.parametrize("equals", [False, True])
def test_a_retired_flag_is_named_with_what_to_use(typed, equals):
    argv = ["--train.seed", "1", *([typed.replace(" ", "=")] if equals else typed.split()), "--force"]
    with pytest.raises(UsageError, match=f"^{typed} is retired: .*(openrlhf-ebpo|--train)"):
        refuse(argv)


def test_each_has_a_line_and_other_values_of_the_same_flag_pass():
    with pytest.raises(UsageError) as error:
        refuse(["--data.coverage=3", "--data.order", "adaptive"])
    assert len(str(error.value).splitlines()) == 2
    refuse(["--data.order", "as_is", "--algo.advantage.ebpo.history", "adaptive"])
