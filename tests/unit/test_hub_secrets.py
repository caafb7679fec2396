"""No secret, no home folder and no stranger's file gets to the Hub: one filter, which everything passes that is
sent."""

import ast
import io
import itertools
import json
import re
from pathlib import Path

import hub_runs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import refused
from fake_secrets import FORMS, TOKENIZER, leaked, received, secrets
from hub_runs import REPO as MODEL
from hub_runs import export_of, model_of, push
from recorded_runs import GOOD, PROTOCOL, arguments, save_result, write_run
from safetensors.numpy import save, save_file

from openrlhf_ebpo.cli import hub as hub_cli
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import append_json_line, write_json
from openrlhf_ebpo.hub.content import Publishable, local_file
from openrlhf_ebpo.hub.model_files import contents
from openrlhf_ebpo.hub.public import public, public_text
from openrlhf_ebpo.hub.publish import Commit, Repo, send
from openrlhf_ebpo.hub.push import Export
from openrlhf_ebpo.hub.run_data import run_files
from openrlhf_ebpo.redact import own_homes, without_homes

ROOT = Path(__file__).parents[2]
RUN = "owner/run"
TOKEN = "hf" + "_" + "NEEDLE" * 6
HOME = "/home/alice.needle"


@pytest.fixture
def at_home(monkeypatch):
    """Make HOME the folder of the user who runs this."""
    monkeypatch.setenv("HOME", HOME)


def table(**columns) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({name: [value] for name, value in columns.items()}), sink)
    return sink.getvalue()


# The filter


def test_nothing_else_sends_files(hub, api):
    """Of all calls of the Hub's client that send something, one is used, in one place, and it takes nothing else."""
    sending = {"create_commit", "create_commits_on_pr", "upload_file", "upload_folder", "upload_large_folder"}
    sending |= {"push_to_hub", "preupload_lfs_files", "CommitOperationAdd", "save_pretrained_to_hub", "run_as_future"}
    found = {}
    for path in itertools.chain(*(ROOT.joinpath(place).rglob("*.py") for place in ("openrlhf_ebpo", "eval", "space"))):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = {getattr(each, "attr", getattr(each, "id", None)) for each in calls} & sending
        found |= {path.relative_to(ROOT).as_posix(): names} if names else {}
    assert found == {"openrlhf_ebpo/hub/publish.py": {"create_commit", "CommitOperationAdd"}}
    with pytest.raises(TypeError, match="only Publishable files are sent"):
        send(Repo(api, MODEL), {"x.txt": b"x"}, ["x.txt"], [], Commit("m", hub_runs.anybody), "")
    given = {"x.txt": b"x"}
    files = Publishable(given)
    given["x.txt"] = TOKEN.encode()
    assert dict(files) == {"x.txt": b"x"} and not hub.requests
    with pytest.raises(TypeError):
        files["y.txt"] = b"y"


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("x.txt", TOKEN.encode()),
        ("x.json", json.dumps({"a": TOKEN}).encode()),
        ("x.json", json.dumps(TOKEN).replace("_", r"\u005F").encode()),
        ("vocab.bpe", b"a b\n" + TOKEN.encode()),
        ("tokenizer.model", b"\x0a\x0e\x00\xff" + TOKEN.encode()),
        ("tokenizer.model.v3", b"\x0a\x0e\x00\xff" + TOKEN.encode()),
        ("LICENSE", TOKEN.encode()),
        ("x.svg", f"<svg>{TOKEN}</svg>".encode()),
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


HIDDEN = {
    "password": 'Use {"password": "SECRET"} here',
    "export": "\nexport A_TOKEN=SECRET\n",
    "quoted export": '\nexport A_TOKEN="SECRET"',
    ".netrc": "machine x.test\n\tlogin me\n\tpassword SECRET",
    "a header": 'curl -H "X-Api-Key: SECRET"',
}


@pytest.mark.parametrize("form", HIDDEN)
def test_a_secret_in_a_string_of_json_is_found(form):
    text = json.dumps({"bos_token": "<s>", "chat_template": HIDDEN[form].replace("SECRET", "n33dle-n33dle-77")})
    for name in ("tokenizer_config.json", "x.jsonl"):
        with pytest.raises(UsageError, match=rf"{name}, line 2, holds"):
            Publishable({name: b"\n" + text.encode()})


def test_pickles_never_go():
    for path in ("x.pt", "full_state/x.pt", "pytorch_model.bin"):
        with pytest.raises(UsageError, match="is a pickle"):
            Publishable({path: b""})


def test_the_line_that_is_named_is_right_behind_places_that_were_redacted():
    text = "Authorization: Bearer <redacted>\n" * 20 + f"x\n{TOKEN}\n"
    with pytest.raises(UsageError, match=r"^x\.txt, line 22, holds"):
        Publishable({"x.txt": text.encode()})


