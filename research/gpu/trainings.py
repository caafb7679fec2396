"""One training of the check: trained, killed on its way, resumed, verified, and looked at."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from gpu.modes import KILL_AFTER, MODES, STEPS, Mode, flags_of
from gpu.work import PartFailed, Work
from lab import training
from lab.gpu_memory import peak
from openrlhf_ebpo.files import read_json_lines
from openrlhf_ebpo.run.run_log import read_metrics, read_run
from openrlhf_ebpo.upstream.replacements import SEAMS

MAX_STALE_IN_A_ROW = 1  # one may be an outlier; weights that do not arrive stay old
CORES = 8  # of a node; more than there may be, since Ray only counts them
WARM_UP = 5  # steps, in which kernels are compiled and caches filled
PREPARE = """
import sys
from pathlib import Path
from openrlhf_ebpo.quickstart.stages import preparation, run_stages
run_stages(preparation(Path(sys.argv[1])))
"""  # does nothing if the model exists


def train(work: Work, name: str) -> dict:
    """Return facts for the report.

    Raises:
        PartFailed: something does not hold; its message says what.
    """
    mode, flags = MODES[name], flags_of(name, work.model, work.output)
    words, run_dir = training.command(flags), Path(flags["logger.run_dir"])
    work.run([sys.executable, "-c", PREPARE, str(work.model)], OMP_NUM_THREADS="1")
    shutil.rmtree(work.output, ignore_errors=True)  # of a training that was interrupted
    with peak() as memory, ray_for(work, mode) as ray:
        environment = {"OMP_NUM_THREADS": "1", **ray}
        if mode.killed:
            kill_midway(work, words, run_dir, environment)
        work.run(words, **environment)
        work.run([sys.executable, "-m", "openrlhf_ebpo.cli.verify", str(run_dir)])
    found = facts(run_dir, work.cpu) | memory | {"placement": placement(work, mode)}
    if wrong := problems(found, mode, work.cpu):
        raise PartFailed("; ".join(wrong))
    return found


@contextlib.contextmanager
def ray_for(work: Work, mode: Mode) -> Iterator[dict[str, str]]:
    """The environment of the command: its own Ray, or two nodes where GPUs are too few."""
    if work.gpus >= mode.gpus:
        yield {"RAY_ADDRESS": "local"}
        return
    with two_nodes() as address:
        yield {"RAY_ADDRESS": address}


@contextlib.contextmanager
def two_nodes() -> Iterator[str]:
    """Start two Ray nodes with the same one GPU, and give the cluster's address.

    OpenRLHF asks Ray for one GPU for the trainer and one for each engine, and NCCL refuses two ranks of one machine on
    one GPU. Two nodes have a GPU each, and NCCL takes the nodes for two machines (NCCL_HOSTID): weights then go over a
    socket.
    """
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_worker_niceness", "0")
    nodes = Cluster()
    try:
        for number in range(2):
            variables = {"NCCL_HOSTID": f"node-{number}"}
            logging.getLogger("ray").setLevel(logging.WARNING)
            nodes.add_node(num_cpus=CORES, num_gpus=1, dashboard_agent_listen_port=0, env_vars=variables)
        yield nodes.address
    finally:
        nodes.shutdown()


def placement(work: Work, mode: Mode) -> str:
    if mode.gpus == 1:
        return "one GPU, shared"
    return "a GPU each" if work.gpus >= mode.gpus else "one GPU, as two Ray nodes: weights over a socket"


def kill_midway(work: Work, words: Sequence[str], run_dir: Path, environment: dict[str, str]) -> None:
    """kill -9 for the driver, once there is a checkpoint and a step after it. Its supervisor clears up, and fails.

    Raises:
        PartFailed: the training has ended before that.
    """
    with work.started(words, **environment) as process:
        work.wait(lambda: is_under_way(run_dir) or process.poll() is not None, pause=0.05)
        if process.poll() is not None:
            raise PartFailed(f"the training ended with status {process.returncode} before it could be killed")
        driver_of(process.pid).kill()
        work.wait(lambda: process.poll() is not None)
    if process.returncode != 1:
        raise PartFailed(f"the killed training ended with status {process.returncode}, and not with 1")


def is_under_way(run_dir: Path) -> bool:
    steps = [row["step"] for row in read_metrics(run_dir)]
    return bool(steps and steps[-1] >= KILL_AFTER and read_json_lines(run_dir / "checkpoints.jsonl"))


def driver_of(supervisor: int) -> psutil.Process:
    """Raises PartFailed where it is gone."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(supervisor).children():
            if "openrlhf_ebpo.cli.train_ppo_ray" in child.cmdline():
                return child
    raise PartFailed("the training's driver is not there to be killed")


