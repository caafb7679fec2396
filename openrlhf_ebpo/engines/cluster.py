"""Run Ray for one command: start it or join it, with the seams in every worker, and leave nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import signal
from collections.abc import Collection, Iterator
from pathlib import Path

import psutil

from openrlhf_ebpo import __version__
from openrlhf_ebpo.command import interrupt_once, interrupted_once
from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.upstream import remote_code
from openrlhf_ebpo.upstream.check import DRIVERS_RELEASE, DRIVERS_VERSION, installed_release
from openrlhf_ebpo.upstream.stack import is_cpu_stack

SHUTDOWN_SECONDS = 10
NAMESPACES = ("pid", "net", "mnt")  # of a container that shares none of them nothing can be joined
NICENESS = "RAY_worker_niceness"  # Ray's workers, which do all the work, would be 15 levels nicer than the command
# Workers of a cluster have the environment of its `ray start`; these go with the job. No secrets: the dashboard shows
# them.
PASSED = re.compile(
    r"(OPENRLHF_EBPO|NCCL|VLLM)_\w+|PYTORCH_(CUDA_)?ALLOC_CONF|OMP_NUM_THREADS|(HF_HUB|TRANSFORMERS)_OFFLINE"
)
NOT_PASSED = {"NCCL_HOSTID", "VLLM_HOST_IP", "VLLM_API_KEY"}  # of a node; a secret
START_TIMED_OUT = "The current node timed out during startup"
# Ray's GCS would keep a record of every task, for `ray timeline` and the dashboard: 14 MB in 100 small steps.
# Workers have the setting from the GCS; a cluster of `ray start` keeps its own.
OWN_CLUSTER = {"include_dashboard": False, "_system_config": {"task_events_report_interval_ms": 0}}
FEWER_IN_TRAINING = (
    "ask for fewer with --actor.num_gpus_per_node, --ref.num_gpus_per_node, --vllm.num_engines, or share them with "
    "--train.colocate_all"
)


class ClusterError(ReportedError, RuntimeError):
    """The Ray cluster cannot be used for this run; the message says why, and what is missing."""


@contextlib.contextmanager
def ray_with(gpus: int, fewer: str, environment: dict[str, str] | None = None) -> Iterator[None]:
    """Bring Ray up with enough GPUs, inside; it is shut down (or disconnected from) at exit, also after Ctrl-C.

    Joins the cluster of RAY_ADDRESS (`ray job submit` sets it), or of this user's `ray start`; otherwise starts one.

    Args:
        gpus: how many are needed, with one CPU each; on a machine without CUDA they are logical resources of Ray.
        fewer: for the error message, how the user asks for fewer.
        environment: more variables for the workers, where neither the job nor the user has set them.

    Raises:
        ClusterError: the cluster has too few GPUs, or a job's runtime environment clashes with ours.
    """
    import ray

    with interrupted_once():
        others = set(psutil.Process().children())
        started: set[psutil.Process] = set()
        try:
            _connect(gpus, runtime_env(environment))
            started = set(psutil.Process().children()) - others
            interrupt_once()  # ray.init installs a handler that exits at once
            check_resources(gpus, ray.cluster_resources(), ray.available_resources(), fewer)
            yield
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave workers behind
            below = [process for process in started if process.is_running()]
            for process in list(below):
                with contextlib.suppress(psutil.Error):  # it has ended
                    below += process.children(recursive=True)
            ray.shutdown()
            # what outlives that is killed: vLLM's engine process has been seen to stay for minutes. These are Ray's
            # alone: the child that pushes to the Hub stays
            _, alive = psutil.wait_procs(below, timeout=SHUTDOWN_SECONDS)
            kill(alive)


def hardware(gpus: int) -> str:
    """Describe what this command works on, in a few words for its record: "8 GPUs (H100)", by Ray's names of all nodes,
    or the processor. Ray is up."""
    import ray

    if is_cpu_stack():
        names = re.findall(r"(?m)^model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
        return f"CPU ({names[0] if names else platform.machine()}, {os.cpu_count()} cores)"
    prefix = "accelerator_type:"
    names = sorted(name.removeprefix(prefix) for name in ray.cluster_resources() if name.startswith(prefix))
    return f"{gpus} GPU{'s' * (gpus != 1)}" + (f" ({', '.join(names)})" if names else "")


def _connect(gpus: int, environment: dict) -> None:
    import ray

    if ray.is_initialized():
        raise ClusterError(
            "Ray is already up in this process, so its workers lack the seams: call ray.shutdown() first"
        )
    try:
        if address := address_to_join():
            ray.init(address=address, runtime_env=environment)
        else:
            # upstream reserves one CPU for every GPU
            size = {"num_gpus": gpus, "num_cpus": max(os.cpu_count(), gpus + 1)} if is_cpu_stack() else {}
            start_node(address="local", runtime_env=environment, **OWN_CLUSTER, **size)
    except ValueError as error:
        if "runtime env" not in str(error):
            raise
        raise ClusterError(
            f"the job's runtime environment sets something that openrlhf_ebpo must set in every worker ({error}). "
            "Leave `worker_process_setup_hook` out of --runtime-env-json."
        ) from error


def start_node(again: bool = True, **how) -> None:
    """Start Ray on this machine. Its limit of 30 s for that is fixed in its code; one more try is given.

    Raises:
        ClusterError: it took too long twice.
    """
    import ray

    os.environ.setdefault(NICENESS, "0")
    before = set(psutil.Process().children(recursive=True))
    try:
        ray.init(**how)
    except Exception as error:
        if START_TIMED_OUT not in str(error):
            raise
        ray.shutdown()
        kill(set(psutil.Process().children(recursive=True)) - before)  # Ray leaves what it could not wait for
        if not again:
            raise ClusterError(
                "Ray did not start within 30 s, twice: this machine is overloaded. Repeat the command when it "
                "is less busy"
            ) from error
        print("Ray did not start within 30 s, as this machine is busy: trying once more", flush=True)
        start_node(again=False, **how)


def address_to_join() -> str | None:
    """Return the address to join, or None: RAY_ADDRESS decides ("local": None), else this user's last `ray start` on
    this machine, if a raylet of it is alive.

    Of a Ray that a program has begun for itself (`ray.init()`) Ray writes no address file, and such a Ray ends with its
    program. The file may be stale, another user's, or mounted from outside of this container.
    """
    from ray._private.services import find_bootstrap_address

    if address := os.environ.get("RAY_ADDRESS"):
        return None if address == "local" else "auto"

    try:
        address = find_bootstrap_address(None)
    except OSError:
        return None
    return address if address and any(address == gcs_address(each) for each in psutil.process_iter()) else None


def gcs_address(process: psutil.Process) -> str | None:
    """Return the address of the cluster whose raylet `process` is; None for other processes, users and containers."""
    try:
        command = process.cmdline()
        if not command or os.path.basename(command[0]) != "raylet" or process.uids().real != os.getuid():
            return None
        if any(
            os.readlink(f"/proc/{process.pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}") for kind in NAMESPACES
        ):
            return None
    except (psutil.Error, OSError):
        return None
    return next((argument.partition("=")[2] for argument in command if argument.startswith("--gcs-address=")), None)


def runtime_env(environment: dict[str, str] | None = None) -> dict:
    """Return hook and environment of all workers. What a job or the user has set already is left as it is."""
    variables = {
        "TOKENIZERS_PARALLELISM": "true",
        "NCCL_DEBUG": "WARN",
        "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",
        **(environment or {}),
    }
    if is_cpu_stack():
        from openrlhf_ebpo.upstream.cpu import WORKER_ENV

        variables |= WORKER_ENV
    variables = {name: os.environ.get(name, default) for name, default in variables.items()}
    variables |= {k: v for k, v in os.environ.items() if PASSED.fullmatch(k) and k not in NOT_PASSED}
    variables |= {DRIVERS_RELEASE: installed_release(), DRIVERS_VERSION: __version__}
    job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")).get("runtime_env", {})
    set_by_job = job.get("env_vars", {})
    return {
        "worker_process_setup_hook": remote_code.hook(),
        "env_vars": {name: value for name, value in variables.items() if name not in set_by_job},
    }


def check_resources(needed: int, found: dict[str, float], free: dict[str, float], fewer: str) -> None:
    """Check the cluster's size, one CPU per GPU: upstream waits forever for a placement group that does not fit. Print
    a line if another job holds GPUs of it: upstream waits for them silently.

    Raises:
        ClusterError: there are too few GPUs or CPUs.
    """
    gpus, cpus = found.get("GPU", 0), found.get("CPU", 0)
    if gpus >= needed and cpus >= needed:
        if (left := free.get("GPU", 0)) < needed:
            print(
                f"{left:g} of the {needed} GPUs that this run needs are free in the Ray cluster that it has joined: it "
                "waits until other jobs end. (Ctrl-C, and RAY_ADDRESS=local in front of the command, for a private "
                "Ray.)",
                flush=True,
            )
        return
    remedy = (
        f"start it with `ray start --head --num-gpus={needed} --num-cpus={needed + 1}` (on a machine without "
        "CUDA they are logical resources)"
        if is_cpu_stack()
        else f"add nodes, or {fewer}"
    )
    raise ClusterError(
        f"this run needs {needed} GPUs and as many CPUs, and the Ray cluster has {gpus:g} GPUs and {cpus:g} "
        f"CPUs: {remedy}"
    )


def kill(processes: Collection[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=3)
