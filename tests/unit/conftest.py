"""Fixtures that several unit tests share."""

from types import SimpleNamespace

import pytest


@pytest.fixture
def sections():
    """Builds upstream's nested arguments from flat names: sections(**{"a.b": 1}).a.b == 1."""

    def build(**flat):
        root = SimpleNamespace()
        for name, value in flat.items():
            *parts, leaf = name.split(".")
            node = root
            for part in parts:
                if not hasattr(node, part):
                    setattr(node, part, SimpleNamespace())
                node = getattr(node, part)
            setattr(node, leaf, value)
        return root

    return build


@pytest.fixture(scope="session")
def grader():
    """The shared pool that grades answers, with a short limit."""
    from openrlhf_ebpo.rewards.processes import pool as pool_module

    original, pool = pool_module._shared, pool_module.Pool(workers=2, seconds=1)
    pool_module._shared = lambda: pool
    yield pool
    pool.close()
    pool_module._shared = original
