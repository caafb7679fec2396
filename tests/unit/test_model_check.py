"""A model that does not go with the flags is refused by its config.json and tokenizer files alone."""

import copy
import json
from pathlib import Path

import pytest

from openrlhf_ebpo.command import nested
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub_models import local_folder
from openrlhf_ebpo.quickstart.tiny_model import build_tokenizer
from openrlhf_ebpo.train import model_check

ROOT = Path(__file__).parents[2]
PUBLISHED = json.loads((ROOT / "tests" / "data" / "model_configs.json").read_text())


@pytest.fixture
def config() -> dict:
    return copy.deepcopy(PUBLISHED["qwen3_8b"])


@pytest.fixture
def folder(tmp_path, config):
    """A model's folder without weights; write(**changes) puts its config.json there."""

    def write(**changes) -> Path:
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
        return tmp_path

    build_tokenizer(["1+1=2"]).save_pretrained(write())
    return write


@pytest.fixture
def args(tmp_path):
    """The flags that are looked at, all good: args(**{"data.max_len": 1})."""

    def build(**changes) -> dict:
        return {
            "actor.model_name_or_path": str(tmp_path),
            "data.max_len": 12288,
            "rollout.max_new_tokens": 8192,
            "data.apply_chat_template": False,
            "data.max_images_per_prompt": 0,
            "vllm.tensor_parallel_size": 1,
            "ds.tensor_parallel_size": 1,
            "ds.ring_attn_size": 1,
            "ds.ring_attn_head_stride": 1,
            "ds.param_dtype": "bf16",
            "actor.num_nodes": 1,
            "actor.num_gpus_per_node": 8,
            **changes,
        }

    return build


def check_model(values: dict) -> None:
    model_check.check_model(nested(values))


def refused(args: dict) -> str:
    with pytest.raises(UsageError) as error:
        check_model(args)
    return str(error.value)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_papers_models_pass_with_every_split_that_vllm_takes(name, tmp_path, folder, args):
    folder(**PUBLISHED[name])
    for split in (1, 2, 4, 8):
        check_model(args(**{"vllm.tensor_parallel_size": split}))


@pytest.mark.parametrize(
    ("changes", "flags", "said"),
    [
        (
            {},
            {"data.max_images_per_prompt": 8},
            ["--data.max_images_per_prompt is 8", "reads only text", "vision_config"],
        ),
        ({}, {"data.max_len": 40961}, ["--data.max_len is 40961", "40960", "max_position_embeddings"]),
        ({}, {"rollout.max_new_tokens": 12288}, ["--rollout.max_new_tokens is 12288", "--data.max_len 12288"]),
        ({}, {"vllm.tensor_parallel_size": 3}, ["--vllm.tensor_parallel_size is 3", "32 attention heads"]),
        (
            {"num_attention_heads": 24, "num_key_value_heads": 8},
            {"vllm.tensor_parallel_size": 12},
            ["--vllm.tensor_parallel_size is 12", "8 key-value heads"],
        ),
        ({}, {"ds.tensor_parallel_size": 16, "actor.num_nodes": 2}, ["--ds.tensor_parallel_size is 16", "8 key-value"]),
        ({}, {"ds.ring_attn_size": 2, "ds.ring_attn_head_stride": 3}, ["--ds.ring_attn_head_stride is 3", "8 key"]),
        ({}, {"ds.ring_attn_size": 3}, ["--ds.ring_attn_size 3", "8 GPUs"]),
        ({"architectures": ["Qwen3ForSequenceClassification"]}, {}, ["Qwen3ForSequenceClassification", "ForCausalLM"]),
        ({"architectures": ["T5ForConditionalGeneration"]}, {}, ["T5ForConditionalGeneration"]),
        ({}, {"data.apply_chat_template": True}, ["--data.apply_chat_template", "no chat template", "CHAT_TEMPLATE=0"]),
    ],
)
def test_what_cannot_work_is_named_with_flag_finding_and_remedy(changes, flags, said, folder, args):
    folder(**changes)
    message = refused(args(**flags))
    for words in said:
        assert words in message
    assert len(message.splitlines()) == 1


def test_weights_that_upstreams_engines_do_not_take_are_refused(args):
    assert "--ds.param_dtype fp16" in refused(args(**{"ds.param_dtype": "fp16", "actor.model_name_or_path": "a/b"}))


def test_all_problems_are_told_at_once(folder, args):
    folder(architectures=["BertModel"])
    assert len(refused(args(**{"data.max_len": 50000, "vllm.tensor_parallel_size": 5})).splitlines()) == 3


def test_a_folder_without_tokenizer(tmp_path, folder, args):
    for file in tmp_path.glob("tokenizer*"):
        file.unlink()
    assert "no tokenizer" in refused(args())


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("text", ["version https://git-lfs.github.com/spec/v1", "[1]"])
def test_a_file_that_is_something_else(name, text, tmp_path, folder, args):
    (tmp_path / name).write_text(text)
    message = refused(args(**{"data.apply_chat_template": True}))
    assert str(tmp_path / name) in message
    assert ("Git LFS" in message) == text.startswith("version")


@pytest.mark.parametrize("place", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_chat_template_is_found_where_transformers_looks(place, tmp_path, folder, args):
    if place.endswith(".json"):
        (tmp_path / place).write_text(json.dumps({"chat_template": "{{ messages }}"}))
    else:
        (tmp_path / place).write_text("{{ messages }}")
    check_model(args(**{"data.apply_chat_template": True}))


def test_yarn_stretches_the_length_as_vllm_decides_and_llamas_own_scaling_does_not(folder, args, monkeypatch):
    folder(rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768})
    check_model(args(**{"data.max_len": 131072}))
    folder(**PUBLISHED["llama3_1_8b"])
    assert "131072" in refused(args(**{"data.max_len": 131073}))
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    check_model(args(**{"data.max_len": 131073}))


def test_models_that_see_or_bring_their_own_code_pass(folder, args, config):
    folder(architectures=["Qwen3_5ForConditionalGeneration"], vision_config={}, text_config=config)
    check_model(args())
    folder(architectures=["OwnModel"], auto_map={"AutoModelForCausalLM": "own.Model"})
    check_model(args())


def test_the_language_half_of_a_model_that_sees_is_the_one_that_counts(folder, args, config):
    half = {**config, "max_position_embeddings": 1000}
    folder(architectures=["X"], vision_config={}, max_position_embeddings=10**6, text_config=half)
    assert "1000 tokens" in refused(args())


def test_a_name_on_the_hub_is_checked_from_the_cache_and_never_asked_for(tmp_path, args, monkeypatch, config):
    snapshot = tmp_path / "hub" / "models--Qwen--Qwen3-8B" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(config))
    (tmp_path / "hub" / "models--Qwen--Qwen3-8B" / "refs").mkdir()
    (tmp_path / "hub" / "models--Qwen--Qwen3-8B" / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert local_folder("Qwen/Qwen3-8B") == snapshot
    there = args(**{"actor.model_name_or_path": "Qwen/Qwen3-8B"})
    check_model(there)  # no tokenizer in the cache: nothing is known, nothing is refused
    assert "40960" in refused({**there, "data.max_len": 50000})
    assert local_folder("Qwen/Qwen3-14B") is None
    check_model({**there, "actor.model_name_or_path": "Qwen/Qwen3-14B", "data.max_len": 10**9})


@pytest.mark.parametrize("value", [{"auto_map": None}, {"text_config": None}, {"architectures": "Qwen3ForCausalLM"}])
def test_a_configuration_with_odd_entries_is_no_traceback(folder, value, args):
    folder(**value)
    check_model(args())
