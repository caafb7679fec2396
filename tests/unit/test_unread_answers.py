"""Steps in which the reward reads no answer in many complete responses are warned of, and one of them is shown."""

from types import SimpleNamespace

import pytest
import torch

from openrlhf_ebpo.upstream.controller.step_notices import UNREAD, is_unread, unread_share, unread_warning


def sample(no_answer=None, truncated=False, name="math_no_answer"):
    info = {} if no_answer is None else {name: torch.tensor([no_answer])}
    return SimpleNamespace(info=info, truncated=torch.tensor([truncated]))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (sample(1.0), True),
        (sample(0.0), False),
        (sample(1.0, name="judge_no_answer"), True),
        (sample(1.0, truncated=True), None),
        (sample(), None),
    ],
)
def test_only_complete_responses_count(given, expected):
    assert is_unread(given) is expected


def test_the_share_is_that_of_the_complete_responses():
    assert unread_share([True, None, False, None, False, False]) == {UNREAD: 0.25}
    assert unread_share([None, None]) == {}


def test_the_warning_quotes_a_response():
    line = unread_warning(8, 0.25, "It is\n\x1b[31mseven.")
    assert line.startswith("warning: step 8: the reward reads no answer in 25% of the complete responses")
    assert "It is" in line and "seven." in line and "\n" not in line and "\x1b" not in line
