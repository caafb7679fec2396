"""Skip a test that needs a network and has none; fail it where CI is set, so that no promise rests there."""

import os
from typing import NoReturn

import pytest


def unreachable(what: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"{what}; CI is set, where nothing may be left out")
    pytest.skip(what)
