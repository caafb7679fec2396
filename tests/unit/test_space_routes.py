"""What the server answers besides the pages: static files and downloads."""

from __future__ import annotations

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
    learning_run(folder / "b", steps=1, seed=2, name="b", prompts=4)
    return folder


@pytest.fixture
def app(folder):
    """app() -> a client of the server's own routes, behind its gate and with its headers."""

    def made(base: str = HERE) -> TestClient:
        known = server.app_kwargs("0", Workspace(Runs([str(folder)])))
        inner = Starlette(routes=known["routes"], middleware=known["middleware"])
        return TestClient(inner, base_url=base, raise_server_exceptions=False)

    return made


# files


def test_plotly_is_sent_packed_and_is_the_file_of_its_package(app):
    answer = app().get(f"/space/{PLOTLY}?0.1.0-1")
    assert answer.status_code == 200 and "javascript" in answer.headers["content-type"]
    assert answer.headers["content-encoding"] == "gzip" and int(answer.headers["content-length"]) < 500_000
    assert answer.headers["cache-control"].endswith("immutable")
    assert hashlib.sha256(answer.content).hexdigest() in (STATIC / "vendor" / "README.md").read_text()
    assert "content-encoding" not in app().get("/space/style.css").headers


# downloads


def test_the_rollouts_of_a_step_come_as_they_lie_in_the_run(app, folder):
    answer = app().get("/space/rollouts?run=a&step=2")
    assert answer.status_code == 200
    assert answer.content == (folder / "a" / "rollouts" / "step-000002.parquet").read_bytes()
    assert answer.headers["content-disposition"] == 'attachment; filename="a-step-000002.parquet"'
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("run=gone&step=1", "no run called"),
        ("run=../../etc&step=1", "no run called"),
        ("run=someone/else&step=1", "not on this app's list"),
        ("run=a&step=99", "no rollouts of step 99"),
        ("run=a&step=1/../../run", "no rollouts"),
        ("run=a&step=\u0661", "no rollouts"),
        ("run=a", "no rollouts"),
        ("", "no run called"),
    ],
)
def test_what_cannot_be_downloaded_is_said(app, query, said):
    answer = app().get(f"/space/rollouts?{query}")
    assert answer.status_code == 404 and said in answer.text
    assert answer.headers["content-type"].startswith("text/plain")


def test_a_link_out_of_the_run_is_not_followed(app, folder, tmp_path):
    path = folder / "b" / "rollouts" / "step-000001.parquet"
    kept = path.read_bytes()
    (tmp_path / "secret").write_text("NEEDLE")
    path.unlink()
    path.symlink_to(tmp_path / "secret")
    answer = app().get("/space/rollouts?run=b&step=1")
    path.unlink()
    path.write_bytes(kept)
    assert answer.status_code == 404 and "NEEDLE" not in answer.text
