"""Secrets and strangers: what must never get to the Hub, tried over every way there, against the unmodified client."""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import re
from pathlib import Path

import hub_runs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from huggingface_hub import HfApi
from recorded_runs import GOOD, PROTOCOL, arguments, save_result, write_run
from safetensors.numpy import save_file

from openrlhf_ebpo.cli import hub as hub_cli
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import append_json_line, write_json
from openrlhf_ebpo.hub import outbox, results, run_data, space
from openrlhf_ebpo.hub.client import HubError
from openrlhf_ebpo.hub.local_files import local_file
from openrlhf_ebpo.hub.push import drain
from openrlhf_ebpo.hub.upload import allow_open_files, publish
from openrlhf_ebpo.record.run_log import close_run, read_run
from openrlhf_ebpo.redact import (
    SECRETS,
    holds_secret,
    is_secret,
    redacted,
    redacted_argv,
    redacted_text,
    without_secrets,
)

MODEL, RUN, RESULTS, SPACE = "owner/model", "owner/run", "owner/results", "owner/space"
# Forms of secrets, {} where a distinct part goes. In pieces, so that no scanner takes this file for a leak.
FORMS = {
    "hugging face": "hf" + "_{}{}",
    "hugging face oauth": "hf_" + "oauth_{}.{}",
    "hugging face jwt": "hf_" + "jwt_{}",
    "hugging face organisation": "api_" + "org_{}{}",
    "wandb, by hand": "wandb" + "_v1_{}{}",
    "openai": "sk" + "-{}{}",
    "openai project": "sk" + "-proj-{}",
    "anthropic": "sk" + "-ant-api03-{}",
    "github": "gh" + "p_{}{}",
    "github app": "gh" + "o_{}{}",
    "github, fine-grained": "github" + "_pat_{}_{}",
    "aws": "AK" + "IA{}",
    "google": "AI" + "za{}{}",
    "slack": "xo" + "xb-{}-{}",
    "bearer": "Bear" + "er {}",
    "json web token": "ey" + "J{}.{}.x",
    "private key": "-----BEGIN RSA PRIVATE " + "KEY-----\n{}\n-----END RSA PRIVATE " + "KEY-----",
    "user in an address": "https://user" + ":{}@host.test/x",
    "token in an address": "https:" + "//{}@host.test/x",
    "environment": "WANDB_API" + "_KEY={}",
}


def needles():
    """Distinct texts of 16 signs that every form of a secret may hold."""
    return (f"NEEDLE{number:06d}WXYZ" for number in itertools.count())


def secrets(found: list[str]):
    """Distinct fake secrets of every form in turn; what is secret in each goes to `found`."""
    for needle, form in zip(needles(), itertools.cycle(FORMS.values())):
        found.append(needle)
        yield form.replace("{}", needle)


@pytest.fixture
def commands(api, use_hub, no_waiting, monkeypatch):
    for module in ("openrlhf_ebpo.hub.data_repo", "openrlhf_ebpo.hub.results", "openrlhf_ebpo.hub.space"):
        monkeypatch.setattr(f"{module}.hub_api", lambda: api)
    return use_hub


def call(module, *argv):
    parser = argparse.ArgumentParser()
    module.add_flags(parser)
    module.run(parser.parse_args(list(map(str, argv))))


def push_run(run_dir, *flags):
    call(run_data, run_dir, "--repo", RUN, *flags)


def push_results(folder, *flags):
    call(results, folder, "--repo", RESULTS, *flags)


def queue(run_dir, step=2, **how):
    model = run_dir.parent / "ckpt" / f"global_step{step}_hf"
    return outbox.add(run_dir, step, model, repo=MODEL, **how)


def received(hub) -> bytes:
    """Every byte that the Hub has got, tables decompressed."""
    whole = [*hub.bodies, *hub.blobs.values(), *(request.encode() for request in hub.requests)]
    for repo in hub.repos.values():
        whole.append(json.dumps([*repo.tags, *repo.branches, repo.settings]).encode())
        for commit in repo.commits.values():
            whole += [commit.title.encode(), *(path.encode() for path in commit.files)]
            whole += [readable(path, file.content) for path, file in commit.files.items()]
    return b"\n".join(whole)


