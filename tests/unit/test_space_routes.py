"""What the server answers beside the pages: downloads, and notes that only its own pages may write."""

from __future__ import annotations

import asyncio
import hashlib
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from space_runs import learning_run
from starlette.applications import Starlette
from starlette.testclient import TestClient

from openrlhf_ebpo.space import downloads, exports, search, server
from openrlhf_ebpo.space.document import PLOTLY, STATIC
from openrlhf_ebpo.space.notes import FILE, Notes
from openrlhf_ebpo.space.runs import Runs
from openrlhf_ebpo.space.workspace import Workspace

HERE = "http://127.0.0.1:7860"
NOTE = {"run": "a", "step": 2, "group": 1, "note": "odd", "tags": ["check"], "time": ""}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    learning_run(folder / "a", steps=3, seed=1, name="a", prompts=4)
    learning_run(folder / "b", steps=1, seed=2, name="b", prompts=4)
    return folder


@pytest.fixture
def app(folder):
    """app(notes) -> a client of the server's own routes, behind its gate and with its headers."""

    def made(notes: Notes, base: str = HERE) -> TestClient:
        known = server.app_kwargs("0", Workspace(Runs([str(folder)]), notes))
        inner = Starlette(routes=known["routes"], middleware=known["middleware"])
        return TestClient(inner, base_url=base, raise_server_exceptions=False)

    yield made
    (folder / "a" / FILE).unlink(missing_ok=True)


def post(client: TestClient, note: dict = NOTE, origin: str | None = HERE, **headers):
    sent = {"content-type": "application/json", **({"origin": origin} if origin else {}), **headers}
    return client.post(
        "/space/notes", content=json.dumps(note), headers={k.replace("_", "-"): v for k, v in sent.items()}
    )


# files


def test_plotly_is_sent_packed_and_is_the_file_of_its_package(app):
    answer = app(Notes()).get(f"/space/{PLOTLY}?0.1.0-1")
    assert answer.status_code == 200 and "javascript" in answer.headers["content-type"]
    assert answer.headers["content-encoding"] == "gzip" and int(answer.headers["content-length"]) < 500_000
    assert answer.headers["cache-control"].endswith("immutable")
    assert hashlib.sha256(answer.content).hexdigest() in (STATIC / "vendor" / "README.md").read_text()
    assert "content-encoding" not in app(Notes()).get("/space/style.css").headers


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
    answer = app(Notes()).get(f"/space/export?{query}&format=jsonl")
    assert answer.status_code == 200 and len(answer.text.splitlines()) == rows
    assert answer.headers["content-disposition"].startswith('attachment; filename="')
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_download_has_the_groups_of_a_tag(app):
    client = app(Notes(enabled=True))
    post(client)
    assert len(client.get("/space/export?runs=a&steps=all&tag=check&format=jsonl").text.splitlines()) == 4
    assert app(Notes()).get("/space/export?runs=a&steps=all&tag=check&format=jsonl").text == "No group fits."


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
    answer = app(Notes()).get(f"/space/export?{query}")
    assert answer.status_code == 404 and said in answer.text
    assert answer.headers["content-type"].startswith("text/plain")


def test_a_check_sends_nothing_and_frees_its_place(app, monkeypatch):
    client = app(Notes())
    for _ in range(2 * downloads.AT_ONCE):
        answer = client.get("/space/export?runs=a&format=csv&check=1")
        assert answer.status_code == 204 and not answer.content
    monkeypatch.setattr(exports, "ROWS", 3)
    assert "at most 3" in client.get("/space/export?runs=a&format=csv&check=1").text


def test_few_downloads_run_at_once_and_one_that_breaks_frees_its_place(app, monkeypatch):
    client = app(Notes())
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
    client, asked = app(Notes()), "/space/export?runs=a&steps=all&format=jsonl&text=a"
    assert client.get(asked).status_code == 200
    monkeypatch.setattr(search, "FOUND", 1)
    answer = client.get(asked)
    assert answer.status_code == 404 and "part only" in answer.text


# notes


def test_a_page_of_the_app_keeps_a_note(app, folder):
    answer = post(app(Notes(enabled=True)), sec_fetch_site="same-origin")
    assert answer.status_code == 200 and answer.json()["note"] == "odd"
    (line,) = map(json.loads, (folder / "a" / FILE).read_text().splitlines())
    assert (line["step"], line["group"], line["note"], line["tags"]) == (2, 1, "odd", ["check"]) and line["prompt_id"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": None}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://evil.test"}, 403),
        ({"origin": "http://127.0.0.1:7861"}, 403),
        ({"origin": "http://127.0.0.1:7860.evil.test"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_another_sites_page_writes_nothing(app, folder, headers, status):
    assert post(app(Notes(enabled=True)), **headers).status_code == status
    assert not (folder / "a" / FILE).exists()


def test_a_name_that_only_points_here_writes_nothing_unless_it_is_allowed(app, folder):
    rebound = "http://evil.test:7860"
    refused = post(app(Notes(enabled=True), rebound), origin=rebound)
    assert refused.status_code == 403 and "--notes on" in refused.json()["error"]
    assert not (folder / "a" / FILE).exists()
    assert post(app(Notes(enabled=True, anywhere=True), rebound), origin=rebound).status_code == 200
    assert post(app(Notes(enabled=True, anywhere=True), rebound), origin="http://other.test").status_code == 403


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_notes_take_nothing_but_a_post(app, method):
    answer = app(Notes(enabled=True)).request(method, "/space/notes", headers={"origin": HERE})
    assert answer.status_code in (403, 404, 405)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"step": 99}, "gone"),
        ({"run": "gone"}, "no run called"),
        ({"run": "../a"}, "no run called"),
        ({"step": "x"}, "no note"),
        ({"step": [1]}, "no note"),
        ({"group": None}, "no note"),
        ({"step": 1e999}, "no"),
    ],
)
def test_what_is_no_note_is_refused(app, folder, change, said):
    answer = post(app(Notes(enabled=True)), {**NOTE, **change})
    assert answer.status_code in (400, 422) and said in answer.text
    assert not (folder / "a" / FILE).exists()


@pytest.mark.parametrize("body", [b"[]", b"null", b"1", b'"x"', b"{}", b"{", b"\xff", b"[" * 100_000])
def test_other_json_is_refused(app, body):
    answer = app(Notes(enabled=True)).post(
        "/space/notes", content=body, headers={"content-type": "application/json", "origin": HERE}
    )
    assert answer.status_code in (400, 422)


def test_a_note_that_was_changed_meanwhile_is_shown_and_can_then_be_replaced(app):
    client = app(Notes(enabled=True))
    first = post(client).json()
    second = post(client, {**NOTE, "note": "mine"})
    assert second.status_code == 409 and second.json()["note"] == "odd" and second.json()["time"] == first["time"]
    assert post(client, {**NOTE, "note": "mine", "time": first["time"]}).json()["note"] == "mine"


def test_of_writers_at_once_one_wins_and_the_others_are_told(app):
    client = app(Notes(enabled=True))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: post(client, {**NOTE, "note": f"{i}"}).status_code, range(8)))
    assert found.count(200) == 1 and set(found) <= {200, 409, 429}  # 429: too many of one visitor at once


def test_where_notes_are_off_nothing_is_kept(app, folder):
    assert "not kept here" in post(app(Notes())).json()["error"] and not (folder / "a" / FILE).exists()
