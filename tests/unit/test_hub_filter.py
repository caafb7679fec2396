"""The one way of files to the Hub: they are Publishable, or they are not sent."""

import ast
import gzip
import io
import json
from pathlib import Path

import hub_runs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_secrets import TOKENIZER, leaked, received
from recorded_runs import GOOD, arguments, save_result, write_run
from safetensors.numpy import save

from openrlhf_ebpo.cli import hub as hub_cli
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import append_json_line, write_json
from openrlhf_ebpo.hub.card import model_card
from openrlhf_ebpo.hub.content import Publishable, local_file
from openrlhf_ebpo.hub.public import changes, public, public_data, public_text
from openrlhf_ebpo.hub.publish import Commit, Repo, send
from openrlhf_ebpo.hub.run_data import run_files
from openrlhf_ebpo.redact import own_homes, without_homes

ROOT = Path(__file__).parents[2]
MODEL, RUN = "owner/model", "owner/run"
TOKEN = "hf" + "_" + "NEEDLE" * 6
HOME = "/home/alice.needle"


@pytest.fixture
def at_home(monkeypatch):
    """Whoever runs this lives in HOME."""
    monkeypatch.setenv("HOME", HOME)


def table(**columns) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({name: [value] for name, value in columns.items()}), sink)
    return sink.getvalue()


# the type


def test_nothing_else_sends_files():
    """Of all calls of the Hub's client that send something, one is used, in one place."""
    sending = {
        "create_commit",
        "create_commits_on_pr",
        "upload_file",
        "upload_folder",
        "upload_large_folder",
        "push_to_hub",
        "preupload_lfs_files",
        "CommitOperationAdd",
        "save_pretrained_to_hub",
        "run_as_future",
    }
    found = {}
    for place in ("openrlhf_ebpo", "eval", "space"):
        for path in ROOT.joinpath(place).rglob("*.py"):
            calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
            names = {getattr(each, "attr", getattr(each, "id", None)) for each in calls} & sending
            found |= {path.relative_to(ROOT).as_posix(): names} if names else {}
    assert found == {"openrlhf_ebpo/hub/publish.py": {"create_commit", "CommitOperationAdd", "preupload_lfs_files"}}


def test_files_that_have_not_been_looked_at_cannot_be_sent(hub, api):
    with pytest.raises(TypeError, match="only Publishable files are sent"):
        send(Repo(api, MODEL), {"x.txt": b"x"}, ["x.txt"], [], Commit("m"), "")
    assert not hub.requests


def test_what_has_been_looked_at_does_not_change(tmp_path):
    given = {"x.txt": b"x"}
    files = Publishable(given)
    given["x.txt"] = TOKEN.encode()
    assert dict(files) == {"x.txt": b"x"}
    with pytest.raises(TypeError):
        files["y.txt"] = b"y"


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("x.txt", TOKEN.encode()),
        ("x.json", json.dumps({"a": TOKEN}).encode()),
        ("vocab.bpe", b"a b\n" + TOKEN.encode()),
        ("tokenizer.model", b"\x0a\x0e\x00\xff" + TOKEN.encode()),
        ("tokenizer.model.v3", b"\x0a\x0e\x00\xff" + TOKEN.encode()),
        ("LICENSE", TOKEN.encode()),
        ("x.svg", f"<svg>{TOKEN}</svg>".encode()),
        ("static/vendor/x.js.gz", gzip.compress(TOKEN.encode(), mtime=0)),
        ("model.safetensors", save({"w": np.zeros(1)}, {"note": f"by {TOKEN}"})),
        ("model.safetensors", save({TOKEN: np.zeros(1)})),
        ("x.parquet", table(response=f"is {TOKEN}")),
        ("x.parquet", table(**{TOKEN: 1})),
        ("x.parquet", table(deep=[{"a": [TOKEN]}])),
        ("x.parquet", table(raw=TOKEN.encode())),
        (f"{TOKEN}.json", b"{}"),
        ("x.json", f'{{"path": "{HOME}/x"}}'.encode()),
        ("x.json", json.dumps({"path": f"{HOME}/x"}).replace("/", "\\/").encode()),
        ("README.md", f"trained in `{HOME}`".encode()),
        ("home/someone/x.json", b"{}"),
        ("x.parquet", table(response=f"ls {HOME}")),
        ("model.safetensors", save({"w": np.zeros(1)}, {"source": f"{HOME}/base"})),
    ],
)
def test_private_things_in_every_kind_of_file_are_refused_and_not_repeated(at_home, tmp_path, path, content):
    files = [{path: content}]
    if "/" not in path and TOKEN not in path:
        (tmp_path / path).write_bytes(content)
        files.append({path: local_file(tmp_path / path)})
    for each in files:
        with pytest.raises(UsageError, match="secret") as caught:
            Publishable(each)
        assert "NEEDLE" not in str(caught.value) and "alice" not in str(caught.value).replace(str(tmp_path), "")


