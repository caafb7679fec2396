"""The processes of a training by kind, and what is left of them.

Whoever asks is the subreaper of all that it starts: what loses its parent becomes its child, so its descendants are
exactly the processes of its trainings.
"""

import contextlib
import ctypes
import os
import re

import psutil

KINDS = {  # what the process calls itself
    "driver": r"(?s)^(?!.*/supervisor/__main__\.py ).*-m openrlhf_ebpo\.cli\.train_ppo_ray ",  # the supervisor can start it again
    "supervisor": r"/supervisor/__main__\.py ",
    "controller": r"^ray::PPOTrainerAsync",
    "trainer": r"^ray::EBPOTrainer",
    "policy": r"^ray::PolicyWithPrior",
    "rollout": r"^ray::(\w*RolloutActor|EngineTrustsAsAsked)",
    "engine": r"VLLM::EngineCore",
    "generator": r"^ray::(GenerateSamplesActor|AskingForWeights)",  # upstream's, and ours over it
    "raylet": r"/raylet/raylet ",
    "gcs": r"/gcs/gcs_server ",
    "reward": r"rewards[./]worker",
    "pusher": r"openrlhf_ebpo\.hub\.pusher",
}
ASYNC_ONLY = ("controller", "generator")
PR_SET_CHILD_SUBREAPER = 36
spared: set[int] = set()  # processes of the campaign's own


def become_subreaper() -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[psutil.Process]:
    """All that live, and were started by this process or by those."""
    reap()
    started = psutil.Process().children(recursive=True)
    return [process for process in started if process.pid not in spared and lives(process)]


def reap() -> None:
    """Zombies that became children when their parent died. Those that `subprocess` waits for are left to it: they have a
    Popen, which is asked before this is called."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error, ChildProcessError):
            if child.status() == psutil.STATUS_ZOMBIE and child.pid not in reap.awaited:
                os.waitpid(child.pid, os.WNOHANG)


reap.awaited = set()


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) + " "
    except psutil.Error:
        return ""


def of_kind(kind: str, processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if re.search(KINDS[kind], words(process))]


def kind_of(process: psutil.Process) -> str:
    text = words(process)
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, text)), text[:60].strip() or "?")


def marked(name: str, value: str) -> list[psutil.Process]:
    """Processes of this machine with that variable in the environment they were started with."""
    wanted, found = f"{name}={value}".encode(), []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error), open(f"/proc/{process.pid}/environ", "rb") as environment:
            if wanted in environment.read().split(b"\0") and lives(process):
                found.append(process)
    return found
