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