@pytest.mark.parametrize(
    "path",
    [
        ".env",
        ".ssh/id_rsa.txt",
        "a/.hidden/x.json",
        "/etc/passwd",
        "../x.json",
        "id_rsa.pem",
        "core.1234",
        "x.zip",
        "weights.npy",
        "notes.docx",
        "run.sh",
        "history.sqlite",
        "x\x1b[2J.zip",
        ".gitattributes",
        "x.js.gz",
        "static/x.woff2",
        "static/vendor/x.tar.gz",
    ],
)
def test_only_known_kinds_of_files_go(path):
    with pytest.raises(UsageError, match="is an unsupported file type") as caught:
        Publishable({path: b""})
    assert "\x1b" not in str(caught.value)


def test_a_packed_file_that_cannot_be_looked_through_does_not_go():
    with pytest.raises(UsageError, match="is damaged"):
        Publishable({"static/vendor/x.js.gz": gzip.compress(b"x" * 999)[:-9]})


def test_pickles_never_go():
    for path in ("x.pt", "full_state/x.pt", "pytorch_model.bin"):
        with pytest.raises(UsageError, match="is a pickle"):
            Publishable({path: b""})


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tokenizer_config.json", json.dumps(TOKENIZER)),
        ("README.md", "ls /home/user, cd /root/x and C:\\Users\\Public: other people's folders in texts of theirs"),
        ("x.txt", "QUtJQTEyMzQ1Njc4 aGZfYWJj, sk-learn, \\frac{\\hom e}{2}, /homeless, the home/office, /home"),
        ("x.tiktoken", "IQ== 0\nIg== 1\naGZf 2\n"),
        ("x.json", '{"image_token": "<image>", "sha": "0123456789abcdef0123456789abcdef01234567"}'),
    ],
)
def test_what_only_resembles_something_private_goes(at_home, path, text):
    assert dict(Publishable({path: text.encode()})) == {path: text.encode()}


# home folders


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/home/bob", "~"),
        ("in /home/bob.", "in ~"),
        ("/home/bob/runs/x", "x"),
        ("/root", "~"),
        ("cd /root; ls", "cd ~; ls"),
        ("/Users/bob/Library/x and more", "x and more"),
        ("file:///home/bob/x", "x"),
        (r"C:\Users\Bob Smith\runs", r"~\runs"),
        (r"C:\\Users\\bob\\runs", r"~\\runs"),
        (
            "rooted in /rooting, /homes/x? https://host/home/bob s3://home/bob",
            "rooted in /rooting, x? https://host/home/bob s3://home/bob",
        ),
        ("(/home/bob)", "(~)"),
    ],
)
def test_home_folders_of_anybody_are_taken_out_of_our_records(text, left):
    assert public_text(text) == public_text(left) == left
    assert "bob" not in without_homes(text).replace("host/home/bob", "").replace("s3://home/bob", "").lower()


def test_of_the_data_only_the_folder_of_whoever_runs_this_goes(at_home):
    text = f"see {HOME}/x, {HOME}2/x, /home/bob/y and /root/z; is {HOME}?"
    assert HOME in own_homes()
    assert public_data(text) == f"see ~/x, {HOME}2/x, /home/bob/y and /root/z; is ~?"


