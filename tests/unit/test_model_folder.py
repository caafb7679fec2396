"""A model in a folder is complete and inert, or it is refused before anything of it is loaded."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from openrlhf_ebpo import extension, model_folder
from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.model_folder import problems

SHARDS = {1: "model-00001-of-00002.safetensors", 2: "model-00002-of-00002.safetensors"}
INDEX = "model.safetensors.index.json"


@pytest.fixture(autouse=True)
def as_before():
    yield
    extension.trust_models(False)


@pytest.fixture
def model(tmp_path) -> Path:
    """Two shards and their index, configuration and tokenizer."""
    path = tmp_path / "model"
    path.mkdir()
    for number, name in SHARDS.items():
        save_file({f"layer.{number}": np.full((3, number), number, "float32")}, path / name, {"format": "pt"})
    write_json(path / INDEX, {"metadata": {}, "weight_map": {f"layer.{n}": name for n, name in SHARDS.items()}})
    write_json(path / "config.json", {"model_type": "qwen3"})
    write_json(path / "tokenizer.json", {"model": {}})
    return path


def rewrite(path: Path, change) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def file_of(path: Path, header: dict | bytes, data: bytes = b"") -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_a_complete_model_has_no_problems_and_subfolders_and_unused_files_are_ignored(model):
    assert problems(model) == []
    for name in ("run", ".cache", "global_step10"):
        (model / name).mkdir()
        (model / name / "link.safetensors").symlink_to("/etc/hostname")
    for name in (
        "pytorch_model.bin",
        "training_args.bin",
        "optimizer.pt",
        "modeling.py",
        "notes.txt",
        ".hub_pull.json",
    ):
        (model / name).write_bytes(b"\x80\x04never looked at")
    (model / "tokenizer_config.json").symlink_to("config.json")
    assert problems(model) == []


def test_a_folder_that_is_a_link_is_as_the_folder(model, tmp_path):
    (tmp_path / "link").symlink_to(model)
    assert problems(tmp_path / "link") == []


@pytest.mark.parametrize("dtype", [*("bool", "uint8", "int64", "float16", "float32", "float64", "complex64")])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_whatever_safetensors_writes_is_read(model, dtype, shape):
    save_file({"b": np.zeros(shape, dtype), "a": np.zeros(3, dtype)}, model / "more.safetensors")
    assert problems(model) == []


DAMAGED = "is damaged or cut off, a Git LFS pointer, or not a safetensors file: "


@pytest.mark.parametrize(
    "content",
    [
        lambda old: bytes(len(old)),
        lambda old: b"",
        lambda old: old[:5],
        lambda old: old[:40],
        lambda old: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        lambda old: old[:-4],
        lambda old: old + bytes(4),
        lambda old: old.replace(b'"F32"', b'"F64"'),
        lambda old: old.replace(b'"shape":[3,1]', b'"shape":[9,9]'),
        lambda old: old.replace(b"{", b"[", 1),
    ],
)
def test_a_file_that_is_no_longer_what_was_saved(model, content):
    path = model / SHARDS[1]
    path.write_bytes(content(path.read_bytes()))
    (problem,) = problems(model)
    assert problem.startswith(f"{SHARDS[1]} {DAMAGED}")


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"[" * 60_000,
        {"a": 1},
        {"a": {"dtype": "F32", "shape": [1 << 70], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]}},
        {n: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for n in "ab"},
        {"\x1b[2J": {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]}},
        {"a" * 100_000: {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]}},
    ],
    ids=range(8),
)
def test_a_hostile_header(model, header):
    file_of(model / SHARDS[1], header, bytes(4))
    (problem,) = problems(model)
    assert DAMAGED in problem and len(problem) <= model_folder.MAX_PROBLEM_CHARS + 3 and problem.isprintable()


def test_a_header_of_gigabytes_is_not_read(model):
    with open(model / SHARDS[1], "wb") as file:
        file.write(struct.pack("<Q", 3 << 30))
        file.truncate(4 << 30)  # nothing but a hole
    (problem,) = problems(model)
    assert "header too large" in problem


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda index: {}, "cannot be read as an index"),
        (lambda index: {"weight_map": []}, "cannot be read as an index"),
        (lambda index: {"weight_map": {"layer.1": 1}}, "names 1, which is missing"),
        (
            lambda index: {"weight_map": {"layer.1": "../model.safetensors"}},
            "names ../model.safetensors, which is missing",
        ),
        (lambda index: {"weight_map": {"layer.1": "/etc/passwd"}}, "names /etc/passwd, which is missing"),
        (lambda index: {"weight_map": {"layer.1": "model.bin"}}, "names model.bin, which is missing"),
        (lambda index: {"weight_map": {"layer.1": "x.safetensors"}}, "names x.safetensors, which is missing"),
        (lambda index: {"weight_map": {"layer.1": SHARDS[2]}}, f"puts layer.1 into {SHARDS[2]}, which has no such"),
    ],
)
def test_an_index_that_the_files_do_not_keep(model, change, said):
    rewrite(model / INDEX, change)
    (problem,) = problems(model)
    assert problem.startswith(f"{INDEX} ") and said in problem


def test_a_missing_shard_with_and_without_an_index(model):
    (model / SHARDS[2]).unlink()
    assert problems(model) == [f"{INDEX} names {SHARDS[2]}, which is missing"]
    (model / INDEX).unlink()
    assert problems(model) == ["model: 1 of 2 files of weights are there, without an index"]


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "adapter_config.json"])
@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}"])
def test_a_configuration_that_cannot_be_read(model, name, content):
    (model / name).write_bytes(content)
    (problem,) = problems(model)
    assert name in problem


@pytest.mark.parametrize("name", [SHARDS[1], "config.json", "notes.txt"])
def test_links_out_of_the_folder_and_to_nowhere(model, tmp_path, name):
    (tmp_path / "outside").write_text("{}")
    path = model / name
    path.unlink(missing_ok=True)
    for target, said in ((tmp_path / "outside", "out of the folder"), ("/dev/zero", "out of the folder")):
        path.symlink_to(target)
        (problem,) = problems(model)
        assert problem.startswith(f"{name} leads to {target}") and said in problem
        path.unlink()
    path.symlink_to("nowhere")
    assert problems(model) == [f"{name} is a link to nowhere"]


def test_a_snapshot_of_the_hubs_client_is_links_to_its_blobs(model, tmp_path):
    cache = tmp_path / "models--owner--name"
    snapshot = cache / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    for number, path in enumerate(model.iterdir()):
        path.rename(cache / "blobs" / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    assert problems(snapshot) == []
    (snapshot / "tokenizer_config.json").symlink_to(tmp_path / "elsewhere.json")
    (tmp_path / "elsewhere.json").write_text("{}")
    assert "out of the folder" in problems(snapshot)[0]


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "pytorch_model-00001-of-00001.bin", "consolidated.00.pth", "m.pkl"]
)
def test_weights_that_are_only_there_as_a_pickle_are_refused_without_the_flag(model, name):
    for path in (*map(model.joinpath, SHARDS.values()), model / INDEX):
        path.unlink()
    assert problems(model)[0].startswith("the folder has no weights (*.safetensors)")
    (model / name).write_bytes(b"\x80\x04.")
    (problem,) = problems(model)
    assert problem.startswith(f"{name} has weights as a pickle") and "--trust_remote_code" in problem
    extension.trust_models(True)
    assert problems(model) == []


def test_an_adapter_as_a_pickle_beside_other_weights_is_one_that_is_loaded(model):
    (model / "adapter_model.bin").write_bytes(b"\x80\x04.")
    assert problems(model)[0].startswith("adapter_model.bin has weights as a pickle")
    save_file({"lora": np.zeros(2)}, model / "adapter_model.safetensors")
    assert problems(model) == []


def test_gguf_is_inert(tmp_path):
    (tmp_path / "model.Q4.gguf").write_bytes(b"GGUF" + bytes(40))
    assert problems(tmp_path) == []


def test_code_that_a_model_needs_is_a_problem_and_code_that_it_does_not_is_none(model):
    phi = {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "auto_map": {"AutoConfig": "evil/repo--c.C"}}
    write_json(model / "config.json", phi)
    assert problems(model) == []  # transformers has the class: the code is never run
    write_json(model / "config.json", {"model_type": "own", "auto_map": {"AutoConfig": "evil/repo--own.OwnConfig"}})
    (problem,) = problems(model)
    assert "brings its own code" in problem and "evil/repo--own.OwnConfig" in problem
    assert problems(model, code=False) == []
    extension.trust_models(True)
    assert problems(model) == []


def test_where_there_is_no_transformers_any_code_that_could_be_loaded_counts(model, monkeypatch):
    phi = {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "auto_map": {"AutoConfig": "evil/repo--c.C"}}
    write_json(model / "config.json", phi)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "evil/repo--c.C" in problems(model)[0]


def test_a_missing_shard_is_named_and_a_folder_that_does_not_exist_is_a_problem(model, tmp_path):
    (model / SHARDS[2]).unlink()
    assert problems(model) == [f"{INDEX} names {SHARDS[2]}, which is missing"]
    assert "cannot be read" in problems(tmp_path / "none")[0]


@pytest.mark.parametrize("end", [".safetensors", ".safetensors.index.json"])
def test_names_with_signs_that_a_terminal_obeys_are_shown_as_text(model, end):
    (model / f"\x1b[2J{end}").write_bytes(b"x")
    (problem,) = problems(model)
    assert problem.startswith(f"[2J{end} ") and "\x1b" not in problem


def test_a_thousand_problems_are_not_a_thousand_lines(model):
    for number in range(1000):
        (model / f"x{number}.safetensors").write_bytes(b"")
    assert len(problems(model)) == model_folder.MAX_PROBLEMS


def transformer(path: Path) -> None:
    """Weights and configuration of a model with a layer."""
    save_file({"model.layers.0.mlp.up_proj.weight": np.zeros((8, 8), "float32")}, path / "model.safetensors")
    write_json(path / "config.json", {"num_hidden_layers": 1, "hidden_size": 8, "vocab_size": 16})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: None, None),
        (lambda path: (path / "config.json").unlink(), "config.json is missing"),
        (lambda path: (path / "tokenizer.json").unlink(), "the tokenizer is missing"),
        (
            lambda path: (path / "model.safetensors").rename(path / "weights.safetensors"),
            "is not a name that loaders look for",
        ),
    ],
)
def test_a_model_without_a_file_that_loaders_need(tmp_path, change, said):
    transformer(tmp_path)
    write_json(tmp_path / "tokenizer.json", {})
    change(tmp_path)
    found = [*problems(tmp_path), *model_folder.missing_files(tmp_path)]
    assert found == [] if said is None else (len(found) == 1 and said in found[0])


@pytest.mark.parametrize("decoy", ["model-decoy.safetensors", "model_adapter.safetensors", "adapter_model.safetensors"])
def test_a_decoy_in_safetensors_lets_no_pickle_past(tmp_path, decoy):
    transformer(tmp_path)
    write_json(tmp_path / "tokenizer.json", {})
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    assert problems(tmp_path) == []  # loaders take the other one
    (tmp_path / "model.safetensors").rename(tmp_path / decoy)
    assert "pytorch_model.bin has weights as a pickle" in problems(tmp_path)[0]
