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
    yield from shared_for_all_tests("openrlhf_ebpo.rewards.grading", seconds=1)


def shared_for_all_tests(module, **limits):
    from openrlhf_ebpo.rewards import pool as pool_module

    pool = pool_module._pools[module] = pool_module.Pool(workers=2, grader=module, **limits)
    yield pool
    pool.close()
    del pool_module._pools[module]