def facts(run_dir: Path, cpu: bool) -> dict:
    """Read a run directory."""
    run, rows = read_run(run_dir) or {}, [row for row in read_metrics(run_dir) if "rollout/reward_mean" in row]
    own_rows = {seam.label for seam in SEAMS}
    return {
        "status": run.get("status"),
        "steps": [row["step"] for row in rows],
        "resumed": len(run.get("resumed", [])),
        "seconds_a_step": step_seconds(rows),
        "reward": [mean(rows[:5], "rollout/reward_mean"), mean(rows[-5:], "rollout/reward_mean")],
        "kl_per_step": mean(rows, "policy/kl_per_step"),
        "vllm_kl": largest(rows, "vllm_kl"),
        "mismatch": mismatch(rows),
        "stale_in_a_row": stale_in_a_row(rows),
        "rows_of_the_cpu_backend": sum(label not in own_rows for label in run.get("seams", [])),
        "versions": run.get("versions", {}),
    }


def mismatch(rows: Sequence[dict]) -> dict[str, float]:
    """Of each metric mismatch/… its worst step: the smallest effective sample size, the largest of all else."""
    names = sorted({name for row in rows for name in row if name.startswith("mismatch/")})
    return {name: (min if name.startswith("mismatch/ess") else max)(values_of(rows, name)) for name in names}


def stale_in_a_row(rows: Sequence[dict]) -> int:
    """The most consecutive steps that are marked as stale."""
    runs = itertools.groupby(bool(stale) for stale in values_of(rows, "mismatch/stale"))
    return max((len(list(run)) for stale, run in runs if stale), default=0)


def values_of(rows: Sequence[dict], name: str) -> list[float]:
    return [row[name] for row in rows if row.get(name) is not None]


def step_seconds(rows: Sequence[dict]) -> float | None:
    """Median from one logged step to the next, without the first steps and without the gap of a resume."""
    times = [row["time"] for row in rows]
    gaps = [after - before for before, after in itertools.pairwise(times)][WARM_UP:]
    return statistics.median(gaps) if gaps else None


def mean(rows: Sequence[dict], name: str) -> float | None:
    values = values_of(rows, name)
    return statistics.fmean(values) if values else None


def largest(rows: Sequence[dict], name: str) -> float | None:
    """By magnitude; NaN is larger than any."""
    values = values_of(rows, name)
    return max(values, key=lambda value: (value != value, abs(value))) if values else None


def problems(found: dict, mode: Mode, cpu: bool) -> list[str]:
    """One message for each thing that does not hold."""
    wrong = []
    if found["status"] != "complete" or found["steps"] != list(range(1, STEPS + 1)):
        wrong.append(f"the run is {found['status']}, with steps {found['steps']}, and not complete with {STEPS}")
    if mode.killed and not found["resumed"]:
        wrong.append("run.json knows of no resume")
    if not found["kl_per_step"]:
        wrong.append("the policy does not change: policy/kl_per_step is 0 or missing")
    if found["vllm_kl"] is None:
        wrong.append("vllm_kl is missing: trainer and vLLM were not compared")
    elif mode.largest_kl is not None and not abs(found["vllm_kl"]) <= mode.largest_kl:  # NaN too
        wrong.append(f"trainer and vLLM differ: vllm_kl reaches {found['vllm_kl']:.3g}, beyond {mode.largest_kl}")
    if found["stale_in_a_row"] > MAX_STALE_IN_A_ROW and mode.largest_kl is not None:
        wrong.append(
            f"mismatch/stale is set in {found['stale_in_a_row']} steps in a row: the engine may not have got "
            f"the weights"
        )
    if not cpu and found["rows_of_the_cpu_backend"]:
        wrong.append(f"{found['rows_of_the_cpu_backend']} replacements of the CPU backend were at work")
    return wrong