def readable(path: str, content: bytes) -> bytes:
    if not path.endswith(".parquet"):
        return content
    table = pq.read_table(pa.BufferReader(content))
    return f"{table.schema.to_string(show_field_metadata=True)}{table.to_pylist()}".encode()


def leaked(hub, found) -> list[str]:
    text = received(hub)
    return [needle for needle in found if needle.encode() in text]


# The list


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_secret_is_known_to_logs_to_tables_and_behind_any_sign(form):
    needle = "NEEDLE000001WXYZ"
    secret = FORMS[form].replace("{}", needle)
    for text in (secret, f"failed: {secret}, again", f'{{"x": "{secret}"}}', f"({secret})", f"/data/me/{secret}/x"):
        assert needle not in without_secrets(text) and needle not in redacted_text(text), text
        assert redacted_text(redacted_text(text)) == redacted_text(text)
        assert pc.match_substring_regex(pa.array([text]), SECRETS)[0].as_py(), text


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("http://host/path?token=x", "http://host/path"),
        ("http://host/path?x&y=2 and http://b/c?d.", "http://host/path and http://b/c"),
        ("http://a/x?t=1,2,http://b/y?t=3", "http://a/x,http://b/y"),
        ("https://me:p@ss@host:80/x?sig=abc#frag", "https://<redacted>@host:80/x"),
        ("https://host/x#access_token=abc", "https://host/x"),
        ("https://host/x#section", "https://host/x#section"),
        (
            "Max retries exceeded with url: /reward?token=abc (Caused by",
            "Max retries exceeded with url: /reward (Caused by",
        ),
        ("is https://host/x?", "is https://host/x?"),
    ],
)
def test_queries_of_addresses_go_whole(text, left):
    assert redacted_text(text) == left
    assert redacted_argv(["--reward.remote_url", text])[1] == left
    assert redacted({"reward": {"remote_url": [text]}})["reward"]["remote_url"] == [left]


@pytest.mark.parametrize(
    "text",
    [
        "a task-based, risk-averse disk-shaped answer: \\frac{1}{2}",
        "Qwen/Qwen3-8B, me/data@split, 2 + 2 = ?, sha 0123456789abcdef0123456789abcdef01234567",
        "from huggingface_hub import hf_hub_download, hf_transfer",
        "the bearer of this token: eyJ is no key, sk-learn neither",
        "pip install hf_transformers pypi-simple-repository, class sk-estimator-doc-link, run_hf_experimentalv2",
        "the bearer responsibilities, Bearer cryptocurrencies; solve ?x=3+y now, if a?b=c:d",
        "{% if messages[0]['role'] == 'system' %}<|im_start|>{{ eos_token }}",
    ],
)
def test_plain_texts_stay_as_they_are(text):
    assert redacted_text(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "{%- set BOS_TOKEN='<|begin_of_text|>' %} export HF_TOKEN=your_token_here",
        "PRIMARY_KEY=customer_id, SECRET=CODEWORD1, KEY=abcdefghij is the cipher key",
        "git clone ssh://git@github.com/x, https://a.b/i?logo=b@2x.png, http://x.com?mail=foo@bar.com, https://x.org,me@x.org",
    ],
)
def test_texts_of_others_keep_what_only_resembles_a_secret(text):
    """Prompts, templates and files are the user's: nothing is taken out of them, or refused, without need."""
    assert without_secrets(text) == text
    assert not pc.match_substring_regex(pa.array([text]), SECRETS)[0].as_py()


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("prefix_token", "▁<PRE>", False),
        ("image_token", "IMG_CONTEXT", False),
        ("language_token", "__en__", False),
        ("user_token", "user", False),
        ("some_token", "a0b1" * 8, True),
        ("auth_token", "user", True),
        ("accessToken", "user", True),
    ],
)
def test_special_tokens_of_models_are_no_secrets(name, value, secret):
    assert holds_secret(name, value) is secret


