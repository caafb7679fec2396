"""Flags that a command once had are answered with what to use."""

import pytest

from openrlhf_ebpo.cli.train_checks import RETIRED
from openrlhf_ebpo.command import refuse_retired
from openrlhf_ebpo.errors import UsageError


@pytest.mark.parametrize("typed", RETIRED)
@pytest.mark.parametrize("equals", [False, True])
def test_a_retired_flag_is_named_with_what_to_use(typed, equals):
    argv = ["--train.seed", "1", *([typed.replace(" ", "=")] if equals else typed.split()), "--force"]
    with pytest.raises(UsageError, match=f"^{typed} is retired: .*(openrlhf-ebpo|--train|--vllm)"):
        refuse_retired(argv, RETIRED)


def test_each_has_a_line_and_other_values_of_the_same_flag_pass():
    with pytest.raises(UsageError) as error:
        refuse_retired(["--data.coverage=3", "--data.order", "adaptive"], RETIRED)
    assert len(str(error.value).splitlines()) == 2
    refuse_retired(["--data.order", "as_is", "--algo.advantage.ebpo.history", "adaptive"], RETIRED)
