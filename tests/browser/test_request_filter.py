"""The server of the Space refuses over HTTP, however it was started: nothing that a visitor sends lands on its
disk."""

import json
import re
import urllib.error
import urllib.request

import pytest

STARTED_BY = {
    "space/app.py": {},
    "openrlhf-ebpo space": {"by": ("-c", "from openrlhf_ebpo.cli import main; main()", "space")},
}
OFFERED = {
    *(
        "/",
        "/config",
        "/theme.css",
        "/favicon.ico",
        "/manifest.json",
        "/robots.txt",
        "/assets/{path}",
        "/static/{path}",
    ),
    *("/space", "/gradio_api/app_id", "/gradio_api/startup-events", "/gradio_api/heartbeat/{session_hash}"),
    "/gradio_api/run/{api_name}",
}
BOUNDARY = "xxBOUNDARYxx"
FORM = (
    f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="files"; filename="evil.html"\r\n'
    f"Content-Type: text/html\r\n\r\n<script>1</script>\r\n--{BOUNDARY}--\r\n"
).encode()
FILE = {"path": "http://evil.test/file.bin", "meta": {"_type": "gradio.FileData"}}


# started by the command, it is nightly; daily: unit/test_space_request_filter.py has the gate that all start with
@pytest.fixture(scope="module", params=["space/app.py", pytest.param("openrlhf-ebpo space", marks=pytest.mark.nightly)])
def started(request, serve, runs, app, temporary, tmp_path_factory):
    """(address, folder of everything temporary) of an app."""
    if request.param == "space/app.py":
        return app, temporary
    folder = tmp_path_factory.mktemp("temporary")
    environment = {"GRADIO_TEMP_DIR": str(folder / "gradio"), "TMPDIR": str(folder)}
    return serve("--runs", str(runs / "ebpo"), **STARTED_BY[request.param], **environment), folder


def ask(
    url: str, method: str = "GET", body: bytes | None = None, kind: str = "application/json", **headers: str
) -> tuple[int, bytes]:
    request = urllib.request.Request(url, body, {"content-type": kind, **headers}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, b"" if "heartbeat" in url else answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def event(*data, **more) -> bytes:
    """One event of a page; 0 is its loading, whose only input is the session."""
    return json.dumps({"data": [None, *data], "fn_index": 0, "session_hash": "visitor", **more}).encode()


def files(folder) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    "place", ["upload", "upload?upload_id=x", "upload/", "component_server/", "run/predict", "process_recording"]
)
def test_nothing_that_a_visitor_uploads_lands_on_the_disk(started, place):
    url, folder = started
    before = files(folder)
    status, _ = ask(f"{url}/gradio_api/{place}", "POST", FORM, f"multipart/form-data; boundary={BOUNDARY}")
    assert status in (403, 404, 415)
    assert files(folder) == before


def test_no_file_is_fetched_that_an_event_describes(started):
    url, folder = started
    before = files(folder)
    events = json.loads(ask(f"{url}/config")[1])["dependencies"]
    number = next(each["id"] for each in events if len(each["inputs"]) == 3)  # session, locator, a control
    for given in (FILE, [{"x": FILE}], {**FILE, "meta": {"_type": "gradio.FileData", "x": 1}}):
        status, _ = ask(f"{url}/gradio_api/run/predict", "POST", event("", given, fn_index=number))
        assert status == 403
    assert files(folder) == before


def test_what_is_no_event_of_a_page_is_refused(started):
    url, _ = started
    place = f"{url}/gradio_api/run/predict"
    assert ask(place, "POST", event("x" * 2**18))[0] == 403
    assert ask(place, "POST", b"{")[0] == 403
    assert ask(place, "POST", b"[" * 100_000)[0] == 403
    assert ask(place, "POST", event(), "text/plain")[0] == 403
    assert ask(place, "PUT", event())[0] == 403


def test_another_sites_name_that_points_here_is_refused(started):
    url, _ = started
    for path, method in (("/", "GET"), ("/space/space.js", "GET"), ("/gradio_api/run/predict", "POST")):
        status, said = ask(f"{url}{path}", method, event() if method == "POST" else None, host="evil.test")
        assert status == 403 and b"--host" in said
    assert ask(url, host=url.replace("http://127.0.0.1", "localhost"))[0] == 200


def test_of_gradios_routes_only_those_that_pages_use_are_offered(started):
    """A route that a later Gradio adds is refused, too."""
    gradio, routes = pytest.importorskip("gradio"), pytest.importorskip("gradio.routes")
    url, folder = started
    before = files(folder)
    there = {
        (re.sub(r":path\}", "}", route.path), method)
        for route in routes.App.create_app(gradio.Blocks()).routes
        for method in getattr(route, "methods", None) or ()
    }
    assert len(there) > 60 and ("/gradio_api/upload", "POST") in there
    for path, method in sorted(there):
        if path not in OFFERED:
            body = event() if method == "POST" else None
            status, _ = ask(url + re.sub(r"\{\w+\}", "predict" if "call" in path else "x", path), method, body)
            assert status == 403, (path, method, status)
    assert files(folder) == before


def test_the_page_and_its_events_are_still_there(started):
    url, _ = started
    status, page = ask(f"{url}/")
    assert status == 200 and b"gradio_config" in page
    nonces = set(re.findall(rb'<script nonce="([\w-]{20,})"', page))
    assert len(nonces) == 1 and page.count(b"<script") == page.count(b"<script nonce=")
    assert nonces.isdisjoint(re.findall(rb'nonce="([\w-]+)"', ask(f"{url}/")[1])), "new for every response"
    for path in ("config", "theme.css", "space/space.js", "gradio_api/app_id", "gradio_api/startup-events"):
        assert ask(f"{url}/{path}")[0] == 200, path
    asset = re.search(rb"(?:\./|/)(assets/[\w.-]+\.js)", page)[1].decode()
    assert ask(f"{url}/{asset}")[0] == 200
    status, said = ask(f"{url}/gradio_api/run/predict", "POST", event())
    assert status == 200 and b"ebpo" in said