@pytest.mark.parametrize(
    "text",
    [
        "PYTHONPATH:{}/x",
        "eval_{}/test.jsonl_pass1",
        "<{}>",
        "https://host{}/x",
        "s3:/{}/x",
        "{}\u76ee\u5f55",
        r"a{}\/x",
    ],
)
def test_whatever_the_filter_would_refuse_is_taken_out_of_records_and_data(monkeypatch, text):
    """A home folder that lies elsewhere than in /home, in every place where a text may have it."""
    home = "/data/users/al.needle"
    monkeypatch.setenv("HOME", home)
    for each in (text.format(home), text.format(home.replace("/", r"\/")), text.format(home) + ".", f"{home}.\nx"):
        record = json.dumps(public({each: each}))
        assert not [found for found in (public_text(each), public_data(each), record) if "al.needle" in found]


@pytest.mark.parametrize(
    "spell", [lambda text: text.encode("utf-16"), lambda text: text.replace("_", r"\u005F").encode()]
)
def test_a_secret_in_another_spelling_is_one(spell):
    with pytest.raises(UsageError, match=r"x\.json, line 2, holds"):
        Publishable({"x.json": spell(f'{{\n"note": "{TOKEN}"}}')})


HIDDEN = {
    "password": 'Use {"password": "SECRET"} here',
    "export": "\nexport A_TOKEN=SECRET\n",
    "quoted export": '\nexport A_TOKEN="SECRET"',
    ".netrc": "machine x.test\n\tlogin me\n\tpassword SECRET",
    "JSON in JSON": json.dumps({"note": json.dumps({"password": "SECRET"})}),
    "a header": 'curl -H "X-Api-Key: SECRET"',
}


@pytest.mark.parametrize("form", HIDDEN)
@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.json", "x.jsonl"])
def test_a_secret_in_a_string_of_json_is_found(form, name):
    text = json.dumps({"bos_token": "<s>", "chat_template": HIDDEN[form].replace("SECRET", "n33dle-n33dle-77")})
    with pytest.raises(UsageError, match=rf"{name}, line 1, holds"):
        Publishable({name: text.encode()})


@pytest.mark.parametrize(
    "text",
    [
        *("PRIMARY_KEY=user_id_0123456", "CACHE_KEY=model-v2-layers-12", "BOS_TOKEN=bos_token_id_1234"),
        *('"password": "password123"', 'api_key="token-abc123"', 'api_key="not-needed-1234"'),
        *("access_token=request.session_v2_token", "api_key = get_key_from_vault1()"),
        *("api_key=settings.OPENAI_API_KEY1", "API_KEY=test_key_123456", "client_secret=client_secret_123"),
        *("TOKEN=tokenizer_v2_fast.json", "API_KEY=replace_me_with_key_1", "pwd=/data/projects/model-7b"),
        *('"password": "12345678"', '"password": "qwerty123"', 'def login(name, password="default123")'),
        *("authorization: required_for_all_requests", "authorization=authorization_code_grant"),
        *("git clone https://oauth2:TOKEN@host/x", "https://someusername@host.test/x", "xo" + "xb-not-a-real-token"),
        "a file that begins with -----BEGIN RSA PRIVATE " + "KEY----- is a key",
    ],
)
def test_harmless_texts_stop_no_push(text):
    assert Publishable({"chat_template.jinja": text.encode()})


@pytest.mark.parametrize(
    "text",
    [
        *('"password": "planted-0001-secret"', "SECRET_KEY=planted-secret-0001", "api_key=my-9f8a7b6c5d"),
        *("VAULT_TOKEN=s.9f8aXc7KfE4aaB1c", "https://tokenAb12Cd34@host.test/x", "pwd=x9/etc/AbCd12"),
        *("authorization: abcdefghijklmnopqrst", "password=12345678a9", "password: hunter2hunter2"),
        "-----BEGIN PRIVATE " + "KEY-----\nMIIEvQIBADANBgkqhkiG",
        "-----BEGIN PRIVATE " + "KEY-----\nshort\n-----END PRIVATE " + "KEY-----",
    ],
)
def test_what_resembles_a_harmless_text_is_still_a_secret(text):
    with pytest.raises(UsageError, match="holds what looks like a secret"):
        Publishable({"chat_template.jinja": text.encode()})


