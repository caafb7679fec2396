"""A model's own code in the processes of a cluster: never without the flag; with it, commands run to their end."""

import json
import os
import subprocess
import sys

import pytest
from custom_code import own_model

IN_A_WORKER = """
import os, sys
import ray
from openrlhf_ebpo import extension
from openrlhf_ebpo.engines.cluster import ray_with
def load(model):
    from openrlhf.models import Actor
    try:
        return type(Actor(model, attn_implementation="eager").model).__name__
    except Exception as error:
        return f"{type(error).__name__}: {error}"
for trust in (False, True):
    extension.trust_models(trust)
    with ray_with(1, "nothing"):
        print(ray.get(ray.remote(load).remote(sys.argv[1])))
    print(os.path.exists(sys.argv[2]))
"""


@pytest.fixture
def environment(cluster) -> dict[str, str]:
    """The variable is what somebody might try from outside."""
    own = {"OMP_NUM_THREADS": "1", "RAY_ADDRESS": cluster.address, "OPENRLHF_EBPO_TRUST_REMOTE_CODE": "1"}
    return {**os.environ, **own}


@pytest.fixture
def run(environment, tmp_path):
    def done(*argv: str) -> str:
        command = [sys.executable, "-W", "ignore", *map(str, argv)]
        result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-6000:]
        return result.stdout

    return done


def test_a_worker_of_ray_runs_a_models_code_only_if_the_command_was_told_to(run, tmp_path):
    marker = own_model(tmp_path / "own")
    refused, touched, *others = run("-c", IN_A_WORKER, tmp_path / "own", marker).splitlines()
    assert refused.startswith("RemoteCodeError: ") and "--trust_remote_code runs it" in refused and touched == "False"
    assert [line for line in others if "pid=" not in line] == ["OwnForCausalLM", "True"]  # workers print too


@pytest.mark.nightly  # daily: contract/test_remote_code.py
def test_with_the_flag_a_warm_start_trains_such_a_model(run, tmp_path):
    marker = own_model(tmp_path / "own")
    (tmp_path / "data.jsonl").write_text('{"input": "1+1", "output": "= 2"}\n' * 4)
    flags = {"model.model_name_or_path": tmp_path / "own", "data.dataset": "data.jsonl", "data.output_key": "output"}
    flags |= {"train.batch_size": 4, "train.micro_batch_size": 4, "train.max_epochs": 1}
    flags |= {"ckpt.output_dir": tmp_path / "out", "ckpt.path": tmp_path / "ckpt"}
    argv = [str(part) for name, value in flags.items() for part in (f"--{name}", value)]
    run("-m", "openrlhf_ebpo.cli.train_sft", *argv, "--trust_remote_code")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["OwnForCausalLM"] and marker.exists()