def test_hostile_texts_do_not_take_long():
    for text in (
        "eyJ-" * 50_000,
        "://" * 50_000,
        "a://b" * 50_000 + "?",
        "-----BEGIN PRIVATE KEY" * 9_000,
        "?a" * 90_000,
        "sk-" * 60_000,
        "A_KEY=" * 30_000 + "a" * 50_000,
        "/a" * 50_000 + "?",
    ):
        redacted_text(text)


@pytest.mark.parametrize(
    "name", ["token", "api_key", "hub.api-key", "apiKey", "HF_TOKEN", "password", "Authorization", "x.client_secret",
             "use_auth_token", "accessToken", "db_passwd", "credentials", "aws_secret_access_key"],
)  # fmt: skip
def test_names_of_secrets(name):
    assert is_secret(name) and holds_secret(name, "anything")
    assert redacted({name: "short", "deep": {name: ["a", {"b": "c"}]}}) == {
        name: "<redacted>",
        "deep": {name: ["<redacted>", {"b": "<redacted>"}]},
    }


TOKENIZER = {  # keys and values of tokenizers as they are published, old ones among them
    "use_auth_token": None,
    "token": None,
    "auth_token": True,
    "unk_token": "<unk>",
    "eos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": False},
    "pad_token": "!",
    "bos_token": "<｜begin▁of▁sentence｜>",
    "image_token": "<image>",
    "boi_token": {"__type": "AddedToken", "content": "<start_of_image>"},
    "word_delimiter_token": "|",
    "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
    "added_tokens_decoder": {"0": {"content": "<unk>", "special": True}},
    "max_tokens": 5,
    "model_max_length": 1e30,
    "token_type_ids": "x",
    "tokenizer_class": "Qwen2Tokenizer",
    "name_or_path": "Qwen/Qwen3-8B",
    "pad_token_id": 0,
    "key": 7,
    "chat_template": "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}",
}


def test_models_as_they_are_published_pass(hub, api, make_run):
    run_dir = make_run()
    model = run_dir.parent / "ckpt" / "global_step2_hf"
    configs = json.loads((Path(__file__).parents[1] / "data" / "model_configs.json").read_text())
    index = {"weight_map": {"layer.attention.key": "model.safetensors", "cls_token": "model.safetensors"}}
    files = {
        "tokenizer_config.json": TOKENIZER,
        "special_tokens_map.json": {k: v for k, v in TOKENIZER.items() if k.endswith("_token")},
        "vocab.json": {"password": 1, "token": 2, "api_key": 3},
        "config.json": {**next(iter(configs.values())), "id2label": {"0": "password"}},
        "model.safetensors.index.json": index,
        "generation_config.json": {"eos_token_id": [1, 2]},
    }
    for name, value in files.items():
        write_json(model / name, value)
    (model / "merges.txt").write_text("#version: 0.2\ns k\nh f\n")
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "tool.jinja").write_text("{{ tools }}")
    (model / "LICENSE").write_text("Apache License")
    queue(run_dir)
    assert drain(run_dir, api) is None
    assert {*files, "merges.txt", "additional_chat_templates/tool.jinja", "LICENSE"} <= set(hub.repo(MODEL).files())


# A model's folder


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokenizer_config.json", {**TOKENIZER, "token": "short"}),
        ("tokenizer_config.json", {**TOKENIZER, "init": [{"use_auth_token": "whatever"}]}),
        ("config.json", {"api_key": "k"}),
        ("generation_config.json", {"note": "hf" + "_" + "NEEDLE" * 6}),
        ("chat_template.jinja", "{# " + "gh" + "p_" + "NEEDLE" * 6 + " #}"),
        ("README.md", "git clone https://me" + ":NEEDLE@host.test/x"),
        ("tokenizer_config.json", '{"token": "NEEDLE", "token": null}'),
    ],
)
def test_a_models_own_file_with_a_secret_is_refused_before_anything_goes(hub, use_hub, make_run, name, value):
    run_dir = make_run()
    path = run_dir.parent / "ckpt" / "global_step4_hf" / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    with pytest.raises(SystemExit) as stopped:
        hub_cli.main(["push", str(run_dir), "--repo", MODEL])
    words = stopped.value.code
    assert words.startswith("error: ") and name in words and "secret" in words and "NEEDLE" not in words
    assert outbox.items(run_dir) == [] and not hub.repos


