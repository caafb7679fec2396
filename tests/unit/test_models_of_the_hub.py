"""A model that is named by OWNER/NAME is complete and inert in this machine's cache before anything of it is loaded."""

import json

import numpy as np
import pytest
from patience import seconds
from safetensors.numpy import save

from openrlhf_ebpo import extension, hub_models
from openrlhf_ebpo.command import nested
from openrlhf_ebpo.data.preflight import InputFiles
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.eval import models

SHARDS = {f"model-0000{n}-of-00002.safetensors": save({f"layer.{n}": np.ones(3)}) for n in (1, 2)}
INDEX = {"weight_map": {f"layer.{n}": name for n, name in enumerate(SHARDS, start=1)}}
MODEL = {
    "config.json": json.dumps({"model_type": "qwen3"}).encode(),
    "tokenizer.json": b"{}",
    "model.safetensors.index.json": json.dumps(INDEX).encode(),
    **SHARDS,
}
SECOND = next(reversed(SHARDS))


@pytest.fixture(autouse=True)
def as_before():
    yield
    extension.trust_models(False)


@pytest.fixture
def publish(use_hub):
    from hub_repos import File

    def publish(**changes: bytes | None) -> None:
        files = {**MODEL, **changes}
        content = {path: File(text, lfs=False) for path, text in files.items() if text is not None}
        use_hub.create("owner/name").commit("main", content, "model")

    return publish


def test_what_loading_reads_is_fetched_once_and_nothing_else(publish, use_hub):
    strangers = {"pytorch_model.bin": b"x", "original/x.safetensors": b"x", "consolidated.safetensors": b"x"}
    publish(**strangers)
    hub_models.check_fetched("--model", "owner/name")
    fetched = {request.partition("?")[0].rpartition("/")[2] for request in use_hub.requests if "/resolve/" in request}
    assert fetched == set(MODEL)
    downloads = use_hub.count("GET .*(/resolve/|/lfs/)")
    models.check_loadable("owner/name")
    assert use_hub.count("GET .*(/resolve/|/lfs/)") == downloads


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({SECOND: None}, f"names {SECOND}, which is missing"),
        (
            {**dict.fromkeys([*SHARDS, "model.safetensors.index.json"]), "pytorch_model.bin": b"\x80\x04."},
            "pickles are fetched only with --trust_remote_code",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_model_that_is_not_complete_or_not_inert_is_refused_before_it_loads(publish, changes, said):
    publish(**changes)
    with pytest.raises(UsageError, match=r"--model owner/name: ") as caught:
        models.check_loadable("owner/name")
    assert said in str(caught.value)


def test_with_the_flag_pickles_are_taken(publish):
    publish(**{**dict.fromkeys([*SHARDS, "model.safetensors.index.json"]), "pytorch_model.bin": b"\x80\x04."})
    extension.trust_models(True)
    hub_models.check_fetched("--model", "owner/name")


def check_models_fetched(values: dict) -> None:
    InputFiles.from_args(nested(values)).check_models_fetched()


def test_a_training_looks_at_all_its_models_and_waits_for_no_hub(publish, use_hub, monkeypatch):
    publish(**{SECOND: None})
    args = {"actor.model_name_or_path": "owner/name", "reward.model_name_or_path": "owner/name,owner/none"}
    with pytest.raises(UsageError, match=r"^--actor.model_name_or_path owner/name: .* missing$"):
        check_models_fetched(args)
    with pytest.raises(UsageError, match=r"missing\n--reward.* owner/none: no such folder, and .*404"):
        check_models_fetched({**args, "actor.model_name_or_path": ""})
    check_models_fetched({**args, "use_ms": True})
    use_hub.fail(".*", 503, times=99)
    check_models_fetched({"actor.model_name_or_path": "owner/other"})
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    check_models_fetched({"actor.model_name_or_path": "owner/other"})
    with pytest.raises(UsageError, match="missing"):  # what is in the cache is looked at without a Hub too
        check_models_fetched(args)


@pytest.mark.parametrize(
    "where", ["HEAD .*config.json", "GET .*/api/models/", r"GET .*(/lfs/|/resolve/.*safetensors$)"]
)
def test_a_hub_that_stands_still_is_waited_for_once(publish, use_hub, no_waiting, monkeypatch, where):
    publish()
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_TIMEOUT", str(seconds(0.1)))
    fault = use_hub.fail(where, hang=True, times=99)
    assert hub_models.model_problems("--model", "owner/name") == []
    asked = 0 if "lfs" in where else 8  # weights are looked for in the cache alone; some calls the client repeats
    assert bool(asked) <= fault.hits <= asked


def test_weights_that_the_hub_refuses_and_a_disk_that_is_full_are_said(publish, use_hub, no_waiting, monkeypatch):
    publish()
    use_hub.fail(r"GET .*/resolve/.*safetensors$", status=403, times=99)
    with pytest.raises(UsageError, match="403"):
        hub_models.check_fetched("--model", "owner/name")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("huggingface_hub.HfApi.snapshot_download", full)
    with pytest.raises(UsageError, match=r"this machine, not the Hub, has a problem: .*No space left"):
        hub_models.check_fetched("--model", "owner/name")


@pytest.mark.parametrize("text", ["[]", "{}", "[" * 100_000, '{"base_model_name_or_path": null}', '"x"', "\x00"])
def test_an_adapter_that_names_no_base_is_refused_in_words(tmp_path, text):
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(UsageError, match=r"adapter_config\.json"):
        models.check_loadable(str(tmp_path))
