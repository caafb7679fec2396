"""Every command refuses a model that needs its own code, by name, before anything of it is touched."""

import asyncio
import json
from pathlib import Path

import custom_code
import pytest
from commands import refused

from openrlhf_ebpo import extension, hub_models, model_folder
from openrlhf_ebpo.cli import data, train_sft
from openrlhf_ebpo.command import nested
from openrlhf_ebpo.data.preflight import InputFiles
from openrlhf_ebpo.data.topics import embed
from openrlhf_ebpo.engines import cluster
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.eval import run as evaluation
from openrlhf_ebpo.quickstart import tiny_model
from openrlhf_ebpo.train import driver
from openrlhf_ebpo.upstream.install import subclass
from openrlhf_ebpo.upstream.rollout.engine import EngineTrustsAsAsked

PHI = {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"]}
BOTH = {"AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}


@pytest.fixture(autouse=True)
def as_before():
    yield
    extension.trust_models(False)


@pytest.fixture
def needed(tmp_path):
    """The code that a model with these files needs."""

    def needed(**files: dict) -> list[str]:
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return [str(code) for code in model_folder.needed_code(tmp_path)]

    return needed


@pytest.mark.parametrize(
    "files",
    [
        {"config": PHI},
        {"config": {**PHI, "auto_map": BOTH}},
        {"config": {**PHI, "auto_map": {**BOTH, "AutoModelForSequenceClassification": "m.C"}}},
        {
            "config": PHI,
            "tokenizer_config": {"tokenizer_class": "LlamaTokenizer", "auto_map": {"AutoTokenizer": "t.T"}},
        },
        {"config": PHI, "tokenizer_config": {"auto_map": ["t.Slow", "t.Fast"]}},
        {
            "config": PHI,
            "tokenizer_config": {"auto_map": {"AutoProcessor": "p.P"}},
        },  # nothing loads one of a text model
        {
            "config": {"model_type": "qwen2_vl", "vision_config": {}},
            "processor_config": {"auto_map": {"AutoProcessor": "p.P"}},
        },
        {},
    ],
    ids=str,
)
def test_what_transformers_has_itself_needs_no_code(files, needed):
    assert needed(**files) == []


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"config": {"model_type": "own", "auto_map": {"AutoConfig": "m.C"}}}, "config.json: AutoConfig, m.C"),
        ({"config": {"auto_map": {"AutoConfig": "evil/repo--m.C"}}}, "config.json: AutoConfig, evil/repo--m.C"),
        (
            {"config": {**PHI, "architectures": ["OwnForCausalLM"], "auto_map": {"AutoModelForCausalLM": "m.M"}}},
            "config.json: AutoModelForCausalLM, m.M",
        ),
        (
            {"config": PHI, "tokenizer_config": {"tokenizer_class": "OwnTokenizer", "auto_map": ["t.Slow", None]}},
            "tokenizer_config.json: AutoTokenizer, t.Slow",
        ),
        (
            {"tokenizer_config": {"auto_map": {"AutoTokenizer": ["a/b--t.Slow", "a/b--t.Fast"]}}},
            "tokenizer_config.json: AutoTokenizer, a/b--t.Slow, a/b--t.Fast",
        ),
        ({"config": {"auto_map": {"AutoConfig": "m.\x1b[2J"}}}, r"config.json: AutoConfig, 'm.\x1b[2J'"),
    ],
    ids=str,
)
def test_what_transformers_lacks_does(files, named, needed):
    assert needed(**files) == [named]


@pytest.mark.parametrize("value", ["AutoConfig", 1, ["m.C"]])
def test_an_auto_map_of_another_shape_is_named(value, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"auto_map": value}))
    with pytest.raises(UsageError, match=r"config\.json has an auto_map that is not an object"):
        model_folder.custom_code(tmp_path)
    assert "auto_map" in hub_models.model_problems("--model", str(tmp_path))[0]


# the commands


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Data, a reward, and a model in `model`; the cache for models' code is here."""
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    (tmp_path / "q.jsonl").write_text('{"id": 1, "question": "1+1", "prompt": "1+1", "answer": "2", "label": "2"}\n')
    (tmp_path / "reward.py").write_text("def reward_func(queries, prompts, labels):\n    return {'rewards': 1.0}\n")
    tiny_model.build(tmp_path / "model", ["1+1=2"], hidden_size=32, intermediate_size=64)
    return tmp_path