def test_secrets_in_the_metadata_of_weights_are_refused(make_run):
    run_dir = make_run()
    weights = run_dir.parent / "ckpt" / "global_step2_hf" / "model.safetensors"
    import numpy as np

    save_file({"cls_token": np.zeros(3)}, weights, metadata={"format": "pt", "hf_token": "whatever"})
    with pytest.raises(UsageError, match=r"model\.safetensors keeps a secret under 'hf_token'"):
        queue(run_dir)


def test_only_files_that_make_up_a_model_go_and_the_others_are_named(hub, use_hub, make_run, capsys):
    run_dir = make_run()
    model = run_dir.parent / "ckpt" / "global_step4_hf"
    strangers = ["train_args.json", "notes.txt", ".env.json", ".hidden.safetensors", "id_rsa.txt", "data.parquet"]
    for name in strangers:
        (model / name).write_text("NEEDLE")
    (model / "logs").mkdir()
    (model / "logs" / "config.json").write_text("{}")
    state = run_dir.parent / "ckpt" / "_actor" / "global_step4"
    (state / "notes.txt").write_text("NEEDLE")
    hub_cli.main(["push", str(run_dir), "--repo", MODEL, "--full_state"])
    files = hub.repo(MODEL).files()
    assert not [path for path in files if Path(path).name in strangers or path.startswith("logs")]
    assert "full_state/_actor/global_step4/mp_rank_00_model_states.pt" in files
    assert not leaked(hub, ["NEEDLE"])
    (said,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("left out")]
    assert all(name in said for name in [*strangers, "logs/", "global_step4/notes.txt"]) and "hf upload" in said


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors", "full_state"])
def test_a_link_out_of_the_model_is_refused_and_one_inside_followed(hub, api, make_run, tmp_path, name):
    run_dir = make_run()
    model, state = run_dir.parent / "ckpt" / "global_step2_hf", run_dir.parent / "ckpt" / "_actor" / "global_step2"
    stranger = tmp_path / "id_rsa"
    stranger.write_bytes(b"NEEDLE" * 300_000)
    link = state / "x.pt" if name == "full_state" else model / name
    link.unlink(missing_ok=True)
    link.symlink_to(stranger)
    with pytest.raises(UsageError, match=rf"{link} leads to {stranger}, outside of"):
        queue(run_dir, full_state=[state])
    assert outbox.items(run_dir) == []
    link.unlink()
    (model / "tokenizer.json").unlink(missing_ok=True)
    (model / "tokenizer.json").symlink_to("config.json")
    if name == "model.safetensors":
        hub_runs.export_model(model, 2)
    queue(run_dir)
    assert drain(run_dir, api) is None
    assert hub.repo(MODEL).files()["tokenizer.json"] == hub.repo(MODEL).files()["config.json"]


def test_a_file_that_is_none_is_refused(make_run):
    run_dir = make_run()
    path = run_dir.parent / "ckpt" / "global_step2_hf" / "tokenizer.json"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UsageError, match=r"tokenizer\.json is not a regular file"):
        queue(run_dir)


def test_what_is_put_into_a_waiting_snapshot_does_not_go(hub, api, make_run, tmp_path):
    run_dir = make_run()
    item = queue(run_dir)
    stranger = tmp_path / "id_rsa"
    stranger.write_text("NEEDLE")
    (item.path / "files" / "vocab.txt").symlink_to(stranger)
    (item.path / "files" / "notes.txt").write_text("NEEDLE")
    swapped = item.path / "files" / "tokenizer.json"
    stranger.write_bytes(b"x" * swapped.stat().st_size)
    swapped.unlink()
    swapped.symlink_to(stranger)
    lines = []
    assert drain(run_dir, api, lines.append, attempts=1).permanent
    assert "tokenizer.json leads to" in lines[-1]
    swapped.unlink()
    swapped.write_text("{}")
    assert drain(run_dir, api) is None
    assert not {"vocab.txt", "notes.txt"} & set(hub.repo(MODEL).files()) and not leaked(hub, ["NEEDLE"])


