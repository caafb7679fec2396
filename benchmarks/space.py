"""How fast the Space is: its start, five long runs drawn in a browser, filters over a million rollout rows.

The data is made first (about 10 s, 250 MB in a temporary folder). Drawing is measured in Chromium, if it is there, from
opening the address to the last visible panel: once cold, and once with the app's files in the browser's cache.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import space_runs  # noqa: E402

from openrlhf_ebpo.space.links import clean  # noqa: E402
from openrlhf_ebpo.space.pages import dynamics, samples  # noqa: E402
from openrlhf_ebpo.space.runs import Runs  # noqa: E402
from openrlhf_ebpo.space.workspace import Workspace  # noqa: E402

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FILTERS = {
    "the latest step, index made": {},
    "one group": {"steps": "100", "at": "100.3"},
    "rescued groups of all steps": {"steps": "all", "kind": "rescued"},
    "mixed, a cluster, 30 to 60 %": {"steps": "all", "kind": "mixed", "cluster": "Geometry", "from": 0.3, "to": 0.6},
    "text in all answers": {"steps": "all", "text": "nobody wrote this"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rollout rows (default 1,000,000)")
    parser.add_argument("--steps", type=int, default=20_000, help="steps of each of the five runs (default 20,000)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        large = space_runs.large_run(Path(folder) / "large", options.rows)
        space_runs.long_runs(Path(folder) / "long", options.steps)
        long = workspace(Path(folder) / "long")
        report("five runs on the server, first", lambda: dynamics.render(clean({}), long))
        rollouts = workspace(large)
        for name, view in FILTERS.items():
            report(f"{options.rows:,} rows: {name}", lambda view=view: samples.render(clean(view), rollouts))
        drawing(Path(folder) / "long", options.steps)


def workspace(path: Path) -> Workspace:
    return Workspace(Runs([str(path)]))


def report(name: str, work) -> None:
    started = time.perf_counter()
    work()
    print(f"{name:<48} {time.perf_counter() - started:7.2f} s", flush=True)


def drawing(folder: Path, steps: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, str(ROOT / "space" / "app.py"), "--runs", str(folder), "--port", str(port)]
    app = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        report("start, until the first answer", lambda: wait_for(f"http://127.0.0.1:{port}/space/space.js"))
        browse(f"http://127.0.0.1:{port}/", steps)
    finally:
        app.terminate()
        app.wait()


def wait_for(url: str) -> None:
    while True:
        try:
            return urllib.request.urlopen(url, timeout=2).close()
        except OSError:
            time.sleep(0.02)


def browse(url: str, steps: int) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        print("chromium is not installed: drawing is not measured")
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        for kind in ("cold", "again", "again"):
            page = context.new_page()
            report(f"5 x {steps:,} steps drawn, {kind}", lambda page=page: draw(page, url))
            page.close()
        browser.close()


def draw(page, url: str) -> None:
    """Until every panel on the screen has its lines."""
    page.goto(f"{url}?tab=dynamics", wait_until="commit")
    page.wait_for_function(
        """() => { const seen = [...document.querySelectorAll('.panel')].filter(p => p.getBoundingClientRect().top < innerHeight);
                   return seen.length && seen.every(p => p.dataset.drawn); }""",
        polling=20,
    )


if __name__ == "__main__":
    main()
