"""Tests are honest: nightly ones name the daily test of the same fault, limits scale, each file says what it guards."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FILES = sorted(TESTS.glob("*/test_*.py"))
FIXED_DEADLINE = re.compile(r"\b(?:time|monotonic)\(\) \+ \d")
NIGHTLY = [
    (path, number)
    for path in FILES
    for number, line in enumerate(path.read_text().splitlines(), 1)
    if "mark.nightly" in line and path != Path(__file__)
]


def test_the_comment_at_each_marker_names_daily_tests():
    lacking = []
    for path, number in NIGHTLY:
        lines = path.read_text().splitlines()
        comment = " ".join(line.partition("#")[2] for line in lines[max(0, number - 2) : number + 2])
        if "daily: the docstring" in comment:
            comment = path.read_text().split('"""')[1]
        named = re.findall(r"(?:unit|contract|integration|browser)/test_\w+\.py", comment)
        if not named or not all((TESTS / name).exists() for name in named):
            lacking.append(f"{path.relative_to(TESTS)}:{number}: {comment or 'no comment'}")
    assert NIGHTLY and not lacking, "\n".join(lacking)


def test_every_test_has_a_time_limit(request):
    assert request.node.get_closest_marker("timeout").args[0] >= 60


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_file_says_first_which_promise_it_guards_and_its_deadlines_scale(path):
    text = path.read_text()
    assert text.startswith('"""') and len(text.splitlines()[0].split()) >= 3, "line 1 is a docstring: the promise"
    assert not FIXED_DEADLINE.search(text), "patience.seconds scales a deadline to a busy machine"
    assert not re.search("^from hypothesis", text, re.MULTILINE), "properties.py has hypothesis without its deadline"
