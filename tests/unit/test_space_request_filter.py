"""The server admits requests by name and by sender, and limits what browsers may keep."""

import asyncio
import hashlib

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from openrlhf_ebpo.files import append_json_line
from openrlhf_ebpo.space import server
from openrlhf_ebpo.space.document import PLOTLY, STATIC
from openrlhf_ebpo.space.request_filter import Gate
from openrlhf_ebpo.space.runs import Runs
from openrlhf_ebpo.space.server import LOOPBACK, hosts_of, is_lasting, policy
from openrlhf_ebpo.space.workspace import Workspace


async def ask(
    gate: Gate, path: str, method: str = "GET", body: bytes = b"{}", client: str = "1.2.3.4", host: str | None = None
) -> tuple[int, dict, bytes]:
    """One request; its status, headers and body."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "client": (client, 1)}
    named = [] if host is None else [(b"host", host.encode())]
    await gate({**scope, "headers": [(b"content-type", b"application/json"), *named]}, receive, send)
    return sent[0]["status"], dict(sent[0].get("headers", ())), sent[-1].get("body", b"")


async def empty(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/", "GET", 200),
        ("/space/style.css", "HEAD", 200),
        ("/gradio_api/heartbeat/abc", "GET", 200),
        ("/gradio_api/run/predict", "POST", 200),
        ("/gradio_api/run/predict", "GET", 403),
        ("/gradio_api/file=/etc/passwd", "GET", 403),
        ("/gradio_api/queue/data", "GET", 403),
        ("/gradio_api/heartbeat/a/b", "GET", 403),
        ("/gradio_api/upload", "POST", 403),
        ("/gradio_api/component_server/", "POST", 403),
        ("/monitoring", "GET", 403),
        ("/", "POST", 403),
        ("/space/style.css", "PUT", 403),
    ],
)
def test_what_the_pages_ask_for_is_admitted_and_nothing_else(path, method, status):
    assert asyncio.run(ask(Gate(empty), path, method))[0] == status


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:7860", "127.0.0.1:7860", "127.0.0.1", "[::1]:7860", "[::1]"])
def test_an_app_for_this_machine_answers_to_its_names(host):
    assert asyncio.run(ask(Gate(empty, hosts=LOOPBACK), "/", host=host))[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.test",
        "evil.test:7860",
        "127.0.0.1.evil.test",
        "localhost.evil.test",
        "x@localhost",
        "[::1",
        "",
        None,
        "localhost:7860, evil.test",
        "localhost:x",
        "[::1]x",
    ],
)
def test_an_app_for_this_machine_refuses_other_names_which_may_point_here(host):
    """DNS rebinding: another site's name that now means 127.0.0.1, so that its page may read what it asks for."""
    status, _, body = asyncio.run(ask(Gate(empty, hosts=LOOPBACK), "/", host=host))
    assert status == 403 and b"--host" in body
    assert asyncio.run(ask(Gate(empty), "/", host=host))[0] == 200


@pytest.mark.parametrize(
    ("host", "space", "expected"),
    [
        ("127.0.0.1", "", LOOPBACK),
        ("localhost", "", LOOPBACK),
        ("::1", "", LOOPBACK),
        ("0.0.0.0", "", None),
        ("gpu7.lab", "", None),
        ("127.0.0.1", "me/app", None),
    ],
)
def test_whoever_names_another_address_is_found_by_any_name(monkeypatch, host, space, expected):
    monkeypatch.setenv("SPACE_ID", space)
    assert hosts_of(host) == expected


@pytest.mark.parametrize(
    ("space", "ancestors"),
    [("", "frame-ancestors 'self'"), ("me/app", "frame-ancestors 'self' https://huggingface.co")],
)
def test_other_sites_frame_the_app_on_the_hub_alone(monkeypatch, space, ancestors):
    monkeypatch.setenv("SPACE_ID", space)
    assert policy("n").split("; ")[-1] == ancestors and "'nonce-n'" in policy("n")


@pytest.mark.parametrize(
    ("path", "query", "lasts"),
    [
        ("/space/style.css", b"0.1.0-1795371944", True),
        ("/space/vendor/plotly/plotly-cartesian.min.js.gz", b"0.1.0-1", True),
        ("/assets/index-DphvyggB.js", b"", True),
        ("/assets/x.js", b"", False),
        ("/space/style.css", b"", False),
        ("/space/text", b"run=a-1", False),
        ("/space/text", b"0.1.0-1", False),
        ("/", b"0.1.0-1", False),
    ],
)
def test_only_files_stay_in_the_browser(path, query, lasts):
    assert is_lasting({"path": path, "query_string": query}) == lasts


def test_a_panel_is_downloaded_as_csv_of_runs_of_this_app(tmp_path):
    (tmp_path / "run").mkdir()
    for step in (1, 2):
        append_json_line(tmp_path / "run" / "metrics.jsonl", {"step": step, "own/<x>": step / 2})
    known = server.app_kwargs("0", Workspace(Runs([str(tmp_path / "run")])))
    app = TestClient(Starlette(routes=known["routes"], middleware=known["middleware"]), base_url="http://127.0.0.1")
    (name,) = Workspace(Runs([str(tmp_path / "run")])).runs.listed()
    answer = app.get("/space/panel.csv", params={"metric": "own/<x>", "runs": name})
    assert answer.text == f"step,{name}\n1,0.5\n2,1.0\n" and answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="own_x_.csv"'
    assert "cache-control" not in answer.headers, "a run grows"
    assert app.get("/space/panel.csv", params={"metric": "x", "runs": "strangers/run"}).status_code == 404
    assert app.get("/space/panel.csv").text == "step\n"


def test_plotly_is_sent_packed_and_is_the_file_of_its_package():
    known = server.app_kwargs("0", Workspace(Runs([])))
    inner = Starlette(routes=known["routes"], middleware=known["middleware"])
    app = TestClient(inner, base_url="http://127.0.0.1:7860", raise_server_exceptions=False)
    answer = app.get(f"/space/{PLOTLY}?0.1.0-1")
    assert answer.status_code == 200 and "javascript" in answer.headers["content-type"]
    assert answer.headers["content-encoding"] == "gzip" and int(answer.headers["content-length"]) < 500_000
    assert answer.headers["cache-control"].endswith("immutable")
    assert hashlib.sha256(answer.content).hexdigest() in (STATIC / "vendor" / "README.md").read_text()
    assert "content-encoding" not in app.get("/space/style.css").headers
