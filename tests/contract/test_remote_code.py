"""Nothing imports a model's own code unless the command was told to, whatever it asks transformers for."""

import json
import pickle
import shutil
from pathlib import Path

import custom_code
import pytest
from forks import Fork

from openrlhf_ebpo import model_folder
from openrlhf_ebpo.cli import train_ppo_ray
from openrlhf_ebpo.quickstart import tiny_model

PROBE = """
import json, sys
from openrlhf_ebpo import extension
extension.trust_models(sys.argv[1] == "True")
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer, GenerationMixin
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.generation.utils import get_class_in_module
from openrlhf.utils.utils import get_tokenizer
from vllm.config import ModelConfig
from vllm.transformers_utils.dynamic_module import try_get_class_from_dynamic_module
def outcome(call):
    try:
        found = call()
        return getattr(found, "__name__", type(found).__name__)
    except Exception as error:
        return type(error).__name__
own, native = sys.argv[2:]
ways = dict(
    config=lambda: AutoConfig.from_pretrained(own, trust_remote_code=True),
    config_unasked=lambda: AutoConfig.from_pretrained(own),  # transformers would ask at the terminal
    model=lambda: AutoModelForCausalLM.from_pretrained(own, trust_remote_code=True),
    tokenizer=lambda: AutoTokenizer.from_pretrained(native, trust_remote_code=True),
    upstreams_tokenizer=lambda: get_tokenizer(native, None),
    by_name=lambda: get_class_from_dynamic_module("own.OwnConfig", own),
    in_module=lambda: get_class_in_module("OwnConfig", own + "/own.py"),
    vllm=lambda: type(ModelConfig(own, trust_remote_code=True, dtype="bfloat16").hf_config),
    vllms_class=lambda: try_get_class_from_dynamic_module("own.OwnForCausalLM", own, True, warn_on_fail=False),
    native_model=lambda: AutoModelForCausalLM.from_pretrained(native, trust_remote_code=True),
    native_refused=lambda: AutoModelForCausalLM.from_pretrained(native, trust_remote_code=False),
    generate=lambda: AutoModelForCausalLM.from_pretrained(native, trust_remote_code=True).generate.__class__,
)
print(json.dumps({name: outcome(call) for name, call in ways.items()}))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> list[Path]:
    """One that transformers does not know, and one that it knows, both with code; the second also has a `generate`."""
    folder = tmp_path_factory.mktemp("models")
    custom_code.own_model(folder / "own")
    tiny_model.build(folder / "native", ["abc"], hidden_size=32, intermediate_size=64)
    both = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    tokenizer = {"auto_map": {"AutoTokenizer": [None, "own.OwnTokenizer"]}}
    marker = custom_code.bring_code(folder / "native", {"auto_map": both}, tokenizer)
    (folder / "native" / "custom_generate").mkdir()
    generate = f"open({str(marker)!r}, 'a').close()\ndef generate(model, *args, **kwargs): ...\n"
    (folder / "native" / "custom_generate" / "generate.py").write_text(generate)
    return [folder / "own", folder / "native"]


@pytest.fixture
def output_of(tmp_path, monkeypatch):
    """Run a script in a process forked from this one, in which every row is applied; returns what it prints."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    return lambda script, *argv: Fork(tmp_path / "log", script, *argv).end()


@pytest.fixture
def outcomes(models, tmp_path, output_of):
    (tmp_path / "probe.py").write_text(PROBE)
    return lambda trust: json.loads(output_of(tmp_path / "probe.py", trust, *models).splitlines()[-1])


def markers(models: list[Path]) -> list[Path]:
    return [path for path in models[0].parent.iterdir() if path.name.endswith("has run code")]


def test_no_way_leads_to_a_models_code_and_what_transformers_knows_loads_without(models, outcomes):
    found = outcomes(False)
    assert markers(models) == []
    refused = ("config", "config_unasked", "model", "by_name", "in_module")
    assert {found.pop(name) for name in refused} == {"RemoteCodeError"}
    assert found.pop("vllm") == "ValidationError" and found.pop("vllms_class") == "NoneType"
    assert found.pop("native_model") == found.pop("native_refused") == "Qwen3ForCausalLM"
    assert found.pop("generate") == "method" and set(found.values()) <= {"TokenizersBackend", "Qwen2Tokenizer"}


def test_with_the_flag_they_do_as_without_this_project(models, outcomes):
    found = outcomes(True)
    assert len(markers(models)) == 2
    assert found["config"] == found["config_unasked"] == found["by_name"] == found["vllm"] == "OwnConfig"
    assert found["model"] == found["vllms_class"] == found["native_model"] == "OwnForCausalLM"
    assert found["tokenizer"] == found["upstreams_tokenizer"] == "OwnTokenizer"
    assert found["native_refused"] == "Qwen3ForCausalLM"  # a caller that wants none gets none


def test_with_the_flag_a_dry_run_accepts_the_model(models, tmp_path, output_of):
    (tmp_path / "q.jsonl").write_text('{"prompt": "1+1", "label": "2"}\n')
    (tmp_path / "reward.py").write_text("def reward_func(queries, prompts, labels):\n    return {'rewards': 1.0}\n")
    flags = {"actor.model_name_or_path": models[0], "data.prompt_dataset": tmp_path / "q.jsonl"}
    flags |= {"data.input_key": "prompt", "data.max_len": 64, "reward.remote_url": tmp_path / "reward.py"}
    flags |= {"vllm.num_engines": 1, "ckpt.output_dir": tmp_path / "out", "ckpt.path": tmp_path / "ckpt"}
    flags |= {"rollout.batch_size": 32, "rollout.n_samples_per_prompt": 4, "advantage_estimator": "ebpo"}
    argv = [str(part) for name, value in flags.items() for part in (f"--{name}", value)]
    assert "dry run" in output_of(Path(train_ppo_ray.__file__), *argv, "--dry_run", "--trust_remote_code")


LOADS = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)
found = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True).state_dict()
whole = AutoModelForCausalLM.from_pretrained(sys.argv[2]).state_dict()
assert whole and all(torch.equal(whole[name], found[name]) for name in whole)
"""


class Marker:
    """Unpickled, it leaves a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_what_the_check_of_a_model_lets_through_loads_without_its_pickles_and_its_code(tmp_path, output_of):
    """The promise behind `model_folder.problems`: what lies next to the weights is never loaded, by transformers
    itself."""
    model, ran = tmp_path / "model", tmp_path / "has run"
    tiny_model.build(model, ["1+1=2"], hidden_size=16, intermediate_size=32)
    shutil.copytree(model, tmp_path / "whole")
    for name in ("pytorch_model.bin", "optimizer.pt", "training_args.bin"):
        (model / name).write_bytes(pickle.dumps(Marker(ran)))
    (model / "modeling_qwen3.py").write_text(f"open({str(ran)!r}, 'w')")
    custom_code.edit(model / "config.json", auto_map={"AutoModelForCausalLM": "modeling_qwen3.X"})
    assert model_folder.problems(model) == []
    (tmp_path / "loads.py").write_text(LOADS)
    output_of(tmp_path / "loads.py", model, tmp_path / "whole")
    assert not ran.exists()
    pickle.loads((model / "optimizer.pt").read_bytes())
    assert ran.exists()  # it would have
