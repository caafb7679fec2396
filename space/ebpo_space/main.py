"""Look at training runs in a browser: dynamics, samples with their advantages, evaluation, and the estimator explained.

It reads run directories, nothing else: it needs neither a GPU nor torch, and can run while training does.

examples:
  openrlhf-ebpo space --runs runs/quickstart                       one run, or all runs below a folder
  openrlhf-ebpo space --runs runs/ebpo/run runs/grpo/run           two runs, side by side
  openrlhf-ebpo space --runs owner/name                            a data set repository of the Hub
  python space/app.py --runs runs/quickstart                       the same from a checkout

environment, for a Space on the Hub:
  EBPO_SPACE_RUNS       as --runs, separated by commas
  EBPO_SPACE_HF_TOKEN   a read-only token for private repositories; without it the Hub is asked anonymously, but for
                        --runs with your login (HF_TOKEN, hf auth login)

Links keep the view: what is on the page is in the address.
"""

from __future__ import annotations

import argparse
import functools
import gc
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from openrlhf_ebpo import __version__
from openrlhf_ebpo.command import Parser, error_exit
from openrlhf_ebpo.command import parse as parse_flags

SESSIONS = 500  # of visitors, 0.4 MB each; who comes back later is shown what the address says
THREADS = 8  # answers worked on at a time


@error_exit("space")
def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    serve(options)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = Parser("openrlhf-ebpo space", __doc__)
    parser.add_argument(
        "--runs",
        nargs="+",
        metavar="RUN",
        help="run directories, folders that hold some or will, or owner/name of data set repositories on the Hub",
    )
    parser.add_argument(
        "--host",
        default=os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"),
        help="address to listen on (default 127.0.0.1: this machine only, and under its own names only)",
    )
    parser.add_argument(
        "--port", type=int, default=None, help="default: GRADIO_SERVER_PORT, or the first free one from 7860"
    )
    options = parse_flags(parser, argv)
    options.port = options.port or None  # Gradio takes the first free one for None, and fails at 0
    options.login = options.runs is not None  # a Space reads what its variable names without its owner's other tokens
    named = os.environ.get("EBPO_SPACE_RUNS", "").split(",")
    options.runs = options.runs or [name.strip() for name in named if name.strip()]
    for given in options.runs:
        if Path(given).exists() and not Path(given).is_dir():  # a folder may be written later
            parser.error(f"--runs {given} is a file; name the run's directory")
    host, port = options.host, options.port or 0
    try:  # Gradio names a used port only after the imports, and not by our flag
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host.strip("[]"), port), family=family).close()
    except (OSError, OverflowError) as error:
        parser.error(f"--host {host} --port {port}: {error}; give another --port, or none for the first free one")
    return options


def serve(options: argparse.Namespace) -> None:
    """Blocks until it is stopped."""
    gc.disable()  # what is imported stays: to look through it again and again takes a fifth of the start
    import gradio as gr

    from . import server
    from .app import build
    from .hub import fetch
    from .runs import Runs
    from .workspace import Workspace

    gc.freeze()
    gc.enable()
    workspace = Workspace(Runs(options.runs, fetch=functools.partial(fetch, login=options.login)))
    demo = build(workspace)
    _, url, _ = demo.launch(
        prevent_thread_lock=True,
        quiet=True,
        server_name=options.host,
        server_port=options.port,
        share=False,
        ssr_mode=False,
        theme=gr.themes.Base(
            font=["IBM Plex Sans", "system-ui", "sans-serif"], font_mono=["IBM Plex Mono", "ui-monospace", "monospace"]
        ),
        app_kwargs=server.app_kwargs(__version__, workspace, server.hosts_of(options.host)),
        footer_links=[],
        run_history=False,
        state_session_capacity=SESSIONS,
        max_threads=THREADS,
        enable_monitoring=False,
        _frontend=False,  # else Gradio asks for its own page, and a machine that trains may need more than its 3 s
    )
    for folder in workspace.runs.awaited():
        print(f"{folder} holds no run yet: it is shown as soon as one is written there")
    print(f"Open {url} (Ctrl-C ends it)", flush=True)
    workspace.warm()
    demo.block_thread()
