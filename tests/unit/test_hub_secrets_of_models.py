"""Secrets and strangers in a model's folder: they never get to the Hub, against the unmodified client."""

import json
from pathlib import Path

import hub_runs
import numpy as np
import pytest
from commands import refused
from fake_secrets import TOKENIZER, leaked
from hub_runs import REPO as MODEL
from hub_runs import export_of, model_of, push
from safetensors.numpy import save_file

from openrlhf_ebpo.cli import hub as hub_cli
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.hub.model_files import contents


def test_models_as_they_are_published_pass(hub, api, make_run):
    run_dir = make_run()
    model = model_of(run_dir, 2)
    names = ("layer.attention.key", "cls_token")
    weights = {**hub_runs.tensors(), **dict.fromkeys(names, np.zeros(3))}
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    index = {"weight_map": dict.fromkeys(weights, "model.safetensors")}
    files = {
        "tokenizer_config.json": TOKENIZER,
        "special_tokens_map.json": {k: v for k, v in TOKENIZER.items() if k.endswith("_token")},
        "vocab.json": {"password": 1, "token": 2, "api_key": 3},
        "config.json": {**hub_runs.CONFIG, "id2label": {"0": "password"}},
        "model.safetensors.index.json": index,
        "generation_config.json": {"eos_token_id": [1, 2]},
    }
    for name, value in files.items():
        write_json(model / name, value)
    (model / "merges.txt").write_text("#version: 0.2\ns k\nh f\n")
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "tool.jinja").write_text("{{ tools }}")
    (model / "LICENSE").write_text("Apache License")
    push(run_dir, api, wanted=[export_of(run_dir, 2)])
    assert {*files, "merges.txt", "additional_chat_templates/tool.jinja", "LICENSE"} <= set(hub.repo(MODEL).files())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("config.json", {"api_key": "k"}),
        ("tokenizer_config.json", {**TOKENIZER, "init": [{"use_auth_token": "whatever"}]}),
        ("tokenizer_config.json", '{"token": "NEEDLE", "token": null}'),
        ("chat_template.jinja", "{# " + "gh" + "p_" + "NEEDLE" * 6 + " #}"),
    ],
    ids=["key", "nested", "duplicate key", "jinja"],
)
def test_push_and_dry_run_refuse_a_models_file_with_a_secret(hub, use_hub, make_run, name, value):
    run_dir = make_run()
    path = model_of(run_dir, 4) / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    words = refused(hub_cli.main, "push", run_dir, "--repo", MODEL)
    assert words == refused(hub_cli.main, "push", run_dir, "--repo", MODEL, "--dry_run")
    assert name in words and "secret" in words and "NEEDLE" not in words
    assert not hub.repos


def test_secrets_in_the_metadata_of_weights_are_refused(make_run):
    run_dir = make_run()
    weights = model_of(run_dir, 2) / "model.safetensors"
    save_file(hub_runs.tensors(), weights, metadata={"format": "pt", "hf_token": "whatever"})
    with pytest.raises(UsageError, match=r"model\.safetensors keeps a secret under 'hf_token'"):
        contents(run_dir, model_of(run_dir, 2))


def test_only_files_that_make_up_a_model_go_and_the_others_are_named(hub, use_hub, make_run, capsys):
    run_dir = make_run()
    model = model_of(run_dir, 4)
    strangers = ["train_args.json", "notes.txt", ".env.json", ".hidden.safetensors", "id_rsa.txt", "data.parquet"]
    for name in strangers:
        (model / name).write_text("NEEDLE")
    (model / "logs").mkdir()
    (model / "logs" / "config.json").write_text("{}")
    hub_cli.main(["push", str(run_dir), "--repo", MODEL])
    files = hub.repo(MODEL).files()
    assert not [path for path in files if Path(path).name in strangers or path.startswith("logs")]
    assert not leaked(hub, ["NEEDLE"])
    (said,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("left out")]
    assert all(name in said for name in [*strangers, "logs/"]) and "hf upload" in said


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors"])
def test_a_link_out_of_the_model_is_refused_and_one_inside_followed(hub, api, make_run, tmp_path, name):
    run_dir = make_run()
    model = model_of(run_dir, 2)
    stranger = tmp_path / "id_rsa"
    stranger.write_bytes(b"NEEDLE" * 300_000)
    link = model / name
    link.unlink(missing_ok=True)
    link.symlink_to(stranger)
    with pytest.raises(UsageError, match=rf"{link} leads to {stranger}, outside of"):
        contents(run_dir, model)
    link.unlink()
    (model / "tokenizer.json").unlink(missing_ok=True)
    (model / "tokenizer.json").symlink_to("config.json")
    if name == "model.safetensors":
        hub_runs.export_model(model, 2)
    push(run_dir, api, wanted=[export_of(run_dir, 2)])
    assert hub.repo(MODEL).files()["tokenizer.json"] == hub.repo(MODEL).files()["config.json"]


def test_a_file_that_the_user_has_looked_through_goes_as_it_is(hub, use_hub, make_run):
    run_dir = make_run()
    config = model_of(run_dir, 4) / "config.json"
    config.write_text(json.dumps({"api_key": "a word of the vocabulary", "note": "hf" + "_" + "NEEDLE" * 6}))
    assert "--not_secret FILE" in refused(hub_cli.main, "push", run_dir, "--repo", MODEL)
    mistyped = ("--not_secret", "confg.json")
    assert "--not_secret confg.json" in refused(hub_cli.main, "push", run_dir, "--repo", MODEL, *mistyped)
    assert not hub.repos
    hub_cli.main(["push", str(run_dir), "--repo", MODEL, "--not_secret", "config.json"])
    assert hub.repo(MODEL).files()["config.json"] == config.read_bytes()
