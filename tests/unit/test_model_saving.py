"""A model whose configuration or tokenizer OpenRLHF could not save at the end is refused before the start."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from openrlhf_ebpo.cli import train_sft
from openrlhf_ebpo.command import nested
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.quickstart import tiny_model
from openrlhf_ebpo.train import driver
from openrlhf_ebpo.train.model_check import MODEL, check_saving

GENERATION, TOKENIZER, CONFIG = "generation_config.json", "tokenizer_config.json", "config.json"
TRAVERSAL = {"chat_template": [{"name": "default", "template": "x"}, {"name": "../../up", "template": "y"}]}
BROKEN = [
    (GENERATION, {"temperature": 0.6, "do_sample": False}, "`temperature`"),
    (GENERATION, {"top_p": 0.9}, "`top_p`"),
    (GENERATION, {"early_stopping": True, "num_beams": 1}, "`early_stopping`"),
    (TOKENIZER, TRAVERSAL, "../../up"),
    (TOKENIZER, {"chat_template": {"default": 5}}, "must be str"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "model"
    tiny_model.build(folder, ["1+1=2"], hidden_size=16, intermediate_size=32)
    return folder


@pytest.fixture
def changed(model, tmp_path, monkeypatch):
    """Copies the model, with these values in one of its files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")

    def copy(file: str | None = None, values: dict | None = None) -> Path:
        shutil.copytree(model, tmp_path / "model")
        if file:
            path = tmp_path / "model" / file
            path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
        return tmp_path / "model"

    return copy


def check(folder: Path, has_adapter: bool = False) -> None:
    args = {MODEL: str(folder), "ds.lora.rank": int(has_adapter), "data.disable_fast_tokenizer": False}
    check_saving(nested(args), MODEL)


def save_as_the_end_does(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as target:
        AutoModelForCausalLM.from_pretrained(folder).save_pretrained(target)
        AutoTokenizer.from_pretrained(folder).save_pretrained(target)


@pytest.mark.parametrize(("file", "values", "key"), BROKEN)
def test_what_transformers_will_not_save_is_one_line_that_names_file_and_key(file, values, key, changed):
    folder = changed(file, values)
    with pytest.raises((ValueError, TypeError)):
        save_as_the_end_does(folder)
    with pytest.raises(UsageError) as error:
        check(folder)
    (line,) = str(error.value).splitlines()
    assert f"{folder}: {file}" in line and key in line and "cannot be saved" in line and "Correct the file" in line


def test_what_can_be_saved_passes_and_leaves_no_file(changed, tmp_path):
    folder = changed(GENERATION, {"temperature": 0.6, "do_sample": True, "unknown": 1})
    before = sorted(tmp_path.rglob("*"))
    check(folder)
    assert sorted(tmp_path.rglob("*")) == before


def test_settings_of_generation_are_read_from_config_json_where_that_is_the_only_file(changed):
    folder = changed(CONFIG, {"temperature": 0.6})
    (folder / GENERATION).unlink()
    with pytest.raises(ValueError, match="`temperature`"):
        save_as_the_end_does(folder)
    with pytest.raises(UsageError, match=r"config\.json \(settings of generation\) cannot be saved.*`temperature`"):
        check(folder)


def test_an_adapter_is_saved_without_settings_of_generation(changed):
    check(changed(GENERATION, {"temperature": 0.6}), has_adapter=True)


def test_a_file_that_cannot_be_loaded_is_named(changed):
    with pytest.raises(UsageError, match=r"generation_config\.json cannot be loaded \(.*max_new_tokens"):
        check(changed(GENERATION, {"max_new_tokens": -3}))


def lose_a_layer(folder: Path) -> None:
    """Leave a projection out of the weights, as an interrupted copy or conversion does."""
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "layers.1.mlp.up_proj" not in name}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("command", ["train", "train --dry_run", "sft"])
def test_commands_refuse_it_before_anything_starts(command, lost, changed, tmp_path, monkeypatch):
    """A model that cannot be saved, and one that lacks a weight: transformers would make it up, and vLLM refuse it."""
    said = "generation_config.json cannot be saved"
    if lost:
        said = "model.layers.1.mlp.up_proj.weight of [32, 16], which is missing"
        lose_a_layer(changed())
    else:
        changed(GENERATION, {"temperature": 0.6})
    (tmp_path / "q.jsonl").write_text('{"prompt": "1+1", "label": "2"}\n')
    (tmp_path / "reward.py").write_text("def reward_func(queries, prompts, labels):\n    return {'rewards': 1.0}\n")
    train = "--actor.model_name_or_path model --data.prompt_dataset q.jsonl --data.input_key prompt --data.max_len 64"
    train += " --reward.remote_url reward.py --vllm.num_engines 1 --rollout.batch_size 32 --ckpt.output_dir out"
    train += " --rollout.n_samples_per_prompt 4 --advantage_estimator ebpo --ckpt.path ckpt"
    sft = "--model.model_name_or_path model --data.dataset q.jsonl --data.input_key prompt --data.output_key label"
    for module, name in ((driver, "train"), (train_sft, "single_process_environment")):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("it has started"))
    main = train_sft.main if command == "sft" else driver.main
    argv = (sft if command == "sft" else train).split() + command.split()[1:]
    with pytest.raises(SystemExit) as ended:
        main([*argv, "--ckpt.output_dir", "out"])
    assert said in str(ended.value)
    assert len(str(ended.value).splitlines()) == 1 and not (tmp_path / "out").exists()
