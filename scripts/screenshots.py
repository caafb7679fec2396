"""The pictures of the Space in README and docs: `python scripts/screenshots.py RUN [RUN ...]`. Needs Chromium.

Those of the README show both arms of the quickstart:

  bash scripts/quickstart.sh && python scripts/screenshots.py runs/quickstart

and those of a real model's answers:

  bash scripts/walkthrough.sh && python scripts/screenshots.py runs/walkthrough/run --name walkthrough
"""

from __future__ import annotations

import argparse
import io
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-sync", "--no-first-run"]
WIDTH = 1440
COLOURS = 128  # keeps a picture below 150 kB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="run directories, or folders of them; the first is shown answer by answer",
    )
    parser.add_argument("--name", default="space", help="how the pictures' names begin (%(default)s)")
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    app = subprocess.Popen(
        [sys.executable, str(ROOT / "space" / "app.py"), "--port", str(port), "--runs", *options.runs]
    )
    try:
        wait_for(f"http://127.0.0.1:{port}/space/space.js", app)
        take(f"http://127.0.0.1:{port}/", options.name)
    finally:
        app.terminate()
        app.wait()


def wait_for(url: str, app: subprocess.Popen) -> None:
    while app.poll() is None:
        try:
            return urllib.request.urlopen(url, timeout=2).close()
        except OSError:
            time.sleep(0.1)
    sys.exit("the app did not start")


def take(url: str, name: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": WIDTH, "height": 1150})
        page.goto(url)
        page.wait_for_selector(".run-card")
        page.wait_for_timeout(500)  # fonts
        save(page, f"{name}_overview.png", height=720)
        page.goto(f"{url}?tab=dynamics")
        drawn(page)
        save(page, f"{name}_dynamics.png", height=1080)
        page.goto(f"{url}?tab=samples&kind=rescued&steps=1")
        page.wait_for_selector(".answer .piece.md")
        page.wait_for_timeout(500)  # fonts
        save(page, f"{name}_samples.png", height=900)
        page.goto(f"{url}?tab=evaluation")
        if evaluated(page):
            page.wait_for_timeout(5000)  # plots
            save(page, f"{name}_evaluation.png", height=1150)
        else:
            print(f"{IMAGES / name}_evaluation.png: left out, the runs have no evaluations")
        browser.close()


def evaluated(page: Page) -> bool:
    """True if the page of evaluations has scores; without any it says so."""
    page.wait_for_selector(".scores:visible, .empty:visible")
    return page.locator(".scores").count() > 0


def drawn(page: Page) -> None:
    """Until every panel in sight has its lines."""
    page.wait_for_function(
        """() => { const seen = [...document.querySelectorAll('.panel')].filter(p => p.getBoundingClientRect().top <
        innerHeight);
                   return seen.length && seen.every(p => p.dataset.drawn); }"""
    )
    page.wait_for_timeout(500)  # fonts


def save(page: Page, name: str, height: int) -> None:
    picture = page.screenshot(clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
    IMAGES.mkdir(exist_ok=True)
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLOURS).save(IMAGES / name, optimize=True)
    print(f"{IMAGES / name}: {(IMAGES / name).stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