HARMLESS = (
    *("PRIMARY_KEY=user_id_0123456", "CACHE_KEY=model-v2-layers-12", "BOS_TOKEN=bos_token_id_1234"),
    *('"password": "password123"', 'api_key="token-abc123"', 'api_key="not-needed-1234"'),
    *("access_token=request.session_v2_token", "api_key = get_key_from_vault1()"),
    *("api_key=settings.OPENAI_API_KEY1", "API_KEY=test_key_123456", "client_secret=client_secret_123"),
    *("TOKEN=tokenizer_v2_fast.json", "API_KEY=replace_me_with_key_1", "pwd=/data/projects/model-7b"),
    *('"password": "12345678"', '"password": "qwerty123"', 'def login(name, password="default123")'),
    *("authorization: required_for_all_requests", "authorization=authorization_code_grant"),
    *("git clone https://oauth2:TOKEN@host/x", "https://someusername@host.test/x", "xo" + "xb-not-a-real-token"),
    "a file that begins with -----BEGIN RSA PRIVATE " + "KEY----- is a key",
    "ls /home/user, cd /root/x and C:\\Users\\Public: other people's folders in texts of theirs",
    "QUtJQTEyMzQ1Njc4 aGZfYWJj, sk-learn, \\frac{\\hom e}{2}, /homeless, the home/office, /home",
    *("IQ== 0\nIg== 1\naGZf 2\n", '{"image_token": "<image>", "sha": "0123456789abcdef0123456789abcdef01234567"}'),
    json.dumps(TOKENIZER),
)
SECRET_ALL_THE_SAME = (
    *('"password": "planted-0001-secret"', "SECRET_KEY=planted-secret-0001", "api_key=my-9f8a7b6c5d"),
    *("VAULT_TOKEN=s.9f8aXc7KfE4aaB1c", "https://tokenAb12Cd34@host.test/x", "pwd=x9/etc/AbCd12"),
    *("authorization: abcdefghijklmnopqrst", "password=12345678a9", "password: hunter2hunter2"),
    "-----BEGIN PRIVATE " + "KEY-----\nMIIEvQIBADANBgkqhkiG",
    "-----BEGIN PRIVATE " + "KEY-----\nshort\n-----END PRIVATE " + "KEY-----",
)


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_texts_stop_no_push(at_home, text):
    for path in ("chat_template.jinja", "tokenizer_config.json"):
        assert dict(Publishable({path: text.encode()})) == {path: text.encode()}


@pytest.mark.parametrize("text", SECRET_ALL_THE_SAME)
def test_what_resembles_a_harmless_text_is_still_a_secret(text):
    with pytest.raises(UsageError, match=r"chat_template\.jinja"):
        Publishable({"chat_template.jinja": text.encode()})


# Home folders


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
        ("rooted in /rooting, /homes/x? s3://home/bob", "rooted in /rooting, x? s3://home/bob"),
        ("https://host/home/bob", "https://host/home/bob"),
        ("(/home/bob)", "(~)"),
    ],
)
def test_home_folders_of_anybody_are_taken_out_of_our_records(text, left):
    assert public_text(text) == public_text(left) == left
    assert "bob" not in without_homes(text).replace("host/home/bob", "").replace("s3://home/bob", "").lower()


def test_the_home_of_root_is_not_a_user_name(monkeypatch):
    monkeypatch.setenv("HOME", "/root")
    assert "/root" not in own_homes() and dict(Publishable({"x.txt": b"cd /root/x"}))


@pytest.mark.parametrize(
    "text",
    ["PYTHONPATH:{}/x", "eval_{}/test_pass1", "<{}>", "https://host{}/x", "s3:/{}/x", "{}\u76ee\u5f55", r"a{}\/x"],
)
def test_whatever_the_filter_would_refuse_is_taken_out_of_records_and_data(monkeypatch, text):
    """A home folder that lies elsewhere than in /home, in every place where a text may have it."""
    home = "/data/users/al.needle"
    monkeypatch.setenv("HOME", home)
    for each in (text.format(home), text.format(home.replace("/", r"\/")), text.format(home) + ".", f"{home}.\nx"):
        record = json.dumps(public({each: each}))
        assert not [found for found in (public_text(each), record) if "al.needle" in found]


# Models