def train(folder: Path, *more: str, model: str | None = None) -> list[str]:
    flags = {"actor.model_name_or_path": model or folder / "model", "data.prompt_dataset": folder / "q.jsonl"}
    flags |= {"data.input_key": "prompt", "data.max_len": 64, "reward.remote_url": folder / "reward.py"}
    flags |= {"vllm.num_engines": 1, "ckpt.output_dir": folder / "out", "ckpt.path": folder / "ckpt"}
    flags |= {"rollout.batch_size": 32, "rollout.n_samples_per_prompt": 4, "advantage_estimator": "ebpo"}
    return [str(part) for name, value in flags.items() for part in (f"--{name}", value)] + list(more)


def commands(folder: Path, model: str | None = None) -> dict:
    model = model or str(folder / "model")
    q = str(folder / "q.jsonl")
    sft = ["--model.model_name_or_path", model, "--data.dataset", q, "--data.input_key", "question"]
    asked = ["--model", model, "--tasks", f"file:{q}", "--output_dir", str(folder / "results"), "--protocol", "greedy"]
    measured = ["difficulty", "--input", q, "--output", str(folder / "d.parquet"), "--actor.model_name_or_path", model]
    return {
        "train": (driver.main, train(folder, model=model)),
        "train --dry_run": (driver.main, train(folder, "--dry_run", model=model)),
        "sft": (train_sft.main, [*sft, "--data.output_key", "answer", "--ckpt.output_dir", str(folder / "sft")]),
        "eval": (evaluation.main, [*asked, "--template", "raw", "--no-chat_template"]),
        "data difficulty": (data.main, [*measured, "--reward.remote_url", str(folder / "reward.py")]),
    }


NAMES = ["train", "train --dry_run", "sft", "eval", "data difficulty"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"config": {"model_type": "own", "auto_map": custom_code.WHOLE}}, "config.json: AutoConfig, own.OwnConfig"),
        (
            {
                "tokenizer": {
                    "tokenizer_class": "OwnTokenizer",
                    "auto_map": {"AutoTokenizer": [None, "own.OwnTokenizer"]},
                }
            },
            "tokenizer_config.json: AutoTokenizer, own.OwnTokenizer",
        ),
    ],
    ids=["config", "tokenizer"],
)
def test_every_command_refuses_a_model_that_needs_its_own_code(name, changes, code, folder):
    marker = custom_code.bring_code(folder / "model", **changes)
    command, argv = commands(folder)[name]
    message = refused(command, *argv)
    for words in (str(folder / "model"), code, "brings its own code", "--trust_remote_code"):
        assert words in message
    assert not marker.exists() and len(message.splitlines()) == 1
    assert not [path for path in folder.iterdir() if path.name in ("out", "ckpt", "results", "sft")]


def test_critic_and_reward_model_are_looked_at_too(folder):
    custom_code.bring_code(folder / "model", {"model_type": "own", "auto_map": custom_code.WHOLE})
    args = {f"{flag}.model_name_or_path": str(folder / "model") for flag in ("actor", "critic", "reward")}
    with pytest.raises(UsageError) as error:
        InputFiles.from_args(nested(args)).check()
    assert [problem.partition(" ")[0] for problem in str(error.value).splitlines()] == [f"--{flag}" for flag in args]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_on_the_hub_is_refused_by_its_configuration_alone(name, folder, hub, use_hub):
    files = {"config.json": {"model_type": "own", "auto_map": {"AutoConfig": "evil/repo--own.OwnConfig"}}}
    content = {path: json.dumps(value).encode() for path, value in files.items()}
    publish(hub, "owner/own", {**content, "tokenizer_config.json": b"{}", "own.py": b"x", "model.safetensors": b"w"})
    command, argv = commands(folder, "owner/own")[name]
    message = refused(command, *argv)
    assert "owner/own: the model brings its own code" in message and "evil/repo--own.OwnConfig" in message
    asked = {request.partition("?")[0].rpartition("/")[2] for request in hub.requests if "/resolve/" in request}
    assert asked == {"config.json", "tokenizer_config.json"}


