"""A command joins the Ray of `ray start`, and never one that a program has begun for itself."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from openrlhf_ebpo.engines import cluster
from openrlhf_ebpo.train import machine

PRIVATE = (
    "import ray, sys; ray.init(num_cpus=3, num_gpus=0, include_dashboard=False); print('up', flush=True); "
    "sys.stdin.read()"
)
COMMAND = """
import ray, subprocess
from openrlhf_ebpo.engines.cluster import ray_with
with ray_with(1, ""):
    child = subprocess.Popen(["sleep", "100"])  # such as the one that pushes to the Hub
    print("joined", ray.get_runtime_context().gcs_address, flush=True)
assert child.poll() is None, "the command's own child was ended with Ray"
child.kill()
"""


@pytest.fixture
def folder(monkeypatch):
    """Ray's own, with a short name, as sockets are in it. All that runs with it is ended."""
    path = tempfile.mkdtemp(prefix="ray")
    monkeypatch.setenv("RAY_TMPDIR", path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield Path(path)
    left = [process for process in psutil.process_iter() if is_below(process, path)]
    cluster.kill(left)
    shutil.rmtree(path, ignore_errors=True)


def is_below(process: psutil.Process, path: str) -> bool:
    try:
        return process.environ().get("RAY_TMPDIR") == path and process.pid != os.getpid()
    except psutil.Error:
        return False


def joined_by_a_command() -> str:
    done = subprocess.run([sys.executable, "-c", COMMAND], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("joined "))


def addresses(path: Path) -> set[str]:
    """Of the raylets whose sessions are below the folder."""
    raylets = [each for each in psutil.process_iter() if is_below(each, str(path)) and each.name() == "raylet"]
    return {address for each in raylets if (address := cluster.gcs_address(each))}


def test_a_ray_that_a_program_has_begun_for_itself_is_not_joined(folder):
    command = [sys.executable, "-c", PRIVATE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert any(line == "up\n" for line in program.stdout)
            (theirs,) = addresses(folder)
            assert cluster.address_to_join() is None
            assert joined_by_a_command() != theirs
            (finding,) = machine.ray()
            assert "a training starts a private Ray" in finding.found and finding.remedy is None
        finally:
            program.kill()


def test_the_cluster_of_ray_start_is_joined_while_it_lives(folder):
    start = [Path(sys.executable).with_name("ray"), "start", "--head", "--port=0", "--num-gpus=2", "--num-cpus=3"]
    start += ["--include-dashboard=false", "--disable-usage-stats"]
    done = subprocess.run(start, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    (ours,) = addresses(folder)
    assert cluster.address_to_join() == ours == joined_by_a_command()
    assert [each.found for each in machine.ray()] == [f"a training joins the Ray cluster at {ours}"]
    cluster.kill([process for process in psutil.process_iter() if is_below(process, str(folder))])
    assert (folder / "ray" / "ray_current_cluster").exists() and cluster.address_to_join() is None