def test_models_as_they_are_published_pass(hub, api, make_run):
    run_dir = make_run()
    model = model_of(run_dir, 2)
    weights = {**hub_runs.tensors(), "layer.attention.key": np.zeros(3), "cls_token": np.zeros(3)}
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    files = {
        "tokenizer_config.json": TOKENIZER,
        "special_tokens_map.json": {k: v for k, v in TOKENIZER.items() if k.endswith("_token")},
        "vocab.json": {"password": 1, "token": 2, "api_key": 3},
        "config.json": {**hub_runs.CONFIG, "id2label": {"0": "password"}},
        "model.safetensors.index.json": {"weight_map": dict.fromkeys(weights, "model.safetensors")},
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
        ("config.json", {"api_key": "NEEDLE-0123456789"}),
        ("tokenizer_config.json", '{"token": "' + "hf_" + "NEEDLE0" * 6 + '", "token": null}'),
        ("chat_template.jinja", "{# " + "gh" + "p_" + "NEEDLE" * 6 + " #}"),
        ("model.safetensors", {"format": "pt", "hf_token": "hf_" + "NEEDLE0" * 6}),
    ],
    ids=["key", "duplicate key", "jinja", "metadata of weights"],
)
def test_a_file_of_a_model_with_a_secret_is_refused(make_run, name, value):
    run_dir = make_run()
    path = model_of(run_dir, 4) / name
    if name == "model.safetensors":
        save_file(hub_runs.tensors(), path, metadata=value)
    else:
        path.write_text(value if isinstance(value, str) else json.dumps(value))
    with pytest.raises(UsageError, match=f"{name}.* secret") as caught:
        contents(run_dir, model_of(run_dir, 4))
    assert "NEEDLE" not in str(caught.value)


def test_a_file_that_the_user_has_looked_through_goes_as_it_is(hub, use_hub, make_run):
    run_dir = make_run()
    config = model_of(run_dir, 4) / "config.json"
    config.write_text(json.dumps({"api_key": "a word of the vocabulary", "note": "hf" + "_" + "NEEDLE" * 6}))
    words = refused(hub_cli.main, "push", run_dir, "--repo", MODEL)
    assert words == refused(hub_cli.main, "push", run_dir, "--repo", MODEL, "--dry_run") and "--not_secret" in words
    mistyped = ("--not_secret", "confg.json")
    assert "--not_secret confg.json" in refused(hub_cli.main, "push", run_dir, "--repo", MODEL, *mistyped)
    assert not hub.repos
    hub_cli.main(["push", str(run_dir), "--repo", MODEL, "--not_secret", "config.json"])
    assert hub.repo(MODEL).files()["config.json"] == config.read_bytes()


def test_a_file_that_is_called_not_secret_is_not_missing_for_ever(hub, use_hub, make_run, capsys):
    """Also one that the filter would change."""
    run_dir = hub_runs.set_repo(make_run(steps=(4,)))
    config = model_of(run_dir, 4) / "config.json"
    config.write_text(json.dumps({**hub_runs.CONFIG, "_name_or_path": "/home/somebody/base"}))
    hub_cli.main(["push", str(run_dir), "--not_secret", "config.json"])
    assert hub.repo(MODEL).files()["config.json"] == config.read_bytes()
    capsys.readouterr()
    hub_cli.main(["push", str(run_dir), "--dry_run"])
    assert capsys.readouterr().out.startswith("nothing is missing")


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
def test_a_link_out_of_the_model_is_refused_and_one_inside_followed(make_run, tmp_path, name):
    run_dir = make_run()
    model, stranger = model_of(run_dir, 2), tmp_path / "id_rsa"
    (model / name).rename(stranger)
    (model / name).symlink_to(stranger)
    with pytest.raises(UsageError, match=rf"{model / name} leads to {stranger}, outside of"):
        contents(run_dir, model)
    (model / name).unlink()
    stranger.rename(model / "copy")
    (model / name).symlink_to("copy")
    assert contents(run_dir, model)[name].path == model / "copy"


# Runs and the Space


@pytest.mark.parametrize(
    "place",
    [
        *("run.json", "metrics.jsonl", "prior.json", "rollouts", "rollouts/step-000002.parquet"),
        *("eval", "eval/default", "eval/default/aime24/step-000003/samples.parquet"),
    ],
)
def test_links_out_of_a_run_are_refused(tmp_path, place):
    run_dir = write_run(tmp_path)
    save_result(run_dir / "eval", "aime24", GOOD, 3)
    (run_dir / place).rename(tmp_path / "elsewhere")
    (run_dir / place).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="outside of"):
        run_files(run_dir, RUN)


STRANGERS = (
    *("notes.txt", ".env", "rollouts/step-x.parquet", "rollouts/.step-000009.parquet", "superseded/secret"),
    *("failed_step-000012/report.json", "heartbeat.json", "training.lock", "notes.jsonl"),
    "eval/default/aime24/step-000003/notes.txt",
)


def test_what_is_not_part_of_a_run_stays_and_is_named(tmp_path, hub, use_hub, capsys):
    run_dir = write_run(tmp_path, steps=1)
    for name in STRANGERS:
        (run_dir / name).parent.mkdir(exist_ok=True, parents=True)
        (run_dir / name).write_text("NEEDLE")
    hub_cli.main(["push-run", str(run_dir), "--repo", RUN])
    (said,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("left out")]
    assert all(name in said for name in STRANGERS if "superseded" not in name)
    assert not leaked(hub, ["NEEDLE"])


