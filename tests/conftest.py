"""All kinds of tests share a time limit for each, and a Hugging Face Hub on this machine."""

import gc
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "research"))
os.environ["HF_HUB_DISABLE_XET"] = "1"  # read when huggingface_hub is imported; the test server speaks LFS only
os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported; threads of so small tensors only wait
os.environ.setdefault("OPENRLHF_EBPO_MATH_WORKERS", "1")  # each imports what it grades with: two seconds of a core
gc.set_threshold(10_000, 20, 50)  # a tenth of the time went into walking through all that tests have imported
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"


def pytest_collection_modifyitems(items):
    """Every test has a time limit, so that one that hangs is a failure with a name; a marker `timeout` sets another."""
    from patience import MAX_TEST_SECONDS, seconds

    for item in items:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(seconds(MAX_TEST_SECONDS[folder])))


@pytest.fixture
def hub():
    """An empty Hub; see hub_server.HubServer."""
    from hub_server import HubServer

    server = HubServer().start()
    yield server
    server.stop()


@pytest.fixture
def api(hub):
    """The unmodified client, with a token that may write."""
    from huggingface_hub import HfApi

    return HfApi(endpoint=hub.url, token=hub.token)


@pytest.fixture
def hub_environment(hub, tmp_path) -> dict[str, str]:
    """All environment variables for a process that is to use `hub`, with a cache of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    return {**inherited, **hub.environment, "HF_HOME": str(tmp_path / "hf_home")}


@pytest.fixture
def use_hub(hub, monkeypatch, tmp_path):
    """This process talks to `hub`, as if HF_ENDPOINT and HF_TOKEN had been set before it started."""
    template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf_cache"))
    monkeypatch.setenv("HF_TOKEN", hub.token)
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_PAUSE", "0.01")
    return hub


@pytest.fixture
def no_waiting(monkeypatch):
    """The client's own pauses between its retries (1 to 8 s, or what Retry-After says) take no time; a list of them."""
    import time
    from types import SimpleNamespace

    waited: list[float] = []
    clock = SimpleNamespace(**{**vars(time), "sleep": waited.append})
    monkeypatch.setattr("huggingface_hub.utils._http.time", clock)
    monkeypatch.setattr("huggingface_hub.file_download.time", clock)
    return waited


@pytest.fixture
def make_run(tmp_path):
    """Builds the run directory of a small training with saved models of some steps: make_run(steps=(2, 4))."""
    import hub_runs

    return lambda name="run", **how: hub_runs.make_run(tmp_path / name, **how)