def publish(hub, repo: str, files: dict[str, bytes]) -> None:
    from hub_repos import File

    hub.create(repo).commit("main", {path: File(content, False) for path, content in files.items()}, "model")


def test_a_model_on_the_hub_that_needs_no_code_passes_and_its_weights_wait(hub, use_hub):
    files = {"config.json": json.dumps({**PHI, "auto_map": BOTH}).encode(), "model.safetensors": b"w"}
    publish(hub, "owner/phi", files)
    assert hub_models.model_problems("--model", "owner/phi") == []
    assert not hub.count("safetensors")
    hub.stop()
    assert hub_models.model_problems("--model", "owner/phi") == []  # from the cache; nothing is known of the tokenizer


def test_a_model_that_the_hub_does_not_have_is_named(hub, use_hub):
    (problem,) = hub_models.model_problems("--model", "owner/nothing")
    assert problem.startswith("--model owner/nothing: no such folder, and ") and "404" in problem
    assert hub_models.model_problems("--model", "owner/nothing", ask_hub=False) == []
    assert "not a name on the Hub" in hub_models.model_problems("--model", "my model")[0]


def test_without_a_hub_nothing_is_refused_and_nothing_waits(hub, use_hub, monkeypatch, caplog):
    hub.fail(".*", 503, times=99)
    assert hub_models.model_problems("--model", "owner/own") == []
    assert len(hub.requests) == 1 and "Retrying" not in caplog.text
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert hub_models.model_problems("--model", "owner/own") == [] and len(hub.requests) == 1


def test_an_adapter_is_refused_for_its_tokenizer_and_for_its_base(folder):
    adapter = folder / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(folder / "model")}))
    own = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": "evil/repo--t.Own"}}
    (adapter / "tokenizer_config.json").write_text(json.dumps(own))
    command, argv = commands(folder, str(adapter))["eval"]
    assert f"--model {adapter}: the model brings its own code" in refused(command, *argv)
    (adapter / "tokenizer_config.json").unlink()
    marker = custom_code.bring_code(folder / "model", {"model_type": "own", "auto_map": custom_code.WHOLE})
    assert f"--model {folder / 'model'}: the model brings its own code" in refused(command, *argv)
    assert not marker.exists()


# the answer's way


def test_every_command_decides_anew_and_no_variable_does(folder, monkeypatch):
    monkeypatch.setenv("OPENRLHF_EBPO_TRUST_REMOTE_CODE", "1")
    monkeypatch.setenv("TRUST_REMOTE_CODE", "1")
    custom_code.bring_code(folder / "model", {"model_type": "own", "auto_map": custom_code.WHOLE})
    extension.trust_models(True)
    for command, argv in commands(folder).values():
        assert "own code" in refused(command, *argv) and not extension.models_trusted()


def test_workers_are_told_by_the_name_of_their_hook():
    assert cluster.runtime_env()["worker_process_setup_hook"] == "openrlhf_ebpo.upstream.install.install"
    extension.trust_models(True)
    assert cluster.runtime_env()["worker_process_setup_hook"] == "openrlhf_ebpo.upstream.remote_code.install_and_trust"


@pytest.mark.parametrize("trust", [False, True])
def test_an_engine_gets_what_the_flag_says_and_not_what_upstream_does(trust):
    class Actor:
        async def __init__(self, **kwargs):
            self.__dict__.update(kwargs)

    actor = object.__new__(subclass(Actor, EngineTrustsAsAsked))
    extension.trust_models(trust)
    asyncio.run(actor.__init__(model="m", trust_remote_code=True))
    assert vars(actor) == {"model": "m", "trust_remote_code": trust}


def test_a_model_for_embeddings_runs_no_code_that_its_folder_names(tmp_path):
    """sentence-transformers has a rule of its own, which requirements hold from version 6 on."""
    marker, model = tmp_path / "has run", tmp_path / "model"
    model.mkdir()
    (model / "own.py").write_text(f"open({str(marker)!r}, 'w')\nclass Own: pass\n")
    modules = [{"idx": 0, "name": "0", "path": "", "type": "own.Own"}]
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "config_sentence_transformers.json").write_text("{}")
    with pytest.raises(UsageError, match=r"cannot be loaded .*own\.Own"):
        embed(["a question"], str(model))
    assert not marker.exists()