@pytest.mark.parametrize("where", ["prompt", "a column of lists", "notes"])
def test_a_secret_anywhere_in_a_table_stops_the_push(tmp_path, where):
    run_dir = write_run(tmp_path, prompts=("2 + 2?", f"key {TOKEN}" if where == "prompt" else "x"), steps=1)
    path = run_dir / "rollouts" / "step-000001.parquet"
    rows = pq.read_table(path)
    if where == "a column of lists":
        rows = rows.append_column("more", pa.array([[TOKEN]] * len(rows)))
    pq.write_table(rows.replace_schema_metadata({"note": TOKEN} if where == "notes" else None), path)
    with pytest.raises(UsageError, match=r"step-000001\.parquet holds what looks like a secret"):
        run_files(run_dir, RUN)


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
    """A secret that can be a folder's name and, as a part of a path, stays complete."""
    return next(each for each in secret if re.fullmatch(r"(hf_|sk-|gh|AK|AI|xo)[\w.-]+", each))


def full_of_secrets(tmp_path, found: list[str]) -> Path:
    """A run directory with secrets of every form wherever a text can stand; what is secret goes to `found`."""
    secret = secrets(found)
    folder = tmp_path / folder_name(secret)
    base = folder / folder_name(secret)
    base.mkdir(parents=True)
    (base / "README.md").write_text(f"---\nlicense: other\nlicense_name: x {folder_name(secret)}\n---\n")
    args = arguments(folder)
    args["actor"]["model_name_or_path"] = str(base)
    args["reward"] = {"remote_url": ["http://host.test/reward?token=QUERY-SECRET"]}
    args["notes"] = {"home": "/home/needle.bob", "windows": r"C:\Users\needle.bob\x"}
    found += ["QUERY-SECRET", "needle.bob", "alice.needle"]
    errors = " ".join(itertools.islice(secret, len(FORMS)))
    run_dir = write_run(folder, args=args)
    run = filled(json.loads((run_dir / "run.json").read_text()), secret)
    write_json(
        run_dir / "run.json",
        run
        | {
            "error": f"failed: /reward?sig=QUERY-SECRET {errors} in {HOME}/x",
            "argv": [*run["argv"], "--x=http://h/x?a=QUERY-SECRET", next(secret)],
        },
    )
    row = {"step": 3, "note": f"{HOME}/x", f"eval_{folder_name(secret)}_pass1": 1.0}
    append_json_line(run_dir / "metrics.jsonl", filled(row, secret))
    fill(run_dir / "prior.json", secret)
    result = save_result(run_dir / "eval", "aime24", GOOD, 3, PROTOCOL, error="x")
    fill(result / "summary.json", secret)
    model = hub_runs.export_model(folder / "ckpt" / "global_step3_hf", 3)
    write_json(model / "train_args.json", filled(args, secret))
    (model / ".env").write_text(next(secret))
    write_json(model / "config.json", {**hub_runs.CONFIG, "_name_or_path": r"C:\Users\needle.bob\base"})
    paths = {"name_or_path": f"{HOME}/base", "map": "/root/.cache/x.json"}
    write_json(model / "tokenizer_config.json", {**TOKENIZER, **paths})
    append_json_line(run_dir / "checkpoints.jsonl", {"step": 3, "tag": next(secret), "model": str(model)})
    return run_dir


def test_of_a_run_full_of_secrets_none_gets_to_the_hub(at_home, tmp_path, hub, api, use_hub, no_waiting, capsys):
    found: list[str] = []
    run_dir = full_of_secrets(tmp_path, found)
    for argv in (["push", str(run_dir), "--repo", MODEL], ["push-run", str(run_dir), "--repo", RUN]):
        hub_cli.main([*argv, "--dry_run"])
    assert not hub.repos
    push(run_dir, api, wanted=[Export(3, run_dir.parent / "ckpt" / "global_step3_hf")])
    hub_cli.main(["push-run", str(run_dir), "--repo", RUN])
    hub_runs.publish(api, MODEL, {"x.txt": b"x"}, message=f"step of {TOKEN}")
    assert {MODEL, RUN} <= {name for _, name in hub.repos}
    files = hub.repo(MODEL).files("step-000003")
    assert len(hub.repo(MODEL).tags) == 1 and b"model-index" in files["README.md"]
    assert len(found) > 150 and leaked(hub, [*found, TOKEN]) == []
    assert str(tmp_path).encode() not in received(hub)
    tokenizer = json.loads(files["tokenizer_config.json"])
    assert (tokenizer["name_or_path"], tokenizer["map"], tokenizer["image_token"]) == ("base", "x.json", "<image>")
    assert json.loads(files["config.json"])["_name_or_path"] == "base"
