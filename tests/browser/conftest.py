"""One app for all browser tests, in a process of its own, over runs that the tests write; one browser, a fresh context
a test that notes every request, dialog and error."""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from patience import seconds

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
BY_FILE = (str(ROOT / "space" / "app.py"),)  # as on the Hub
EVIL_NAME = "<img src=x onerror=alert(1)>"


def pytest_collection_modifyitems(items):
    """Without a browser these tests name the missing program, and fail where CI is set."""
    lacking = None if Path(CHROMIUM).exists() else "chromium is not installed (Debian: apt-get install chromium)"
    for module in ("playwright", "gradio"):
        lacking = lacking or (None if importlib.util.find_spec(module) else f"{module} is not installed")
    if lacking and "CI" not in os.environ:
        for item in items:
            if Path(item.fspath).parent == Path(__file__).parent:
                item.add_marker(pytest.mark.skip(reason=lacking))


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """ebpo and grpo (still training) learn; one fails, one is hostile; a and b had the same prompts; live
    grows; long has long answers."""
    import space_runs
    from long_run import long_run

    folder = tmp_path_factory.mktemp("runs")
    space_runs.learning_run(folder / "ebpo", steps=40, seed=1, name="ebpo", pace=1.3)
    for step in (20, 40):
        space_runs.evaluation(folder / "ebpo", "held-out", step, rate=0.5, seed=1, n=4, protocol="default+n=4")
    space_runs.learning_run(
        folder / "grpo", steps=40, seed=2, name="grpo", pace=0.8, estimator="group_norm", status="running"
    )
    space_runs.troubled_run(folder / "troubled")
    space_runs.hostile_run(folder / EVIL_NAME)
    for name, pace in (("a", 1.0), ("b", 0.4)):
        space_runs.learning_run(folder / name, steps=8, seed=1, name=name, prompts=8, pace=pace)
    space_runs.learning_run(folder / "live", steps=20, seed=5, name="live", status="running")
    long_run(folder / "long")
    return folder


@pytest.fixture(scope="session")
def serve(tmp_path_factory):
    """Starts apps; all of them end with the session."""
    started = []

    def start(*arguments: str, by: tuple[str, ...] = BY_FILE, **environment: str) -> str:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        log = tmp_path_factory.mktemp("app") / "log.txt"
        command = [sys.executable, *by, "--port", str(port), *arguments]
        with open(log, "w") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **environment}
            )
        started.append(process)
        url, until = f"http://127.0.0.1:{port}", time.monotonic() + seconds(120)
        while time.monotonic() < until and process.poll() is None:
            try:
                urllib.request.urlopen(f"{url}/space/space.js", timeout=2).close()
                return url
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"the app did not start:\n{log.read_text()}")

    yield start
    for process in started:
        process.terminate()
    for process in started:
        process.wait(20)


@pytest.fixture(scope="session")
def temporary(tmp_path_factory):
    """Folder of everything temporary of the app."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="session")
def app(serve, runs, temporary):
    places = {"GRADIO_TEMP_DIR": str(temporary / "gradio"), "TMPDIR": str(temporary)}
    return serve("--runs", str(runs), **places)


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def contexts(browser):
    """One context for each kind of visitor: scripts that one page has loaded and compiled are not loaded again. A
    context has six connections to a server, and a page of Gradio holds one."""
    made = {}

    def context(kind: str):
        if kind not in made:
            phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
            desk = {"viewport": {"width": 1440, "height": 900}, "accept_downloads": True}
            made[kind] = browser.new_context(**(phone if kind == "phone" else desk))
        return made[kind]

    return context


@pytest.fixture
def visit(contexts, app):
    """visit(query) -> page; nothing may leave the app, open a dialog, or throw on any of them."""
    pages, seen = [], SimpleNamespace(outside=[], dialogs=[], errors=[])

    def open_page(query: str = "", base: str = app, kind: str = "desk"):
        page = contexts(kind).new_page()
        pages.append(page)
        page.set_default_timeout(seconds(60) * 1000)
        page.on("request", lambda r: r.url.startswith((base, "data:", "blob:")) or seen.outside.append(r.url))
        page.on("dialog", lambda d: (seen.dialogs.append(d.message), d.dismiss()))
        page.on("pageerror", lambda e: seen.errors.append(str(e)))
        page.on("console", lambda m: m.type == "error" and seen.errors.append(m.text))
        page.goto(f"{base}/{query}", wait_until="commit")
        return page

    yield open_page
    for page in pages:
        page.close()
    assert not seen.outside, seen.outside
    assert not seen.dialogs, seen.dialogs
    assert not seen.errors, seen.errors
