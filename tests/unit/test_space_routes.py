"""What the server answers besides the pages: static files."""

import hashlib

import pytest
from space_runs import learning_run
from starlette.applications import Starlette
from starlette.testclient import TestClient

from openrlhf_ebpo.space import server
from openrlhf_ebpo.space.document import PLOTLY, STATIC
from openrlhf_ebpo.space.runs import Runs
from openrlhf_ebpo.space.workspace import Workspace

HERE = "http://127.0.0.1:7860"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    learning_run(folder / "a", steps=3, seed=1, name="a", prompts=4)
    return folder


@pytest.fixture
def app(folder):
    """app() -> a client of the server's own routes, behind its gate and with its headers."""

    def made(base: str = HERE) -> TestClient:
        known = server.app_kwargs("0", Workspace(Runs([str(folder)])))
        inner = Starlette(routes=known["routes"], middleware=known["middleware"])
        return TestClient(inner, base_url=base, raise_server_exceptions=False)

    return made


def test_plotly_is_sent_packed_and_is_the_file_of_its_package(app):
    answer = app().get(f"/space/{PLOTLY}?0.1.0-1")
    assert answer.status_code == 200 and "javascript" in answer.headers["content-type"]
    assert answer.headers["content-encoding"] == "gzip" and int(answer.headers["content-length"]) < 500_000
    assert answer.headers["cache-control"].endswith("immutable")
    assert hashlib.sha256(answer.content).hexdigest() in (STATIC / "vendor" / "README.md").read_text()
    assert "content-encoding" not in app().get("/space/style.css").headers