# Between the look and the upload


def test_a_file_that_is_swapped_during_the_upload_does_not_go(hub, tmp_path):
    mine, stranger = tmp_path / "mine" / "model.safetensors", tmp_path / "stranger"
    mine.parent.mkdir()
    mine.write_bytes(b"weights" * 9)
    stranger.write_bytes(b"NEEDLE1" * 9)

    class Swapping(HfApi):
        def create_commit(self, *args, **how):
            mine.unlink()
            mine.symlink_to(stranger)
            return super().create_commit(*args, **how)

    done = publish(Swapping(hub.url, hub.token), MODEL, {"model.safetensors": mine}, message="x", tag="t")
    assert "model.safetensors" in done.sent and mine.is_symlink()
    assert hub.repo(MODEL).files("t")["model.safetensors"] == b"weights" * 9
    assert not leaked(hub, ["NEEDLE"])


def test_only_the_file_that_was_looked_at_is_read(tmp_path):
    path, stranger = tmp_path / "a" / "x", tmp_path / "b"
    path.parent.mkdir()
    path.write_text("mine")
    file = local_file(path)
    stranger.mkdir()
    (stranger / "x").write_text("NEED")
    path.parent.rename(tmp_path / "aside")
    path.parent.symlink_to(stranger)
    with pytest.raises(HubError, match="has changed while it was being pushed"):
        file.read_bytes()
    with pytest.raises(UsageError, match="outside of"):
        local_file(path, tmp_path / "aside")


def test_many_files_may_be_open_at_once():
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, before[1]))
        allow_open_files(400)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= min(656, before[1] % (1 << 62))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


# Runs, results and the Space


@pytest.mark.parametrize("place", ["run.json", "metrics.jsonl", "prior.json", "rollouts", "rollouts/step-000002.parquet",
                                   "eval", "eval/default", "eval/default/aime24/step-000003/samples.parquet"])  # fmt: skip
def test_links_out_of_a_run_are_refused(tmp_path, hub, commands, place):
    run_dir = write_run(tmp_path)
    save_result(run_dir / "eval", "aime24", GOOD, 3)
    (run_dir / place).rename(tmp_path / "elsewhere")
    (run_dir / place).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="outside of"):
        push_run(run_dir)
    assert not hub.repos


def test_links_out_of_results_are_refused_and_strangers_named(tmp_path, hub, commands, capsys):
    place = save_result(tmp_path / "results", "aime24", GOOD, 3)
    (place / "notes.txt").write_text("NEEDLE")
    (place / "samples.parquet").rename(tmp_path / "elsewhere")
    (place / "samples.parquet").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="outside of"):
        push_results(tmp_path / "results")
    (place / "samples.parquet").unlink()
    (tmp_path / "elsewhere").rename(place / "samples.parquet")
    push_results(tmp_path / "results")
    assert "left out, not being results: default/aime24/step-000003/notes.txt" in capsys.readouterr().out
    assert not leaked(hub, ["NEEDLE"])


def test_strangers_in_a_run_stay_and_are_named(tmp_path, hub, commands, capsys):
    run_dir = write_run(tmp_path)
    for name in ("notes.txt", ".env", "rollouts/step-x.parquet", "rollouts/.step-000009.parquet", "superseded/secret"):
        (run_dir / name).parent.mkdir(exist_ok=True)
        (run_dir / name).write_text("NEEDLE")
    push_run(run_dir)
    (said,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("left out")]
    assert said.endswith(": .env, notes.txt, rollouts/.step-000009.parquet, rollouts/step-x.parquet")
    assert not leaked(hub, ["NEEDLE"])


def test_columns_that_nobody_knows_and_notes_in_tables_stay(tmp_path, hub, commands):
    run_dir = write_run(tmp_path, steps=1)
    path = run_dir / "rollouts" / "step-000001.parquet"
    table = pq.read_table(path)
    table = table.append_column("password", pa.array(["NEEDLE1"] * len(table)))
    label = pa.array([["NEEDLE2"]] * len(table))
    table = table.set_column(table.column_names.index("label"), "label", label)
    table = table.set_column(table.column_names.index("cluster"), "cluster", table["prompt"].dictionary_encode())
    pq.write_table(table.replace_schema_metadata({"note": "NEEDLE3"}), path)
    push_run(run_dir)
    published = pq.read_table(pa.BufferReader(hub.repo(RUN, "dataset").files()["rollouts/step-000001.parquet"]))
    assert published["cluster"].to_pylist() == published["prompt"].to_pylist() == table["prompt"].to_pylist()
    assert not {"password", "label"} & set(published.column_names) and not leaked(hub, ["NEEDLE"])


