"""What the server answers besides the pages: static files and downloads."""

from __future__ import annotations

import asyncio
import hashlib

import pytest
from space_runs import learning_run
from starlette.applications import Starlette
from starlette.testclient import TestClient

from openrlhf_ebpo.space import downloads, exports, search, server
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


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("runs=a&steps=all", 48),
        ("runs=a", 16),
        ("runs=b", 16),
        ("runs=a,b&run=b&steps=all", 16),
        ("", 16),
        ("runs=a&steps=1-2&kind=nonsense", 32),
    ],
)
def test_a_download_has_the_groups_of_the_view(app, query, rows):
    answer = app().get(f"/space/export?{query}&format=jsonl")
    assert answer.status_code == 200 and len(answer.text.splitlines()) == rows
    assert answer.headers["content-disposition"].startswith('attachment; filename="')
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("runs=a&format=exe", "format is one of csv, parquet, jsonl"),
        ("runs=a", "format is one of"),
        ("runs=gone&format=csv", "no run called"),
        ("runs=../../etc&format=csv", "no run called"),
        ("runs=someone/else&format=csv", "not on this app's list"),
        ("runs=a&steps=never&format=csv", "Steps are"),
        ("runs=a&steps=99&format=csv", "No group fits"),
    ],
)
def test_what_cannot_be_downloaded_is_said(app, query, said):
    answer = app().get(f"/space/export?{query}")
    assert answer.status_code == 404 and said in answer.text
    assert answer.headers["content-type"].startswith("text/plain")


def test_a_check_sends_nothing_and_frees_its_place(app, monkeypatch):
    client = app()
    for _ in range(2 * downloads.AT_ONCE):
        answer = client.get("/space/export?runs=a&format=csv&check=1")
        assert answer.status_code == 204 and not answer.content
    monkeypatch.setattr(exports, "ROWS", 3)
    assert "at most 3" in client.get("/space/export?runs=a&format=csv&check=1").text


def test_few_downloads_run_at_once_and_one_that_breaks_frees_its_place(app, monkeypatch):
    client = app()
    for _ in range(downloads.AT_ONCE):
        assert downloads._places.acquire(blocking=False)
    assert client.get("/space/export?runs=a&format=csv").status_code == 503
    for _ in range(downloads.AT_ONCE):
        downloads._places.release()
    monkeypatch.setattr(exports, "BYTES", 10)
    for _ in range(2 * downloads.AT_ONCE):
        assert not client.get("/space/export?runs=a&format=csv").content
    monkeypatch.undo()
    assert client.get("/space/export?runs=a&format=csv").status_code == 200


async def receive_nothing():
    await asyncio.Event().wait()


def test_a_download_that_nobody_reads_ends_and_frees_its_place(monkeypatch):
    async def stuck(message):
        await asyncio.Event().wait()

    async def sent(download):
        return await asyncio.wait({asyncio.create_task(download({"type": "http"}, receive_nothing, stuck))}, timeout=10)

    freed = []
    monkeypatch.setattr(downloads, "SECONDS", 0.01)
    ended, _ = asyncio.run(sent(downloads.Download(iter([b"a"]), "a.csv", "text/csv", lambda: freed.append(True))))
    assert freed and [type(each.exception()) for each in ended] == [asyncio.TimeoutError]


def test_a_search_without_an_end_is_no_download(app, monkeypatch):
    client, asked = app(), "/space/export?runs=a&steps=all&format=jsonl&text=a"
    assert client.get(asked).status_code == 200
    monkeypatch.setattr(search, "FOUND", 1)
    answer = client.get(asked)
    assert answer.status_code == 404 and "part only" in answer.text
