"""Run one of our commands in another process: its output in a log, a bar that shows its progress."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from openrlhf_ebpo.command import interrupted_once
from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.run.run_log import read_metrics

ENDING = (signal.SIGINT, signal.SIGTERM)


def launch(command: str, flags: dict, log: Path, progress: Callable[[], None] = lambda: None) -> None:
    """Run it, its output appended to `log`. Ctrl-C reaches it, and it is waited for.

    Raises:
        ReportedError: its exit status is not 0; with the end of the log.
    """
    argv = [sys.executable, "-m", f"openrlhf_ebpo.cli.{command}"]
    for flag, value in flags.items():
        argv += [f"--{flag}"] if value is True else [f"--{flag}", str(value)]
    log.parent.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment.setdefault("OMP_NUM_THREADS", "1")  # so small a model gains nothing from threads, and waits for them
    with open(log, "a") as output, interrupted_once():  # SIGTERM too: it would leave the command alone
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # until there is a process to stop
        process = subprocess.Popen(
            argv,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # as process_group=0, which Python 3.10 lacks
            preexec_fn=_end_on_signals,
        )
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
            while process.poll() is None:
                progress()
                time.sleep(0.5)
        finally:
            stop(process)
    if process.returncode:
        tail = "\n".join(log.read_text(errors="replace").replace("\r", "\n").splitlines()[-25:])
        raise ReportedError(f"{command} failed (exit status {process.returncode}). The end of {log}:\n{tail}")


def _end_on_signals() -> None:
    """Restore signals in the new process: a shell's background job ignores SIGINT, which `stop` sends."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def stop(process: subprocess.Popen) -> None:
    """Interrupt a command that still runs, and wait until it has cleaned up behind itself."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def show_progress(bar: tqdm, run_dir: Path) -> None:
    """Move the bar; if it is disabled (no terminal), print a line every tenth step. Both show the time left."""
    metrics = read_metrics(run_dir)
    if not metrics or metrics[-1]["step"] <= bar.n:
        return
    step, reward = metrics[-1]["step"], f"reward {metrics[-1]['rollout/reward_mean']:.2f}"
    first, last, left = metrics[-11:][0], metrics[-1], ""
    if first is not last and step < bar.total:
        pace = (last["time"] - first["time"]) / (step - first["step"])  # of the latest ten steps
        left = f", about {duration(pace * (bar.total - step))} left"
    if bar.disable and step // 10 > bar.n // 10:
        print(f"      step {step} of {bar.total}: {reward}{left}", flush=True)
    bar.n = step
    bar.set_description_str(f"      {reward}{left}")


def duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} s"
