"""A cluster that is too small is an error; contract/test_placement.py has how many GPUs a run asks for."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import traceback
from pathlib import Path

import psutil
import pytest

from openrlhf_ebpo.engines import cluster
from openrlhf_ebpo.engines.cluster import ClusterError, check_resources
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.train.end import describe_cause


@pytest.mark.parametrize("found", [{"GPU": 2.0, "CPU": 64.0}, {"GPU": 8.0, "CPU": 3.0}, {"CPU": 64.0}, {}], ids=str)
def test_a_cluster_that_is_too_small_is_an_error_with_the_numbers(found):
    with pytest.raises(ClusterError) as error:
        check_resources(4, found, found, "")
    for part in ("needs 4 GPUs", f"{found.get('GPU', 0):g} GPUs", f"{found.get('CPU', 0):g} CPUs"):
        assert part in str(error.value)


@pytest.mark.parametrize(("free", "parts"), [(4.0, []), (1.0, ["1 of the 4 GPUs", "RAY_ADDRESS=local"])])
def test_a_run_that_has_to_wait_for_other_jobs_says_so(free, parts, capsys):
    check_resources(4, {"GPU": 4.0, "CPU": 4.0}, {"GPU": free}, "")
    out = capsys.readouterr().out
    assert bool(out) == bool(parts) and all(part in out for part in parts)


def test_a_sigterm_interrupts_though_ray_has_a_handler_of_its_own(monkeypatch):
    def connect(*_):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as ray.init does

    monkeypatch.setattr(cluster, "_connect", connect)
    for name in ("cluster_resources", "available_resources"):
        monkeypatch.setattr(f"ray.{name}", lambda: {"GPU": 1, "CPU": 2})
    before = signal.getsignal(signal.SIGTERM)
    outer = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a command in the background
    try:
        with pytest.raises(KeyboardInterrupt), cluster.ray_with(1, ""):
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is before and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, outer)


@pytest.fixture
def raylet():
    """A stand-in for a raylet: its name and its flag."""
    argv = ["raylet", "-c", "echo; sleep 600; :", "--gcs-address=192.0.2.1:6379"]
    pipes = {"stdout": subprocess.PIPE, "start_new_session": True}
    with subprocess.Popen(argv, executable="/bin/bash", **pipes) as process:
        process.stdout.readline()
        yield psutil.Process(process.pid)
        os.killpg(process.pid, signal.SIGKILL)


def test_what_ray_start_has_written_is_joined_where_a_raylet_of_it_lives(raylet, monkeypatch, tmp_path):
    """With any TMPDIR, which Ray reads too; the file stays when its cluster was killed."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert cluster.address_to_join() is None
    (tmp_path / "ray").mkdir()
    for written, joined in (("192.0.2.1:6379", "192.0.2.1:6379"), ("192.0.2.1:6380", None), ("", None)):
        (tmp_path / "ray" / "ray_current_cluster").write_text(written)
        assert cluster.address_to_join() == joined


def test_a_raylet_of_another_user_or_container_is_not_joined(raylet, monkeypatch):
    assert cluster.gcs_address(raylet) == "192.0.2.1:6379" and cluster.gcs_address(psutil.Process()) is None
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: raylet.uids().real + 1)
        assert cluster.gcs_address(raylet) is None
    for kind in cluster.NAMESPACES:
        with monkeypatch.context() as patch:
            patch.setattr(os, "readlink", lambda path, kind=kind: path if path.endswith(kind) else "same")
            assert cluster.gcs_address(raylet) is None


def test_ray_address_decides_before_what_is_found(monkeypatch):
    monkeypatch.setattr(cluster, "gcs_address", lambda process: pytest.fail("nothing is looked for"))
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert cluster.address_to_join() is None
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:6379")
    assert cluster.address_to_join() == "auto"