def test_root_is_not_a_private_home(monkeypatch):
    monkeypatch.setenv("HOME", "/root")
    assert "/root" not in own_homes()
    assert dict(Publishable({"x.txt": b"cd /root/x"}))


def test_redaction_goes_by_key_not_by_value():
    before = {"a": {"b": ["x", {"url": "http://h/x?t=1"}], "n": float("nan")}, "c": "/home/bob/x", "d": 1, "token": "t"}
    assert sorted(changes(before, public(before))) == ["a.b", "c", "token"]


# the commands


def attacked_run(folder: Path) -> Path:
    args = arguments(folder)
    args["reward"] = {"remote_url": ["http://host.test/r?token=NEEDLE"]}
    args["notes"] = {
        "wandb": TOKEN,
        "home": "/home/needle.bob",
        "windows": r"C:\Users\needle.bob\x",
        "s3_secret": "NEEDLE",
    }
    prompts = (f"what is in {HOME}/x?", f"and {TOKEN}?")
    run_dir = write_run(folder, prompts=prompts, error=f"no such file: {HOME}/x, /Users/needle.bob/x", args=args)
    append_json_line(run_dir / "metrics.jsonl", {"step": 3, "note": f"{HOME}/x {TOKEN}"})
    write_json(save_result(run_dir / "eval", "aime24", GOOD, 3) / "notes.json", {"a": TOKEN})
    model = hub_runs.export_model(folder / "ckpt" / "global_step3_hf", 3)
    write_json(
        model / "tokenizer_config.json", {**TOKENIZER, "name_or_path": f"{HOME}/base", "map": "/root/.cache/x.json"}
    )
    write_json(model / "config.json", {"model_type": "qwen2", "_name_or_path": r"C:\Users\needle.bob\base"})
    write_json(model / "train_args.json", args)
    (model / ".env").write_text(TOKEN)
    row = {"step": 3, "tag": "global_step3", "model": str(model), "complete": True}
    append_json_line(run_dir / "checkpoints.jsonl", row)
    return run_dir


def test_dry_run_and_push_use_one_filter(at_home, tmp_path, use_hub, no_waiting, capsys):
    run_dir = attacked_run(tmp_path / "run")
    hub_cli.main(["push", str(run_dir), "--repo", MODEL, "--dry_run"])
    said = capsys.readouterr().out
    for words in (
        "args.notes.wandb",
        "args.notes.home",
        "args.notes.s3_secret",
        "args.reward.remote_url",
        "name_or_path",
    ):
        assert words in said
    hub_cli.main(["push-run", str(run_dir), "--repo", RUN, "--dry_run"])
    said = capsys.readouterr().out
    assert "note" in said and "prompt" in said and "error" in said
    assert not use_hub.repos
    hub_cli.main(["push", str(run_dir), "--repo", MODEL])
    hub_cli.main(["push-run", str(run_dir), "--repo", RUN])
    assert leaked(use_hub, ["NEEDLE", "needle.bob", "alice.needle"]) == []
    config = json.loads(use_hub.repo(MODEL).files()["tokenizer_config.json"])
    assert config["name_or_path"] == "base" and config["map"] == "x.json" and config["image_token"] == "<image>"
    assert json.loads(use_hub.repo(MODEL).files()["config.json"])["_name_or_path"] == "base"
    assert str(tmp_path).encode() not in received(use_hub)


def test_no_home_folder_stays_in_a_card(at_home, tmp_path):
    run_dir = write_run(tmp_path)
    run = json.loads((run_dir / "run.json").read_text())
    run |= {"model": f"{HOME}/base", "dataset": f"trained at {HOME}", "name": "/Users/needle.bob"}
    write_json(run_dir / "run.json", run)
    for files in (model_card(run_dir, 3, MODEL), run_files(run_dir, RUN, tmp_path / "scratch")):
        card = files["README.md"].decode()
        assert "alice" not in card and "needle.bob" not in card
        Publishable(files)
