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


@pytest.fixture(scope="module")
def grader():
    """The shared pool that grades answers, with a short limit."""
    from openrlhf_ebpo.rewards import pool as pool_module

    pool = pool_module._pools[pool_module.GRADER] = pool_module.Pool(workers=2, seconds=1)
    yield pool
    pool.close()
    del pool_module._pools[pool_module.GRADER]


@pytest.fixture
def serve(monkeypatch):
    """Starts OpenAI-compatible servers; see model_server.servers."""
    from model_server import servers

    for name in ("OPENAI_API_KEY", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with servers() as start:
        yield start