def test_prompts_keep_addresses_and_paths_but_no_secrets(tmp_path, hub, commands):
    plain = "see https://host.test/a?b=c in /data/x/y"
    secret = "sk" + "-ant-" + "NEEDLE" * 5
    run_dir = write_run(tmp_path, prompts=(plain, f"{plain} {secret}"), steps=1)
    push_run(run_dir)
    content = hub.repo(RUN, "dataset").files()["rollouts/step-000001.parquet"]
    assert set(pq.read_table(io.BytesIO(content))["prompt"].to_pylist()) == {plain, f"{plain} <redacted>"}


def small_app(folder: Path) -> Path:
    readme = "---\ntitle: Runs\nsdk: gradio\n---\n# Runs\n"
    files = {"app.py": "", "README.md": readme, "requirements.txt": "gradio\n"}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def deploy(commands, tmp_path, monkeypatch):
    """deploy-space of a small app with a package of one file: building the wheel is tested elsewhere."""
    package = tmp_path / "package" / "x.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Name: x\n")
    monkeypatch.setattr(space, "package_files", lambda _: {"x.dist-info/METADATA": package / "METADATA"})
    app = small_app(tmp_path / "space")
    push_run(write_run(tmp_path / "shown"))
    return lambda: call(space, SPACE, "--runs", RUN, "--space_dir", app)


def test_the_spaces_folder(tmp_path, hub, deploy, capsys):
    app = tmp_path / "space"
    for name in (".env", "notes.txt", "data/key.pem", "data/cache.json"):
        (app / name).parent.mkdir(exist_ok=True)
        (app / name).write_text("NEEDLE")
    (app / "requirements.txt").write_text("--index-url https://me" + ":NEEDLE@host.test/simple\n")
    with pytest.raises(UsageError, match=r"requirements\.txt, line 1, holds what looks like a secret"):
        deploy()
    (app / "requirements.txt").write_text("gradio\n")
    (app / "app.py").write_text("x = 1\nTOKEN = 'hf" + "_" + "NEEDLE" * 6 + "'\n")
    with pytest.raises(UsageError, match=r"app\.py, line 2, holds"):
        deploy()
    (app / "app.py").unlink()
    (app / "app.py").symlink_to("/etc/hostname")
    with pytest.raises(UsageError, match=r"app\.py leads to /etc/hostname"):
        deploy()
    assert ("space", SPACE) not in hub.repos
    (app / "app.py").unlink()
    (app / "app.py").write_text("")
    capsys.readouterr()
    deploy()
    assert "left out, not being files of the app: .env, data/cache.json, data/key.pem, notes.txt" in (
        capsys.readouterr().out
    )
    assert not leaked(hub, ["NEEDLE"])


def test_a_wheel_is_not_built_of_what_a_link_brings_in(tmp_path):
    source = tmp_path / "checkout" / "openrlhf_ebpo"
    source.mkdir(parents=True)
    (source / "secret.py").symlink_to("/etc/hostname")
    with pytest.raises(UsageError, match=r"secret\.py leads to /etc/hostname"):
        space.build_wheel(tmp_path / "checkout", tmp_path)


def test_a_token_is_no_name_of_a_repo(use_hub, make_run):
    token = "hf" + "_" + "NEEDLE" * 6
    with pytest.raises(SystemExit) as stopped:
        hub_cli.main(["push", str(make_run()), "--repo", f"owner/{token}"])
    assert "looks like a token" in stopped.value.code and "NEEDLE" not in stopped.value.code


