"""A command under supervision whose training is a sleep: `supervised_command.py MODE[+orphan] FOLDER [STALL_MINUTES
LIMIT]`."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from openrlhf_ebpo.command import PAUSED, error_exit
from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.run.heartbeat import END_FILE, GENERATING, STARTING, Heartbeat, end_requested_by
from openrlhf_ebpo.run.run_settings import RunSettings
from openrlhf_ebpo.train.supervisor.restarts import SupervisionSettings
from openrlhf_ebpo.train.supervisor.watch import under_supervision

(mode, _, orphan), folder = sys.argv[1].partition("+"), Path(sys.argv[2])
stall_minutes, stall_limit = [float(word) for word in sys.argv[3:]] or [10.0, 0.0]
ARGS = {
    "actor": {"model_name_or_path": "m"},
    "algo": {"advantage": {"estimator": "ebpo"}},
    "data": {"prompt_dataset": "d"},
    "train": {"seed": 7},
    "ckpt": {"path": str(folder / "ckpt"), "load_step": None, "attempt": "a"},
}
SUPERVISION = SupervisionSettings(
    stall_minutes, stall_limit, int(os.environ.get("MAX_RESTARTS", 0)), save_steps=5, saves=mode != "saves_nothing"
)


def fork_once(fork=os.fork) -> int:
    """The machine has no memory for a second driver."""
    os.fork = fail_to_fork
    return fork()


def fail_to_fork() -> int:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def leave() -> None:
    """Start a process whose parent ends, as Ray's raylet leaves its workers."""
    code = f"import os, time; print(os.getpid(), file=open({str(folder / 'pid')!r}, 'a')); time.sleep(600)"
    command = [sys.executable, "-c", f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {code!r}])"]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(command, check=True, **silent)


@error_exit()
def main() -> None:
    if mode == "cannot_fork":
        os.fork = fork_once
    supervisor = under_supervision()
    if mode == "refused" or (mode == "refused_later" and (folder / "run").exists()):
        supervisor.end("failed", "--flag is wrong", True)
        raise UsageError("--flag is wrong")
    if mode == "starts_late" and (folder / "run").exists() and not (folder / "busy").exists():
        (folder / "busy").touch()
        supervisor.end("failed", "ClusterError: Ray did not start", False)
        raise ReportedError("Ray did not start")
    if mode == "hangs_after_its_error":
        supervisor.end("failed", "ClusterError: Ray did not start", False)
        print("error: Ray did not start", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)  # as the supervisor does after END_SECONDS
    settings = RunSettings(folder / "run", folder / "ckpt", name="r", resume=True)
    if orphan:
        leave()
    again = (folder / "run").exists()
    if mode == "starts_ray":  # a process of that name
        gcs_server = folder / "gcs_server"
        shutil.copy(shutil.which("sleep"), gcs_server)
        subprocess.Popen([gcs_server, "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    supervisor.claim(settings, SUPERVISION, argv=[], args=ARGS)
    try:
        heart = Heartbeat(folder / "run")
        heart.report(*((STARTING,) if mode == "starts" else (GENERATING, "5 responses unfinished")), step=3)
        heart.write()
        print("ready", os.getpid(), flush=True)
        fails_first = mode in ("fails_once", "fails_then_waits", "starts_late")
        if mode in ("fails", "refused_later", "cannot_fork") or (fails_first and not again):
            raise ReportedError("no more from http://me:word@host")
        if mode == "asked_to_end" and not again:
            (folder / "run" / END_FILE).touch()
            raise ReportedError("no more from http://me:word@host")
        if mode == "talks":
            while True:
                print("a line", flush=True)
                time.sleep(0.01)
        while mode in ("waits", "fails_then_waits", "starts_ray", "starts", "saves_nothing"):
            time.sleep(1)
        while mode in ("saves", "asked_to_end") and not (asked_by := end_requested_by(folder / "run")):
            time.sleep(0.05)
        if mode == "vanishes":
            os._exit(0)
    except BaseException as error:
        kind = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        supervisor.end(kind, f"{type(error).__name__}: {error}", False)
        raise
    if mode in ("saves", "asked_to_end"):
        supervisor.end("paused", f"saved step 3 and ended, as {asked_by} asked", True)
        print("paused", file=sys.stderr, flush=True)  # an error where the terminal is gone
        sys.exit(PAUSED)
    supervisor.end("complete", None, False)


main()
