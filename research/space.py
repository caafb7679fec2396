"""Measure how fast the Space is for its visitors: its start, long runs drawn in a browser, clicks over a million
rollout rows, many visitors of one view, and memory.

The data is made first (about 10 s, 250 MB in a temporary folder). Everything is asked over HTTP of an app in a process
of its own; drawing is measured in Chromium, if installed, from opening the address to the last visible panel: once
with nothing in the browser's cache, and once more.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import orjson
import psutil

from lab.markdown_tables import table
from openrlhf_ebpo.command import command

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import space_runs  # noqa: E402

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GRADIO_ANALYTICS_ENABLED": "False"}
CLICKS = {  # over all rows, after the first look at them
    "one group": {"steps": "100", "at": "100.3"},
    "rescued groups of all steps": {"steps": "all", "kind": "rescued"},
    "mixed, a cluster, 30 to 60 %": {"steps": "all", "kind": "mixed", "cluster": "Geometry", "from": 0.3, "to": 0.6},
    "text in all answers": {"steps": "all", "text": "in no answer"},
}
VISITORS = 20
METRICS = """
    rollout/reward_mean response_length truncated actor_grad_norm policy/entropy policy/kl_per_step ppo_clip_ratio
    ebpo/shrinkage ebpo/prior_mean ebpo/within_variance ebpo/between_variance ebpo/all_fail_fraction
    ebpo/all_pass_fraction ebpo/rescued_fraction ebpo/reward_error_fraction rollout/num_samples kl ppo_kl policy_loss
    actor_lr timing/generation timing/make_experience timing/ppo_train timing/broadcast timing/step_total reward score
    return total_length group_reward_std logprobs_diff ebpo/prior_count
"""
DRAWN = """() => {
  const panels = [...document.querySelectorAll(".panel")];
  const seen = panels.filter((panel) => panel.getBoundingClientRect().top < innerHeight);
  return seen.length && seen.every((panel) => panel.dataset.drawn);
}"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--rows", type=int, default=1_000_000, help="rollout rows (default %(default)s)")
    add("--steps", type=int, default=20_000, help="steps of each of five runs (default %(default)s)")
    add("--rounds", type=int, default=3, help="the median of so many is printed (default %(default)s)")


def run(options: argparse.Namespace) -> None:
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        large = space_runs.large_run(Path(folder) / "large", options.rows)
        long = Path(folder) / "long"
        long_runs(long, options.steps)
        for _ in range(options.rounds):
            for name, value in measured(long, large):
                found.setdefault(name, []).append(value)
    print(table(["", "median"], [[name, f"{statistics.median(each):.2f}"] for name, each in found.items()], numbers=1))


def long_runs(directory: Path, steps: int, runs: int = 5) -> list[Path]:
    """Metrics of many steps, every panel filled."""
    names = METRICS.split()
    paths = []
    for i in range(runs):
        rng = np.random.default_rng(i)
        path = directory / f"long-{i}"
        path.mkdir(parents=True)
        values = (
            0.5
            + 0.1 * rng.standard_normal((len(names), steps)).cumsum(1) / np.sqrt(steps)
            + 0.05 * rng.standard_normal((len(names), steps))
        )
        with open(path / "metrics.jsonl", "wb") as file:
            for step in range(steps):
                row = {
                    "step": step + 1,
                    "time": 1.7e9 + 30 * step,
                    **dict(zip(names, values[:, step].tolist(), strict=True)),
                }
                file.write(orjson.dumps(row) + b"\n")
        (path / "run.json").write_text(
            json.dumps({"schema": 1, "name": path.name, "status": "complete", "args": {"train": {"seed": i}}})
        )
        paths.append(path)
    return paths


def measured(long: Path, large: Path) -> Iterator[tuple[str, float]]:
    with app(long) as (process, port, seconds):
        yield "start, until the first answer (s)", seconds
        yield "5 long runs on the server, first (s)", timed(lambda: ask(port, smooth=0.1))
        yield f"the same for {VISITORS} at once (s)", timed(lambda: crowd(port, smooth=0.13))
        yield from drawing(f"http://127.0.0.1:{port}/?tab=dynamics")
        yield "memory after that (MB)", memory(process)
    with app(large) as (process, port, _):
        yield "rollout rows: first look (s)", timed(lambda: ask(port, tab="samples"))
        for name, view in CLICKS.items():
            yield f"rollout rows: {name} (s)", timed(lambda view=view: ask(port, tab="samples", **view))
        yield "memory after that, rollouts (MB)", memory(process)


@contextlib.contextmanager
def app(runs: Path):
    """(process, port, seconds until it answered)"""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, str(ROOT / "space" / "app.py"), "--runs", str(runs), "--port", str(port)]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **ENVIRONMENT})
    try:
        wait_for_answer(process, port)
        yield process, port, time.perf_counter() - started
    finally:
        process.terminate()
        process.wait()


def wait_for_answer(process: subprocess.Popen, port: int) -> None:
    while process.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/")
            connection.getresponse().read()
            return
        except OSError:
            time.sleep(0.02)
    sys.exit("the app did not start")


def ask(port: int, session: str = "one", **view) -> bytes:
    """The event with which a page opens, for an address with these values."""
    body = json.dumps({"data": [None], "fn_index": 0, "session_hash": f"{session}-{time.monotonic_ns()}"})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    query = urlencode({"tab": "dynamics", **view})
    connection.request("POST", f"/gradio_api/run/predict?{query}", body, {"content-type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    if response.status != 200:
        sys.exit(f"the app answered {response.status}: {answer[:200]!r}")
    return answer


def crowd(port: int, **view) -> None:
    with ThreadPoolExecutor(VISITORS) as pool:
        list(pool.map(lambda i: ask(port, str(i), **view), range(VISITORS)))


def timed(work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def memory(process: subprocess.Popen) -> float:
    return psutil.Process(process.pid).memory_info().rss / 1e6


def drawing(url: str) -> Iterator[tuple[str, float]]:
    chromium = shutil.which("chromium")
    if chromium is None:
        print("chromium is not installed: drawing is not measured", file=sys.stderr)
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        for kind in ("first visit", "again"):
            page = context.new_page()
            yield f"5 long runs drawn, {kind} (s)", timed(lambda page=page: draw(page, url))
            page.close()
        browser.close()


def draw(page, url: str) -> None:
    """Until every panel on the screen has its lines."""
    page.goto(url, wait_until="commit")
    page.wait_for_function(DRAWN, polling=20)


main = command("python research/space.py", __doc__, add_flags, run)

if __name__ == "__main__":
    main()