def test_run_json_keeps_no_address_of_an_error(tmp_path):
    run_dir = write_run(tmp_path)
    close_run(run_dir, "failed", "ConnectionError: http://host/reward?token=NEEDLE refused")
    assert read_run(run_dir)["error"] == "ConnectionError: http://host/reward refused"


# Everything at once


STAYS = {"status", "estimator", "output_dir", "path", "run_dir", "preset", "model_name_or_path", "model", "checkpoint"}


def filled(value, secret, key=""):
    """`value` with a secret of its own in every text (paths that must lead somewhere are left alone), and a plain one
    under the name of a secret."""
    if isinstance(value, dict):
        return {k: filled(v, secret, k) for k, v in value.items()} | {"api_key": next(secret).split("/")[-1]}
    if isinstance(value, list):
        return [filled(each, secret, key) for each in value]
    return f"{value} {next(secret)}" if isinstance(value, str) and key not in STAYS else value


def fill(path: Path, secret) -> None:
    write_json(path, filled(json.loads(path.read_text()), secret))


def folder_name(secret) -> str:
    """A secret that can be a folder's name and, as a part of a path, stays whole."""
    return next(each for each in secret if re.fullmatch(r"(hf_|sk-|gh|AK|AI|xo)[\w.-]+", each))


def test_of_a_run_full_of_secrets_none_gets_to_the_hub(tmp_path, hub, api, commands, no_waiting):
    found: list[str] = []
    secret = secrets(found)
    folder = tmp_path / folder_name(secret)
    base = folder / folder_name(secret)
    base.mkdir(parents=True)
    (base / "README.md").write_text(f"---\nlicense: other\nlicense_name: x {folder_name(secret)}\n---\n")
    args = arguments(folder)
    args["actor"]["model_name_or_path"] = str(base)
    args["reward"] = {"remote_url": [f"http://host.test/reward?token={found.append('QUERY-SECRET') or 'QUERY-SECRET'}"]}
    errors = " ".join(itertools.islice(secret, len(FORMS)))
    prompts = tuple(" ".join(itertools.islice(secret, len(FORMS))) for _ in range(2))
    run_dir = write_run(folder, prompts=prompts, error=f"failed: /reward?sig=QUERY-SECRET {errors}", args=args)
    run = json.loads((run_dir / "run.json").read_text())
    run = filled(run, secret) | {"argv": [*run["argv"], "--reward.remote_url=http://h/x?a=QUERY-SECRET", next(secret)]}
    write_json(run_dir / "run.json", run)
    append_json_line(
        run_dir / "metrics.jsonl", filled({"step": 3, "note": "x", f"eval_{folder_name(secret)}_pass1": 1.0}, secret)
    )
    fill(run_dir / "prior.json", secret)
    task, protocol = folder_name(secret), {**PROTOCOL, "name": folder_name(secret)}
    place = save_result(run_dir / "eval", task, GOOD, 3, protocol, error="x")
    fill(place / "summary.json", secret)

    model = hub_runs.export_model(folder / "ckpt" / "global_step3_hf", 3)
    write_json(model / "train_args.json", filled(args, secret))
    (model / ".env").write_text(next(secret))
    append_json_line(
        run_dir / "checkpoints.jsonl", {"step": 3, "tag": next(secret), "model": str(model), "complete": True}
    )
    for name, content in (("tokenizer_config.json", filled(TOKENIZER, secret)), ("README.md", next(secret))):
        (model / name).write_text(json.dumps(content))
        with pytest.raises(UsageError, match=f"{name}.*secret"):
            outbox.add(run_dir, 3, model, repo=MODEL)
        (model / name).unlink()

    outbox.add(run_dir, 3, model, repo=MODEL)
    assert drain(run_dir, api) is None
    push_run(run_dir)
    push_results(run_dir, "--model", MODEL)
    publish(api, MODEL, {"x.txt": b"x"}, message=f"step of {next(secret)}")

    assert {MODEL, RUN, RESULTS} <= {name for _, name in hub.repos}
    assert len(hub.repo(MODEL).tags) == 1 and b"model-index" in hub.repo(MODEL).files()["README.md"]
    assert len(found) > 150 and leaked(hub, found) == []
    assert str(folder.parent).encode() not in received(hub)