def test_exported_variables_reach_the_workers_but_for_secrets_and_those_of_a_node(monkeypatch):
    exported = ("NCCL_SOCKET_IFNAME", "VLLM_USE_V1", "PYTORCH_CUDA_ALLOC_CONF", "OMP_NUM_THREADS", "HF_HUB_OFFLINE")
    kept = ("NCCL_HOSTID", "VLLM_HOST_IP", "VLLM_API_KEY", "HF_TOKEN", "WANDB_API_KEY", "HOME")
    for name in exported + kept:
        monkeypatch.setenv(name, "x")
    passed = cluster.runtime_env()["env_vars"]
    assert {passed.get(name) for name in exported} == {"x"} and not passed.keys() & set(kept)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", '{"runtime_env": {"env_vars": {"OMP_NUM_THREADS": "2"}}}')
    assert "OMP_NUM_THREADS" not in cluster.runtime_env()["env_vars"], "Ray refuses what a job sets too"


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_busy_machine_gets_a_second_try(monkeypatch, failures, capsys):
    tries = []

    def init(**how):
        tries.append(how)
        if len(tries) <= failures:
            raise Exception(f"{cluster.START_TIMED_OUT}. This could happen because …")

    monkeypatch.setattr("ray.init", init)
    if failures < 2:
        cluster.start_node(num_gpus=3)
    else:
        with pytest.raises(ClusterError, match=r"this machine is overloaded\. Repeat"):
            cluster.start_node(num_gpus=3)
    assert tries == [{"num_gpus": 3}] * min(failures + 1, 2)
    assert ("trying once more" in capsys.readouterr().out) == (failures > 0)


def test_what_a_first_try_has_started_does_not_run_on_beside_the_second(monkeypatch, capsys):
    started = []

    def init(**_):
        started.append(psutil.Popen(["sleep", "600"]))
        if len(started) == 2:
            raise Exception(cluster.START_TIMED_OUT)

    monkeypatch.setattr("ray.init", init)
    init()  # what the command has started before is left alone
    try:
        cluster.start_node()
        assert [process.is_running() for process in started] == [True, False, True]
        assert "orphaned" not in capsys.readouterr().err
    finally:
        cluster.kill(started)


@pytest.mark.parametrize("given", [None, "7"])
def test_workers_of_a_private_ray_are_as_nice_as_the_command_unless_the_user_has_said_more(monkeypatch, given):
    monkeypatch.setenv(cluster.NICENESS, given or "")  # put back in the end
    if given is None:
        monkeypatch.delenv(cluster.NICENESS)
    found = []
    monkeypatch.setattr("ray.init", lambda: found.append(os.environ[cluster.NICENESS]))
    cluster.start_node()
    assert found == [given or "0"]


def test_the_words_of_rays_limit_are_still_rays():
    source = Path(importlib.util.find_spec("ray").origin).with_name("_private") / "node.py"
    assert (
        cluster.START_TIMED_OUT in source.read_text()
        and "--gcs-address=" in source.with_name("services.py").read_text()
    )


def failure(error: Exception) -> Exception:
    """As `ray.get` raises it: with Ray's colours and the traceback of the worker, and the error as its cause."""
    from ray.exceptions import RayTaskError

    try:
        raise error
    except Exception:
        return RayTaskError("fit", traceback.format_exc(), error, actor_repr="TrainingActor").as_instanceof_cause()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (failure(failure(ValueError("no such\n  thing"))), "ValueError: no such thing"),
        (failure(UsageError("--a is 1; give 2\n--b is 3; give 4")), "--a is 1; give 2\n--b is 3; give 4"),
        (AssertionError(), "AssertionError"),
        (KeyboardInterrupt(), "ended by a signal to the driver's process"),
    ],
    ids=str,
)
def test_the_cause_of_an_end_is_one_line_without_rays_traceback_and_colours(error, line):
    assert describe_cause(error) == line


def test_the_reason_that_an_actor_did_not_start_is_its_own_error():
    from ray.exceptions import ActorDiedError, RayTaskError

    try:
        raise ValueError("no licence")
    except ValueError as error:
        creation = RayTaskError("__init__", traceback.format_exc(), error, actor_repr="Engine")
    died = ActorDiedError(creation)
    assert "\x1b[36m" in str(died)
    assert describe_cause(died) == "a process of the training did not start, or died: ValueError: no licence"


def test_the_hardware_is_told_in_a_few_words_by_rays_names_of_all_nodes(monkeypatch):
    assert re.fullmatch(r"CPU \(.+, \d+ cores\)", cluster.hardware(2))
    monkeypatch.setattr(cluster, "is_cpu_stack", lambda: False)
    resources = {"CPU": 64.0, "GPU": 16.0, "accelerator_type:H100": 1.0, "accelerator_type:A100": 1.0}
    monkeypatch.setattr("ray.cluster_resources", lambda: resources)
    assert cluster.hardware(16) == "16 GPUs (A100, H100)"
    resources.clear()
    assert cluster.hardware(1) == "1 GPU"
